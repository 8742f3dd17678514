"""What binary states leave over: Gaussian residuals in groups of patches, over the whole picture and then locally.

    p(x | z) = N(x; mu(z), sigma2 I + C(z)),        C(z) the same for all states of a group

The restoration by binary states is the first estimate. Its patches fall into groups, each of which gets a mean and a
covariance of its own by EM on the noisy patches (`mixture`). The picture that follows says which patches are alike;
every local group of these is then a Gaussian of its own (`local_groups`). Results for several patch sizes are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tvae.core.streams import generator
from tvae.core.units import Units
from tvae.data.noise_level import CLIPPED, estimate_noise
from tvae.data.patches import extract, uniform_weights, windows
from tvae.data.picture import Picture
from tvae.restore.averaging import Accumulator
from tvae.restore.bands import Band, Bands, chunks, overlapping
from tvae.restore.completion import complete_pixels
from tvae.restore.local_filling import fill_locally
from tvae.restore.local_groups import refine
from tvae.restore.mixture import CHUNK, Mixture, cluster, fit_mixture, sums_of_groups
from tvae.restore.restoration import Restored, kept
from tvae.restore.similar import similar_patches
from tvae.restore.smoothness import smoothest

# The two stated deviations err in opposite directions: that of local groups is too small, for the groups were chosen on
# the picture itself; that of the mixture too large, for the errors of overlapping patches average out. Their geometric
# mean, times this, is calibrated on the development pictures (docs/quality.md). Where everything is flat, local groups
# would take themselves for certain, so that theirs is no less than a share of the noise.
CALIBRATION = 1.1
LEAST = 0.05
N_GROUPS, N_FILL_GROUPS = 200, 100  # of the mixtures, without and with missing pixels
MUCH_NOISE = 35.0  # deviation in grey levels of 0..255
SIDE_MIN = 16  # pixels; smaller pictures have too few patches for a covariance
SIZE_FOR_LITTLE_NOISE, SIZE_FOR_MUCH_NOISE = 8, 10  # pixels along a side of the mixture's patches
LARGER_GROUPS = 1.4
N_FITTED = 300_000  # patches, about; of more than that the mixture is fitted to every so many pixels
N_DENSE = 4_000_000  # pixels; of larger pictures the mixture takes every second patch (docs/pictures.md)
N_PER_GROUP = 100  # patches, at least, on average
FILL_SIZE, FILL_SIZE_OF_COLOUR = 8, 5  # pixels along a side of the patches that missing pixels are filled in by
SIGMA_OF_KNOWN = 1 / 255  # of the peak: deviation of pixels that are taken for exact
SIGMA_MIN = 1e-4  # of the peak; less noise than that is taken for none


@dataclass(frozen=True)
class Refinement:
    """How much is done."""

    n_rounds: int = 3  # of EM
    local: tuple[tuple[int, int], ...] = ((5, 45), (6, 60), (8, 90))  # patch size and group size, averaged
    is_repeated: bool = False  # local groups once more, found on the picture that they gave
    step: int = 3  # pixels between the patches that groups are formed around
    radius: int = 15  # pixels: how far away alike patches are looked for
    n_fill_rounds: int = 3  # of EM, where pixels are missing
    n_fill_passes: int = 8  # of filling from local groups, each on the result of the one before
    fill_size: int = 5  # pixels along a side of their patches
    n_fill_similar: int = 30  # patches of such a group


REFINEMENTS = {
    "fast": Refinement(n_rounds=2, local=((6, 60),), n_fill_rounds=2, n_fill_passes=2),
    "default": Refinement(),
    "best": Refinement(n_rounds=4, is_repeated=True, step=2, n_fill_rounds=5, n_fill_passes=16),
}


def patch_size_for(sigma: float, peak: float) -> int:
    """Of the mixture: more noise takes larger patches."""
    return SIZE_FOR_MUCH_NOISE if sigma * 255 / peak > MUCH_NOISE else SIZE_FOR_LITTLE_NOISE


def refine_restored(
    picture: Picture,
    first: Restored,
    keep_observed: bool,
    effort: str,
    seed: int,
    bands: Bands = Bands(),  # noqa: B008
) -> Restored:
    """A picture refined. To be called on all ranks, which share the bands out. Very small ones stay as they are."""
    if min(picture.page_height, picture.noisy.shape[1]) < SIDE_MIN:
        return first
    known = np.ones(picture.noisy.shape, dtype=bool) if picture.known is None else picture.known
    units = Units(float(picture.noisy[known].mean()), picture.grey_range)
    noisy, pilot = (units.to_model(torch.from_numpy(each)).float() for each in (picture.noisy, first.pixels))
    plan, rng = REFINEMENTS[effort], generator(seed, "groups")
    sigma = max(estimate_noise(picture.noisy, picture.missing) / units.std, SIGMA_MIN)
    if picture.missing is None:
        size = min(patch_size_for(sigma, 1.0), picture.page_height, noisy.shape[1])
        found, sigma = refine_pixels(noisy, pilot, sigma, size, plan, rng, picture.n_pages, bands)
    else:
        sigma = SIGMA_OF_KNOWN if keep_observed else max(sigma, SIGMA_OF_KNOWN)
        found = fill_pixels(noisy, torch.tensor(known), pilot, sigma, plan, rng, picture.n_pages, bands)
    pixels, uncertainty = found.numpy()
    pixels *= units.std
    pixels += units.mean
    uncertainty *= units.std
    if keep_observed and picture.missing is not None:
        return kept(Restored(pixels, uncertainty), picture)
    return Restored(pixels, uncertainty, units.std * sigma)


def fill_pixels(
    y: Tensor,
    known: Tensor,
    pilot: Tensor,
    sigma: float,
    plan: Refinement,
    rng: torch.Generator,
    n_pages: int,
    bands: Bands,
) -> Tensor:
    """(2, H, W, C): mean and deviation of every pixel, where some are missing."""
    height = y.shape[0] // n_pages
    size = min(FILL_SIZE if y.shape[2] == 1 else FILL_SIZE_OF_COLOUR, height, y.shape[1])
    n_patches = (height - size + 1) * (y.shape[1] - size + 1) * n_pages
    n_groups = max(1, min(N_FILL_GROUPS, n_patches // N_PER_GROUP))
    if sigma <= SIGMA_OF_KNOWN:
        pages = (each.chunk(n_pages) for each in (y, known, pilot))
        pilot = torch.cat([smoothest(*page) for page in zip(*pages, strict=True)])
    found = complete_pixels(y, known, pilot, sigma**2, size, n_groups, plan.n_fill_rounds, rng, n_pages, bands)
    variance = found[1].clone()
    size, n_similar = min(plan.fill_size, height, y.shape[1]), plan.n_fill_similar

    def of_band(band: Band) -> Tensor:
        images = y[band.page], known[band.page], pilot[band.page]
        groups = similar_patches(images[2], size, plan.step, plan.radius, n_similar, band.rows)
        return fill_locally(*images, groups, size, sigma**2, band.rows)

    for i in range(plan.n_fill_passes):
        pilot = (torch.where(known, y, found[0]) if sigma <= SIGMA_OF_KNOWN else found[0]).to(y.dtype)
        bands.fill(f"filled again {i}", found, n_pages, of_band)
    found[1] = deviation_of_filled(found[1], variance) if sigma <= SIGMA_OF_KNOWN else (found[1] * variance).pow(0.25)
    return found


def deviation_of_filled(local: Tensor, variance: Tensor) -> Tensor:
    """From the variance that local groups state, and that of the mixture. The larger, the more local groups understate.

    The powers are those with the best calibration on development pictures (docs/quality.md).
    """
    level = 1 / 255  # grey values are whole
    variance = (local / level**2).pow(1.2) * (variance / level**2).pow(0.1) + 0.25
    return level * variance.sqrt()


def refine_pixels(
    y: Tensor,
    pilot: Tensor,
    sigma: float,
    patch_size: int,
    plan: Refinement,
    rng: torch.Generator,
    n_pages: int,
    bands: Bands,
) -> tuple[Tensor, float]:
    """(2, H, W, C): mean and deviation of every pixel; and the deviation of the noise as found on the way.

    `y`, `pilot` (H, W, C): the picture and its first estimate; `sigma`: a guess of the noise.
    """
    bands.watch("fit", 0.0)
    mixture = mixture_of(y, pilot, sigma**2, patch_size, plan, rng, n_pages)
    sigma2, stride = mixture.sigma2, stride_for(y)
    wide = torch.zeros(2, *y.shape)
    bands.fill("mixture", wide, n_pages, lambda band: by_mixture(y[band.page], mixture, patch_size, band.rows, stride))
    pilot, variance = wide
    found = torch.zeros(2, *y.shape, dtype=torch.float64)

    def of_band(band: Band) -> Tensor:
        return by_local_groups(y[band.page], pilot[band.page], sigma2, patch_size, plan, band.rows, bands.within)

    bands.fill("local", found, n_pages, of_band)
    if plan.is_repeated:
        again = torch.zeros_like(found)
        pilot = (found[0].float() + pilot) / 2
        bands.fill("again", again, n_pages, of_band)
        found[0] = (found[0] + again[0]) / 2
    found[1].clamp_(min=LEAST**2 * sigma2).mul_(variance).pow_(0.25).mul_(CALIBRATION)
    return found, sigma2**0.5


def stride_for(y: Tensor) -> int:
    """Between the patches of a large picture's mixture, the pilot of the local groups: every second will do."""
    return 1 if y.shape[0] * y.shape[1] <= N_DENSE else 2


def mixture_of(
    y: Tensor, pilot: Tensor, sigma2: float, patch_size: int, plan: Refinement, rng: torch.Generator, n_pages: int
) -> Mixture:
    """Fitted to patches of y, from groups of the pilot's; too many are thinned out."""
    height, width, _ = y.shape
    n_places = (height // n_pages - patch_size + 1) * (width - patch_size + 1) * n_pages
    stride = math.ceil((n_places / N_FITTED) ** 0.5)
    first = extract(pilot, patch_size, stride, n_pages)
    n_groups = max(1, min(N_GROUPS, len(first) // N_PER_GROUP))
    group = cluster(first, n_groups, rng)
    del first
    patches = extract(y, patch_size, stride, n_pages)
    sums = sums_of_groups(patches, group, n_groups)
    low, high = y.min(), y.max()
    is_free = torch.cat([((x == low) | (x == high)).float().mean(1) <= CLIPPED for x in patches.split(CHUNK)])
    of_free = sums if is_free.all() else sums_of_groups(patches[is_free], group[is_free], n_groups)
    sigma2 = min(sigma2, of_free.noise_variance(sigma2))
    return fit_mixture(patches, sums, sigma2, plan.n_rounds)


def by_mixture(y: Tensor, mixture: Mixture, patch_size: int, rows: range, stride: int = 1) -> Tensor:
    """(2, rows, W, C): mean and variance of the pixels in some rows of a page, from patches every `stride` pixels."""
    height, width, n_channels = y.shape
    averages = Accumulator((height, width, n_channels), patch_size, stride, uniform_weights(patch_size), rows)
    n_columns, reach = len(averages.columns), overlapping(averages.rows, patch_size, rows)
    wanted = range(reach.start * n_columns, reach.stop * n_columns)
    for index in chunks(wanted, CHUNK, len(averages.rows) * n_columns):
        place = averages.rows[index // n_columns], averages.columns[index % n_columns]
        averages.add(index, *mixture.moments(windows(y, patch_size)[place].flatten(1)))
    return averages.result()


def by_local_groups(
    y: Tensor,
    pilot: Tensor,
    sigma2: float,
    patch_size: int,
    plan: Refinement,
    rows: range,
    tell: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """(2, rows, W, C): mean and variance under Gaussians of local groups of patches that are alike in the pilot.

    Average over the patch sizes of the plan; where the mixture has large patches, for much noise, groups are larger.
    """
    growth = LARGER_GROUPS if patch_size > SIZE_FOR_LITTLE_NOISE else 1.0
    found = []
    for side, n_similar in plan.local:
        size = min(side, *y.shape[:2])
        groups = similar_patches(pilot, size, plan.step, plan.radius, round(growth * n_similar), rows)
        found.append(refine(y, pilot, groups, size, sigma2, rows))
        tell(len(found) / len(plan.local))
    return torch.stack(found).mean(0)
