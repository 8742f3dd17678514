"""The data points of one rank and their states: in memory, or in files where they do not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from tvae.checkpoint import Part, copy_rows
from tvae.config import Config
from tvae.datasets import Units
from tvae.mapped import Files, Mapped
from tvae.ranks import Ranks
from tvae.states import init_states
from tvae.streams import generator

STATES = "states.{}.bin"  # the file of a rank's states, where they do not fit into memory
PART_BYTES = 1 << 27  # of states, in one part of a checkpoint


class Points:
    def __init__(
        self,
        config: Config,
        ranks: Ranks,
        device: torch.device,
        units: Units,
        pi: Tensor,
        data: Tensor,
        observed: Tensor | None = None,
        file: Mapped | None = None,
        folder: Path | None = None,
    ):
        """This rank's part of `data` (N, D), in their own units, and of `observed` (N, D); states from the prior `pi`.

        `file`: what `data` are read from, row by row as needed. `folder`: where the states are to be in a file.
        """
        self.config, self.device, self.units = config, device, units
        self.dtype: torch.dtype = getattr(torch, config.precision)
        self.n_points = len(data)  # of all ranks
        self.own = ranks.part(self.n_points)  # the numbers of this rank's
        self.files = Files(file)
        self.is_read_by_need = file is not None
        own = slice(self.own.start, self.own.stop)
        if self.is_read_by_need:
            self.data, self.observed = data[own], None  # in their own units
        else:
            self.data, self.observed = self.to_model(data[own], None if observed is None else observed[own])
        self.states = self._draw_states(pi, None if folder is None else folder / STATES.format(ranks.rank)).to(device)

    def _draw_states(self, pi: Tensor, path: Path | None) -> Tensor:
        """(N, S, ceil(H/8)) uint8, in memory or in a file."""
        shape = (len(self.own), self.config.states.n_states, math.ceil(len(pi) / 8))
        states = torch.empty(shape, dtype=torch.uint8) if path is None else self.files.create(path, shape)
        shared, first = self.config.states.shared, self.own.start
        init_states(states, pi, shared, self._rng, first, self.n_points, self.files.release)
        return states

    def _rng(self, first: int) -> torch.Generator:
        """For initial states of the data points from `first` on."""
        return generator(self.config.seed, "states", *([first] if first else []))

    def to_model(self, data: Tensor, observed: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Data in their own units as the model sees them, zero where they are not observed."""
        x = self.units.to_model(data).to(self.device, self.dtype)
        if observed is None:
            return x, None
        observed = observed.to(self.device)
        return x.where(observed, 0), observed

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Data points as the model sees them, by their place among this rank's."""
        if self.is_read_by_need:
            return self.to_model(self.files.take(self.data, index.cpu()).to(self.dtype), None)
        return self.data[index], None if self.observed is None else self.observed[index]

    def take_states(self, index: Tensor) -> Tensor:
        """(B, S, ceil(H/8)): those of some data points, by their place among this rank's."""
        return self.files.take(self.states, index)

    def put_states(self, index: Tensor, packed: Tensor) -> None:
        """Replace what `take_states` gives."""
        self.files.put(self.states, index, packed)

    def parts(self, name: str) -> Iterator[dict[str, Tensor]]:
        """The states, some at a time, so that a part fits into memory where all of them do not."""
        n_rows = max(1, PART_BYTES // max(1, self.states[:1].numel()))
        for states in self.states.split(n_rows):
            yield {name: states}
            self.files.release()

    def load_states(self, parts: list[Part], name: str) -> None:
        """From what `parts` has given, on any number of ranks."""
        copy_rows(parts, name, self.states, self.own.start, self.files.release)
