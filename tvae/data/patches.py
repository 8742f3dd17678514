"""Overlapping patches out of an image, and how their pixels are weighted when they are averaged back.

A patch is the vector of its pixels row by row, all channels of a pixel together. Patches are numbered row by row of
the grid of their top left corners: every `stride` pixels, and always the last position, so that every pixel is in some
patch whether or not the stride divides the image.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def positions(length: int, patch_size: int, stride: int) -> Tensor:
    """(n,) int64: where patches begin along an axis of `length` pixels."""
    if not 1 <= patch_size <= length:
        raise ValueError(f"a patch of {patch_size} pixels does not fit into {length}")
    last = length - patch_size
    regular = torch.arange(0, last + 1, stride)
    return regular if last % stride == 0 else torch.cat([regular, torch.tensor([last])])


def page_positions(height: int, n_pages: int, patch_size: int, stride: int) -> Tensor:
    """(n,) int64: the rows in which patches begin where pages stand one above the other; none is on two pages."""
    page = height // n_pages
    return (torch.arange(n_pages)[:, None] * page + positions(page, patch_size, stride)).flatten()


def windows(image: Tensor, patch_size: int) -> Tensor:
    """(H, W, C) -> (H', W', p, p, C): every patch by its top left corner; a view."""
    return image.unfold(0, patch_size, 1).unfold(1, patch_size, 1).permute(0, 1, 3, 4, 2)


def extract(image: Tensor, patch_size: int, stride: int, n_pages: int = 1) -> Tensor:
    """(H, W, C) -> (N, patch_size**2 * C): all patches of the grid, page by page, of any dtype."""
    rows = page_positions(image.shape[0], n_pages, patch_size, stride).to(image.device)
    columns = positions(image.shape[1], patch_size, stride).to(image.device)
    patches = windows(image, patch_size)[rows[:, None], columns]  # (rows, columns, p, p, C)
    return patches.reshape(len(rows) * len(columns), -1)


def take(image: Tensor, patch_size: int, index: Tensor) -> Tensor:
    """(H, W, C), (...) -> (..., patch_size**2 * C): patches by their numbers at stride 1, as few as needed."""
    n_columns = image.shape[1] - patch_size + 1
    return windows(image, patch_size)[index // n_columns, index % n_columns].flatten(index.dim())


def nearest(shape: tuple[int, ...], patch_size: int, stride_from: int, stride_to: int) -> tuple[Tensor, Tensor]:
    """Terms, for rows and columns of the grid of `stride_to`, whose sum is the number of the closest patch of another.

    That of `stride_from`; of two that are equally close, the upper or left one. `shape` (H, W, ...): of the image.
    """

    def closest(length: int) -> Tensor:
        source = positions(length, patch_size, stride_from)
        halfway = (source[:-1] + source[1:]) / 2
        return torch.searchsorted(halfway, positions(length, patch_size, stride_to).to(halfway))

    n_columns = len(positions(shape[1], patch_size, stride_from))
    return closest(shape[0]) * n_columns, closest(shape[1])


def uniform_weights(patch_size: int) -> Tensor:
    return torch.ones(patch_size**2, dtype=torch.float64)


def gaussian_weights(patch_size: int) -> Tensor:
    """A Gaussian around the centre, with a quarter of the patch as deviation."""
    distance = torch.arange(patch_size, dtype=torch.float64) - (patch_size - 1) / 2
    side = torch.exp(-0.5 * (distance / (patch_size / 4)) ** 2)
    return torch.outer(side, side).flatten()


# (patch_size**2,) float64, above zero: how much a patch's estimate counts at each of its pixels
AVERAGES: dict[str, Callable[[int], Tensor]] = {"uniform": uniform_weights, "gaussian": gaussian_weights}
