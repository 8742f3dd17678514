"""The average of overlapping patches: every pixel over all patches it is in, added up some patches at a time.

A pixel's variance takes the patches that hold it as a mixture: the average of their variances plus the variance of
their means.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.core.team import Team
from tvae.data.patches import positions


class Accumulator:
    """Sums for the mean and variance of every value of an image (H, W, C), in float64 on the CPU."""

    def __init__(self, shape: tuple[int, int, int], patch_size: int, stride: int, weights: Tensor):
        """`weights` (patch_size**2,): of a patch's pixels."""
        if stride > patch_size:
            raise ValueError(f"patches of {patch_size} pixels every {stride} do not cover the image")
        height, width, n_channels = self.shape = shape
        rows, columns = positions(height, patch_size, stride), positions(width, patch_size, stride)
        self.corners = (rows[:, None] * width + columns).flatten() * n_channels  # (N,) index of a patch's first value
        side = torch.arange(patch_size)
        pixels = (side[:, None] * width + side).flatten()  # (p * p,)
        self.within = (pixels[:, None] * n_channels + torch.arange(n_channels)).flatten()  # (D,)
        self.weights = weights.double().repeat_interleave(n_channels)  # (D,)
        n_values = height * width * n_channels
        self.sums = torch.zeros(3, n_values, dtype=torch.float64)  # of the means, their squares plus variances, weights

    def add(self, index: Tensor, mean: Tensor, variance: Tensor, certainty: Tensor | None = None) -> None:
        """Count in the patches with these numbers (B,); mean and variance (B, D); `certainty` (B,): their weights."""
        place = (self.corners[index.cpu()][:, None] + self.within).flatten()
        weights = self.weights.expand(len(index), -1)
        if certainty is not None:
            weights = weights * certainty.cpu().double()[:, None]
        for total, values in zip(self.sums[:2], (mean, variance + mean.square()), strict=True):
            total.index_add_(0, place, (values.cpu().double() * weights).flatten())
        self.sums[2].index_add_(0, place, weights.flatten())

    def merge(self, team: Team) -> None:
        """Count in what the other ranks have added."""
        team.add([self.sums])

    def result(self) -> tuple[Tensor, Tensor]:
        """(H, W, C) each: mean and variance of every pixel."""
        mean, square = (self.sums[:2] / self.sums[2]).view(2, *self.shape)
        return mean, (square - mean.square()).clamp(min=0)
