"""Slow errors of a restored picture, taken out at half its resolution and at a quarter.

What is left of strong noise after a restoration spans more pixels than a patch has, above all where noise was
correlated between neighbours. Means of 2x2 pixels have half the deviation, and a patch of them spans twice as much.
They are restored once more, and the difference to the means of the first result is added to it where there is no
structure: as much of it as the noise is of noise and structure together. On smooth pictures that is worth 0.6 to 1.2 dB
(docs/noise.md). Pictures whose noise is white Gaussian as it is are not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.data.picture import Picture
from tvae.io.image_file import Image
from tvae.restoration.non_local.stage import refine_restored
from tvae.restoration.posterior_mean import Restored
from tvae.restoration.tiling import Bands

NOISE_COUNTS = 0.1  # how much the noise's variance counts against that of structure
DEPTH = 2  # times that resolution is halved
SIDE_MIN = 48  # pixels; of smaller pictures it is not
WINDOW = 5  # pixels of half resolution, along a side, in which structure is looked for


def refine_seen(
    picture: Picture,
    estimate: Callable[[], Restored],
    keep_observed: bool,
    effort: str,
    bands: Bands = Bands(),  # noqa: B008
) -> Restored:
    """Apply `refine_restored` to `picture.seen`; where noise was treated, to its slow part once more."""
    is_even = picture.page_height % 2**DEPTH == 0 or picture.n_pages == 1
    is_treated = picture.treatment is not None and bool(picture.treatment.steps)
    depth = DEPTH if is_treated and is_even and picture.seen.known is None else 0
    return _refine(picture.seen, estimate, keep_observed, effort, bands, depth)


def _refine(
    picture: Picture,
    estimate: Callable[[], Restored],
    keep_observed: bool,
    effort: str,
    bands: Bands,
    depth: int,
) -> Restored:
    """`depth`: how many times resolution is halved."""
    found = refine_restored(picture, estimate, keep_observed, effort, bands)
    if depth == 0 or min(picture.page_height, picture.noisy.shape[1]) < SIDE_MIN:
        return found
    fine = torch.from_numpy(found.pixels).permute(2, 0, 1)
    means = halved(fine)
    coarse = _as_picture(halved(torch.from_numpy(picture.noisy).permute(2, 0, 1)), picture)
    start = Restored(_as_pixels(means), np.ones_like(coarse.noisy))
    restored = _refine(coarse, lambda: start, False, effort, Bands(bands.team), depth - 1)  # keeps nothing
    change = torch.from_numpy(restored.pixels).permute(2, 0, 1) - means
    assert coarse.sigma is not None
    return replace(found, pixels=_as_pixels(fine + doubled(change * _flatness(means, coarse.sigma), fine)))


def halved(pixels: Tensor) -> Tensor:
    """(C, H, W) -> (C, H // 2, W // 2): means of 2x2 pixels."""
    return F.avg_pool2d(pixels, 2)


def doubled(change: Tensor, like: Tensor) -> Tensor:
    """(C, h, w), smoothed and interpolated, in the size of `like` (C, H, W)."""
    n_channels = len(change)
    side = change.new_tensor([0.25, 0.5, 0.25])
    kernel = torch.outer(side, side).expand(n_channels, 1, 3, 3)
    smooth = F.conv2d(F.pad(change[None], (1,) * 4, mode="replicate"), kernel, groups=n_channels)
    large = F.interpolate(smooth, scale_factor=2, mode="bilinear")
    height, width = like.shape[1:]
    return F.pad(large, (0, width - large.shape[3], 0, height - large.shape[2]), mode="replicate")[0]


def _flatness(means: Tensor, sigma: float) -> Tensor:
    """(C, h, w) in 0..1: the share of noise in noise and structure."""
    padded = F.pad(torch.stack([means, means.square()]), (WINDOW // 2,) * 4, mode="replicate")
    mean, square = F.avg_pool2d(padded, WINDOW, 1)
    noise = NOISE_COUNTS * sigma**2
    return noise / (noise + (square - mean.square()).clamp(min=0))


def _as_pixels(values: Tensor) -> np.ndarray:
    return values.permute(1, 2, 0).contiguous().numpy()


def _as_picture(values: Tensor, of: Picture) -> Picture:
    """A picture of these values; halving the resolution has halved the white noise `of` the finer one."""
    pixels = _as_pixels(values)
    low, peak = float(pixels.min()), float(np.ptp(pixels))
    image = Image(pixels, pixels.dtype, peak, low, is_bounded=False, layout=of.image.layout)
    assert of.sigma is not None
    return Picture(image, pixels, None, None, peak, sigma=of.sigma / 2)
