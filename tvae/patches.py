"""Overlapping patches out of an image, and their weighted average back.

A patch is the vector of its pixels row by row, all channels of a pixel together. Patches are numbered row by row of
the grid of their top left corners: every `stride` pixels, and always the last position, so that every pixel is in some
patch whether or not the stride divides the image.
"""

from __future__ import annotations

import torch
from torch import Tensor

AVERAGES = ("uniform", "gaussian")
CHUNK_VALUES = 1 << 21  # values averaged at once; an index is 8 bytes each


def positions(length: int, patch_size: int, stride: int) -> Tensor:
    """(n,) int64: where patches begin along an axis of `length` pixels."""
    if not 1 <= patch_size <= length:
        raise ValueError(f"a patch of {patch_size} pixels does not fit into {length}")
    last = length - patch_size
    regular = torch.arange(0, last + 1, stride)
    return regular if last % stride == 0 else torch.cat([regular, torch.tensor([last])])


def extract(image: Tensor, patch_size: int, stride: int) -> Tensor:
    """(H, W, C) -> (N, patch_size**2 * C): all patches of the grid, of any dtype."""
    rows = positions(image.shape[0], patch_size, stride).to(image.device)
    columns = positions(image.shape[1], patch_size, stride).to(image.device)
    windows = image.unfold(0, patch_size, 1).unfold(1, patch_size, 1)  # a view (H', W', C, p, p)
    patches = windows.permute(0, 1, 3, 4, 2)[rows[:, None], columns]  # (rows, columns, p, p, C)
    return patches.reshape(len(rows) * len(columns), -1)


def average(patches: Tensor, shape: tuple[int, int, int], patch_size: int, stride: int, weights: Tensor) -> Tensor:
    """(N, D) -> (H, W, C): each pixel's average over all patches it is in.

    `shape`: of the image; `weights` (patch_size**2,), above zero: how much a patch's estimate counts at each of its
    pixels.
    """
    if stride > patch_size:
        raise ValueError(f"patches of {patch_size} pixels every {stride} do not cover the image")
    height, width, n_channels = shape
    device = patches.device
    rows, columns = positions(height, patch_size, stride), positions(width, patch_size, stride)
    corners = (rows[:, None] * width + columns).flatten().to(device) * n_channels  # (N,) index of a patch's first value
    side = torch.arange(patch_size)
    pixels = (side[:, None] * width + side).flatten()  # (p * p,)
    within = (pixels[:, None] * n_channels + torch.arange(n_channels)).flatten().to(device)  # (D,)
    weights = weights.to(patches).repeat_interleave(n_channels)  # (D,)
    total = patches.new_zeros(height * width * n_channels)
    norm = torch.zeros_like(total)
    n_rows = max(1, CHUNK_VALUES // len(within))
    for corner, patch in zip(corners.split(n_rows), patches.split(n_rows), strict=True):
        index = (corner[:, None] + within).flatten()
        total.index_add_(0, index, (patch * weights).flatten())
        norm.index_add_(0, index, weights.repeat(len(patch)))
    return (total / norm).view(shape)


def patch_weights(kind: str, patch_size: int) -> Tensor:
    """(patch_size**2,) float64: `uniform`, or `gaussian` around the centre with a quarter of the patch as deviation."""
    if kind == "uniform":
        return torch.ones(patch_size**2, dtype=torch.float64)
    if kind == "gaussian":
        distance = torch.arange(patch_size, dtype=torch.float64) - (patch_size - 1) / 2
        side = torch.exp(-0.5 * (distance / (patch_size / 4)) ** 2)
        return torch.outer(side, side).flatten()
    raise ValueError(f"{kind}: must be one of {', '.join(AVERAGES)}")


def nearest(shape: tuple[int, ...], patch_size: int, stride_from: int, stride_to: int) -> Tensor:
    """(N_to,) int64: for each patch of the grid of `stride_to`, the number of the closest one of `stride_from`.

    Of two that are equally close, the upper or left one. `shape` (H, W, ...): of the image.
    """

    def closest(length: int) -> Tensor:
        source = positions(length, patch_size, stride_from)
        halfway = (source[:-1] + source[1:]) / 2
        return torch.searchsorted(halfway, positions(length, patch_size, stride_to).to(halfway))

    rows, columns = closest(shape[0]), closest(shape[1])
    return (rows[:, None] * len(positions(shape[1], patch_size, stride_from)) + columns).flatten()
