"""The standard deviation of white noise in a picture, from the picture alone.

Two looks at where there is hardly anything but noise: the finest diagonal details, and in the flattest parts of the
picture the directions of patch space in which patches vary least (as in Pyatykh, Hesser and Zheng 2013). Both are a
little too high, for some of the picture is left; the lower one is the better one. `restore.mixture` looks once more, in
the flattest groups of patches.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tvae.core.streams import generator
from tvae.data.patches import extract, positions

BLOCK = 64  # pixels along a side of the parts that are looked at
PATCH_SIZE = 7
N_DIRECTIONS = 3  # the smallest of PATCH_SIZE**2
FLATTEST = 0.1  # share of the blocks
BLOCKS_MAX = 15  # along a side
SIMULATIONS = 20


def estimate_noise(pixels: np.ndarray, missing: np.ndarray | None) -> float:
    """Of an image (H, W, C): the lower one of what the finest details and the smallest directions say."""
    from_details = diagonal_details(pixels, missing)
    if missing is not None or min(pixels.shape[:2]) < BLOCK:
        return from_details
    variances = [smallest_directions(torch.from_numpy(channel)) ** 2 for channel in np.moveaxis(pixels, -1, 0)]
    return min(from_details, float(np.mean(variances)) ** 0.5)


def diagonal_details(pixels: np.ndarray, missing: np.ndarray | None) -> float:
    """The median of the finest diagonal details of an image (H, W, C).

    (a - b - c + d) / 2 of a 2x2 block has the noise's deviation and little of the picture; the median of its absolute
    value, over 0.6745, ignores the edges that remain (Donoho and Johnstone 1994).
    """
    blocks = pixels[:-1, :-1] - pixels[:-1, 1:] - pixels[1:, :-1] + pixels[1:, 1:]
    if missing is not None:
        known = ~(missing[:-1, :-1] | missing[:-1, 1:] | missing[1:, :-1] | missing[1:, 1:])
        blocks = blocks[known]
    return float(np.median(np.abs(blocks))) / 2 / 0.6745 if blocks.size else 0.0


def smallest_directions(pixels: Tensor) -> float:
    """Of one channel (H, W): variance in the smallest directions over that of unit noise, in the flattest blocks."""
    steps = [max(BLOCK // 2, (side - BLOCK) // BLOCKS_MAX) for side in pixels.shape]
    tops, lefts = (positions(side, BLOCK, step) for side, step in zip(pixels.shape, steps, strict=True))
    blocks = [pixels[top : top + BLOCK, left : left + BLOCK] for top in tops for left in lefts]
    found = torch.tensor([_smallest(block) for block in blocks])
    rng = generator(0, "noise level")
    noise = torch.randn(SIMULATIONS, BLOCK, BLOCK, generator=rng, dtype=pixels.dtype)
    expected = torch.tensor([_smallest(block) for block in noise]).mean()
    return float((found.quantile(FLATTEST) / expected).clamp(min=0).sqrt())


def _smallest(block: Tensor) -> float:
    patches = extract(block[..., None], PATCH_SIZE, 1)
    return float(torch.linalg.eigvalsh(torch.cov(patches.T))[:N_DIRECTIONS].mean())
