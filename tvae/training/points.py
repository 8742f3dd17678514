"""The data points of one rank and their states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tvae.inference.states import StatesConfig, init_states, put_rows
from tvae.inference.streams import generator
from tvae.model.units import Units
from tvae.training.source import Batch, Reader, Source
from tvae.training.team import Team

PART_BYTES = 1 << 27  # of states handed out at once, for saving


class StateSets:
    """(N, S, ceil(H/8)) uint8: the sets of N data points, in memory. `data.mapped` has them in a file."""

    def __init__(self, shape: tuple[int, ...]):
        self.tensor = torch.empty(shape, dtype=torch.uint8)

    def take(self, index: Tensor) -> Tensor:
        return self.tensor.index_select(0, index)

    def put(self, index: Tensor, packed: Tensor) -> None:
        put_rows(self.tensor, index, packed)

    def release(self) -> None:
        """Drop what is in memory of a file."""


class Points:
    """This rank's part of a source, with states drawn from the prior."""

    def __init__(
        self,
        source: Source,
        team: Team,
        units: Units,
        device: torch.device,
        dtype: torch.dtype,
        make_sets: Callable[[tuple[int, ...]], StateSets] = StateSets,
    ):
        self.n_points, self.n_values, self.is_masked = source.n_points, source.n_values, source.is_masked
        self.is_sampled = source.is_sampled
        self.own = team.part(self.n_points)  # the numbers of this rank's
        self.reader: Reader = source.reader(self.own, units, device, dtype)
        self.device, self._make_sets = device, make_sets

    def draw_states(self, pi: Tensor, options: StatesConfig, seed: int) -> None:
        """S distinct states from the prior `pi` (H,) for each data point, or one set for all."""

        def rng(first: int) -> torch.Generator:
            return generator(seed, "states", *([first] if first else []))

        self.sets = self._make_sets((len(self.own), options.n_states, math.ceil(len(pi) / 8)))
        init_states(self.sets.tensor, pi, options.shared, rng, self.own.start, self.n_points, self.sets.release)
        self.sets.tensor = self.sets.tensor.to(self.device)

    def rows(self, index: Tensor) -> Batch:
        """Data points as the model sees them, by their place among this rank's."""
        return self.reader.take(index)

    def parts(self) -> Iterator[Tensor]:
        """The states, some at a time, so that a part fits into memory where all of them do not."""
        n_rows = max(1, PART_BYTES // max(1, self.sets.tensor[:1].numel()))
        for states in self.sets.tensor.split(n_rows):
            yield states
            self.sets.release()
