"""The average of overlapping patches: every pixel over all patches it is in, added up some patches at a time.

A pixel's variance takes the patches that hold it as a mixture: the average of their variances plus the variance of
their means.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.data.patches import positions
from tvae.training.team import Team


class Accumulator:
    """Sums for the mean and variance of every value of an image (H, W, C), in float64 on the CPU."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        patch_size: int,
        stride: int,
        weights: Tensor,
        rows: range | None = None,
    ):
        """`weights` (patch_size**2,): of a patch's pixels; `rows`: those that count, all by default."""
        if stride > patch_size:
            raise ValueError(f"patches of {patch_size} pixels every {stride} do not cover the image")
        height, width, n_channels = shape
        rows = range(height) if rows is None else rows
        self.shape = len(rows), width, n_channels
        self.rows, self.columns = (positions(side, patch_size, stride) for side in (height, width))
        self.first = rows.start * width * n_channels
        side = torch.arange(patch_size)
        pixels = (side[:, None] * width + side).flatten()  # (p * p,)
        self.within = (pixels[:, None] * n_channels + torch.arange(n_channels)).flatten()  # (D,)
        self.weights = weights.double().repeat_interleave(n_channels)  # (D,)
        self.n_values = len(rows) * width * n_channels
        # Sums of means, of squares plus variances, of weights; the first and last place take what does not count.
        self.sums = torch.zeros(3, 1 + self.n_values + 1, dtype=torch.float64)

    def add(self, index: Tensor, mean: Tensor, variance: Tensor, certainty: Tensor | None = None) -> None:
        """Count in the patches with these numbers (B,); mean and variance (B, D).

        `certainty` (B,) or (B, D): what each patch or each value of it counts.
        """
        index, (_, width, n_channels) = index.cpu(), self.shape
        corner = self.rows[index // len(self.columns)] * width + self.columns[index % len(self.columns)]
        place = (corner * n_channels - self.first)[:, None] + self.within
        place = place.clamp_(-1, self.n_values).add_(1).flatten()
        weights = self.weights.expand(len(index), -1)
        if certainty is not None:
            weights = weights * certainty.cpu().double().view(len(index), -1)
        for total, values in zip(self.sums[:2], (mean, variance + mean.square()), strict=True):
            total.index_add_(0, place, (values.cpu().double() * weights).flatten())
        self.sums[2].index_add_(0, place, weights.flatten())

    def merge(self, team: Team) -> None:
        """Count in what the other ranks have added."""
        team.add([self.sums])

    def result(self) -> Tensor:
        """(2, H, W, C): mean and variance of every pixel."""
        inside = self.sums[:, 1:-1]
        found = (inside[:2] / inside[2]).view(2, *self.shape)
        found[1].sub_(found[0].square()).clamp_(min=0)
        return found
