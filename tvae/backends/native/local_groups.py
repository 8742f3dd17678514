"""Local groups by the kernel: `restoration.non_local` in single precision, several times as fast."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tvae.backends.native.bindings import Arguments, FillingTask, LocalGroupsTask, MatchingTask
from tvae.backends.native.loading import is_available, kernel
from tvae.backends.native.threads import n_threads_for

TILE = 16  # rows and columns of reference patches that are worked on together
VALUES_AT_ONCE = 1 << 19  # of the picture, about: a call takes a second or two


@dataclass(frozen=True)
class References:
    """Reference patches, at every pair of `rows` and `columns`, and how the groups around them are found.

    `rows`, `columns` (n,) int64: where patches begin, every `step` pixels and at the last place.
    """

    rows: Tensor
    columns: Tensor
    step: int
    patch_size: int
    radius: int
    n_similar: int

    def matching_task(self, arguments: Arguments, pixels: Tensor, mix: Tensor) -> MatchingTask:
        """`pixels` (H, W, C) are compared by the sums of channels `mix` (n_planes, C)."""
        height, width, n_channels = pixels.shape
        n_multiplications = self.n_similar * self.patch_size**4 * len(self.rows) * len(self.columns)
        return MatchingTask(
            height=height,
            width=width,
            n_channels=n_channels,
            patch_size=self.patch_size,
            radius=self.radius,
            n_similar=self.n_similar,
            n_threads=n_threads_for(n_multiplications),
            n_rows=len(self.rows),
            n_columns=len(self.columns),
            n_planes=len(mix),
            tile=TILE,
            rows=arguments.tensor(self.rows),
            columns=arguments.tensor(self.columns),
            pixels=arguments.tensor(pixels),
            mix=arguments.tensor(mix),
        )


def is_usable(pixels: Tensor) -> bool:
    return pixels.dtype == torch.float32 and pixels.device.type == "cpu" and is_available()


def similar_patches(pixels: Tensor, references: References) -> Tensor:
    """(G, n_similar) numbers of patches, nearest first: the groups of all references, by all channels."""
    arguments = Arguments()
    groups = torch.empty(len(references.rows) * len(references.columns), references.n_similar, dtype=torch.int64)
    task = references.matching_task(arguments, pixels, torch.eye(pixels.shape[2], dtype=torch.float64))
    task.groups = arguments.tensor(groups)
    kernel("matching", pixels.dtype)(ctypes.byref(task))
    return groups


def tiles_apart(step: int, patch_size: int, radius: int) -> int:
    """The distance in tiles, along an axis, from which on two tiles reach no pixel in common.

    The last place of all may be nearer than `step` to the one before, down to one pixel.
    """
    return 1 + math.ceil((patch_size + 2 * radius - 1) / (TILE * step))


def refine(
    noisy: Tensor,
    pilot: Tensor,
    references: References,
    guide: Tensor,
    mix: Tensor,
    sigma2: Tensor,
    weight_floor: float,
    wanted: range,
    tell: Callable[[], None],
) -> Tensor:
    """(2, rows, W, C): mean and variance of every pixel in the rows `wanted`, in channels that `mix` makes.

    `noisy`, `pilot` (H, W, C); `mix` (C, C): the channels, each with a gain of its own, and `sigma2` (C,): variance of
    their noise; `guide` (1, C): the sum of channels that patches are compared by; `tell` is called before each part of
    the work. Parts are the same whichever rows are wanted: a band of rows has the bits of the whole picture.
    """
    arguments, (_, width, n_channels) = Arguments(), pilot.shape
    radius, n_apart = references.radius, tiles_apart(references.step, references.patch_size, references.radius)
    n_at_once = n_apart * max(1, VALUES_AT_ONCE // (n_apart * TILE * references.step * width * n_channels))
    sums = torch.zeros(n_channels, 3, len(wanted), width, dtype=torch.float64)
    task = LocalGroupsTask(
        matching=references.matching_task(arguments, pilot, guide),
        n_apart=n_apart,
        first_out_row=wanted.start,
        n_out_rows=len(wanted),
        weight_floor=weight_floor,
        noisy=arguments.tensor(noisy),
        mix=arguments.tensor(mix),
        sigma2=arguments.tensor(sigma2),
        sums=arguments.tensor(sums),
    )
    n_tile_rows = math.ceil(len(references.rows) / TILE)
    for first in range(0, n_tile_rows, n_at_once):
        last = min(first + n_at_once, n_tile_rows)
        places = references.rows[first * TILE : last * TILE]
        if places[-1] + references.patch_size + radius <= wanted.start or places[0] - radius >= wanted.stop:
            continue
        tell()
        task.first_tile_row, task.n_tile_rows = first, last - first
        kernel("local_groups", pilot.dtype)(ctypes.byref(task))
    mean, square = (sums[:, :2] / sums[:, 2:]).permute(1, 2, 3, 0)
    return torch.stack([mean, (square - mean.square()).clamp_(min=0)])


def fill(y: Tensor, observed: Tensor, pilot: Tensor, s: float) -> tuple[Tensor, Tensor]:
    """(G, n, D) each: mean and variance of every value of the groups' patches, given those observed."""
    arguments, (n_groups, n_patches, n_values) = Arguments(), y.shape
    mean, variance = torch.empty_like(y), torch.empty_like(y)
    task = FillingTask(
        n_groups=n_groups,
        n_patches=n_patches,
        n_values=n_values,
        n_threads=n_threads_for(n_groups * n_values * n_patches**3),
        s=s,
        y=arguments.tensor(y),
        pilot=arguments.tensor(pilot),
        observed=arguments.tensor(observed.view(torch.uint8)),
        mean=mean.data_ptr(),
        variance=variance.data_ptr(),
    )
    kernel("filling", y.dtype)(ctypes.byref(task))
    return mean, variance
