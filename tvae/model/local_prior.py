"""A prior that follows the neighbourhood: where the patches around use a latent, it costs little to use it, too.

    p(z_n) = prod_h Bern(z_h; pi_h(c)),      pi(c) = (1 - MIX) smoothed(c) + MIX pi

c is the cell of the picture that patch n begins in, `smoothed` the average of q over the patches around that cell,
weighted by a Gaussian of REACH pixels, and pi the average over all. pi(c) are parameters like any others: the bound is
that of the model with these priors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tvae.errors import UserError
from tvae.model.packed import unpack
from tvae.model.parts import Places, Start, Visited
from tvae.model.prior import PI_MIN, Bernoulli

REACH = 12.0  # pixels (docs/quality.md)
MIX = 0.1  # share of the global prior
CELL = 4  # pixels along a side
VALUES_MAX = 1 << 24  # cells times latents; cells of larger pictures are larger


class Local(Bernoulli):
    """pi(c) (cells, H) beside the global pi (H,)."""

    name = "local"
    per_point = ("local",)
    local: Tensor
    cells: Tensor | None  # (N,) int64: the cell of each data point, where the data are at hand

    def __init__(self, pi: Tensor, local: Tensor):
        super().__init__(pi)
        self.register_buffer("local", local)
        self.grid, self.side, self.cells = (1, 1, 1), CELL, None

    @classmethod
    def start(cls, start: Start) -> Local:
        if start.places is None:
            raise UserError("model.prior=local: the data are not patches of a picture, so they have no neighbourhood")
        pi = Bernoulli.start(start).pi
        grid, side = _grid(start.places, len(pi))
        found = cls(pi, pi.expand(math.prod(grid), -1).clone())
        found.grid, found.side = grid, side
        page, row, column = start.places.at
        found.cells = (page * grid[1] + row // side) * grid[2] + column // side
        return found

    def logits(self, index: Tensor | None = None) -> Tensor:
        if index is None or self.cells is None:
            return torch.logit(self.pi)
        return torch.logit(self.local[self.cells.to(self.local.device)[index]])

    def log_prob(self, z: Tensor, index: Tensor | None = None) -> Tensor:
        if index is None or self.cells is None:
            return super().log_prob(z)
        return super(Bernoulli, self).log_prob(z, index)

    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"active": tuple(self.local.shape), "n_in_cell": (len(self.local),)}

    def add_statistics(self, sums: dict[str, Tensor], batch: Visited) -> None:
        assert batch.index is not None
        assert self.cells is not None
        rows, cell = batch.rows, self.cells.to(sums["active"].device)[batch.index]
        z = unpack(rows.packed, len(self.pi), rows.weight.dtype) * rows.weight[:, None]
        sums["active"].index_add_(0, cell[rows.point], z.to(sums["active"].dtype))
        sums["n_in_cell"].index_add_(0, cell, torch.ones_like(cell, dtype=sums["n_in_cell"].dtype))

    @torch.no_grad()
    def update(self, sums: dict[str, Tensor]) -> None:
        active, count = sums["active"], sums["n_in_cell"]
        self.pi.copy_((active.sum(0) / sums["n_points"]).clamp(PI_MIN, 1 - PI_MIN))
        total = _blurred(torch.cat([active, count[:, None]], 1).view(*self.grid, -1), REACH / self.side)
        smoothed = (total[..., :-1] / total[..., -1:].clamp(min=1e-9)).flatten(0, 2)
        self.local.copy_(((1 - MIX) * smoothed + MIX * self.pi.to(smoothed.dtype)).clamp(PI_MIN, 1 - PI_MIN))

    def spec(self) -> dict[str, Any]:
        return {"prior": self.name}

    def problem(self, state: dict[str, Tensor]) -> str | None:
        is_within = all(bool(((value > 0) & (value < 1)).all()) for value in state.values())
        return None if is_within else "pi beyond 0 and 1"


def _grid(places: Places, n_latents: int) -> tuple[tuple[int, int, int], int]:
    """Pages, rows and columns of cells, and the pixels along the side of a cell."""
    side = CELL
    while True:
        grid = (places.shape[0], -(-places.shape[1] // side), -(-places.shape[2] // side))
        if math.prod(grid) * n_latents <= VALUES_MAX:
            return grid, side
        side += 1


def _blurred(values: Tensor, deviation: float) -> Tensor:
    """(pages, rows, columns, K), blurred by a Gaussian within each page; what is outside counts nothing."""
    reach = max(1, math.ceil(2.5 * deviation))
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / deviation) ** 2)
    weights = (kernel / kernel.sum()).tolist()
    for axis in (1, 2):  # by sums of shifted copies: a convolution of this shape is many times slower
        length, found = values.shape[axis], torch.zeros_like(values)
        for shift, weight in enumerate(weights, -reach):
            n = length - abs(shift)
            if n > 0:
                found.narrow(axis, max(0, -shift), n).add_(values.narrow(axis, max(0, shift), n), alpha=weight)
        values = found
    return values
