"""The standard deviation of white noise in a picture, from the picture alone.

Three estimates where there is hardly anything but noise: the finest diagonal details; in the flattest parts of the
picture the directions of patch space in which patches vary least (as in Pyatykh, Hesser and Zheng 2013); and the
quietest blocks, for noise is everywhere (`blocks.level_everywhere`). All are a little too high, because some of the
picture is left; the lowest one is closest.
The slab model learns it once more, from what its directions leave of all patches.

Near black and white, values that noise takes out of range are clipped, and the noise with them. Parts in which many
values are the lowest or the highest of the picture do not count.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.data.patches import extract, positions
from tvae.inference.streams import generator
from tvae.noise.blocks import level_everywhere

BLOCK = 64  # pixels along a side of the parts that are looked at
PATCH_SIZE = 7
N_DIRECTIONS = 3  # the smallest of PATCH_SIZE**2
FLATTEST = 0.1  # share of the blocks
BLOCKS_MAX = 15  # along a side
SIMULATIONS = 20
AROUND = 8  # pixels along a side: of this part of a picture it is asked whether it is clipped
CLIPPED = 0.02  # share of values that are the picture's lowest or highest; with more of them a part is clipped
LEFT_MIN = 0.03  # share of the picture that has to be left; else all of it counts


def estimate_noise(pixels: np.ndarray, missing: np.ndarray | None) -> float:
    """Noise level of an image (H, W, C): the lowest of the estimates."""
    from_details = diagonal_details(pixels, missing)
    if missing is not None:
        return from_details
    channels = [*zip(np.moveaxis(pixels, -1, 0), np.moveaxis(at_extremes(pixels), -1, 0), strict=True)]
    found = [[level_everywhere(values, ~is_extreme) for values, is_extreme in channels]]
    if min(pixels.shape[:2]) >= BLOCK:
        found.append([smallest_directions(*map(torch.from_numpy, channel)) for channel in channels])
    return min(from_details, *(float(np.mean(np.square(each))) ** 0.5 for each in found))


def diagonal_details(pixels: np.ndarray, missing: np.ndarray | None) -> float:
    """The median of the finest diagonal details of an image (H, W, C).

    (a - b - c + d) / 2 of a 2x2 block has the noise's deviation and little of the picture; the median of its absolute
    value, over 0.6745, ignores the edges that remain (Donoho and Johnstone 1994).
    """
    known = np.ones(pixels.shape, dtype=bool) if missing is None else known_values(missing, pixels.shape)
    among = pixels if missing is None else pixels[known]
    if not among.size:
        return 0.0
    extremes = among.min(), among.max()
    channels = zip(np.moveaxis(pixels, -1, 0), np.moveaxis(known, -1, 0), strict=True)  # one at a time, for memory
    found, free = zip(*(_details_of(*channel, extremes) for channel in channels), strict=True)
    details, is_free = np.concatenate(found), np.concatenate(free)
    del found
    if not details.size:
        return 0.0
    if LEFT_MIN <= is_free.mean() < 1:
        details = details[is_free]
    return float(np.median(details, overwrite_input=True)) / 2 / 0.6745


def _details_of(
    pixels: np.ndarray, known: np.ndarray, extremes: tuple[np.floating, np.floating]
) -> tuple[np.ndarray, np.ndarray]:
    """(n,) each: the details of one channel (H, W), twice as large, and which are far from what may be clipped."""
    is_whole = known[:-1, :-1] & known[:-1, 1:] & known[1:, :-1] & known[1:, 1:]
    if not is_whole.any():
        return np.empty(0), np.empty(0, dtype=bool)
    is_extreme = torch.from_numpy(np.isin(pixels, extremes))[None].double()
    around = F.avg_pool2d(is_extreme, AROUND, 1, AROUND // 2 - 1, count_include_pad=False)[0]  # (H - 1, W - 1)
    is_free = around.numpy()[is_whole] <= CLIPPED
    del is_extreme, around
    blocks = pixels[:-1, :-1] - pixels[:-1, 1:] - pixels[1:, :-1] + pixels[1:, 1:]
    return np.abs(blocks[is_whole]), is_free


def known_values(missing: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """(H, W, C) bool from a mask of pixels (H, W) or of values (H, W, C)."""
    return np.broadcast_to(~(missing if missing.ndim == 3 else missing[..., None]), shape)


def at_extremes(pixels: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """Bool of the same shape: which values are the lowest or the highest of those that are known."""
    among = pixels if known is None else pixels[known]
    return (pixels == among.min()) | (pixels == among.max())


def smallest_directions(pixels: Tensor, is_extreme: Tensor) -> float:
    """Noise level of one channel (H, W), from the smallest directions in the flattest blocks.

    It is the square root of their variance over that of unit noise; infinite if all blocks are clipped. `is_extreme`
    (H, W): where values may be clipped.
    """
    steps = [max(BLOCK // 2, (side - BLOCK) // BLOCKS_MAX) for side in pixels.shape]
    tops, lefts = (positions(side, BLOCK, step) for side, step in zip(pixels.shape, steps, strict=True))
    windows = [(slice(top, top + BLOCK), slice(left, left + BLOCK)) for top in tops for left in lefts]
    free = [window for window in windows if is_extreme[window].double().mean() <= CLIPPED]
    if not free:
        return math.inf
    found = torch.tensor([_smallest(pixels[window]) for window in free])
    rng = generator(0, "noise level")
    noise = torch.randn(SIMULATIONS, BLOCK, BLOCK, generator=rng, dtype=pixels.dtype)
    expected = torch.tensor([_smallest(block) for block in noise]).mean()
    return float((found.quantile(FLATTEST) / expected).clamp(min=0).sqrt())


def _smallest(block: Tensor) -> float:
    patches = extract(block[..., None], PATCH_SIZE, 1)
    return float(torch.linalg.eigvalsh(torch.cov(patches.T))[:N_DIRECTIONS].mean())
