"""Data points by index, and their states.

A `Source` has the data: they lie in memory, in a file, or are cut from a picture when asked for. `Points` are those of
one rank with their states.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Optional

import torch
from torch import Tensor

from tvae.inference.states import StatesConfig, init_states, put_rows
from tvae.inference.streams import generator
from tvae.model.covariance import Whitening
from tvae.model.parts import Places
from tvae.model.units import Units
from tvae.training.team import Team

PART_BYTES = 1 << 27  # of states handed out at once, for saving

Batch = tuple[Tensor, Optional[Tensor]]  # x (B, D), and observed (B, D) bool, None where all is observed


class Reader(ABC):
    """Data points as a model sees them: standardised, on its device, zero where they are not observed."""

    @abstractmethod
    def take(self, index: Tensor) -> Batch:
        """The data points with these numbers (B,)."""


class Source(ABC):
    """N data points of D values, in their own units."""

    n_points: int
    n_values: int  # D
    is_masked: bool = False  # some values are not observed
    log_volume: float = 0.0  # log |dx / dy| of a data point x, made of values y, apart from its units
    whitening: Whitening | None = None  # by which x is made from data whose noise is correlated
    is_sampled: bool = False  # too many to look at: `known_values` are those of some data points

    @abstractmethod
    def known_values(self) -> Tensor:
        """All observed values, for mean and variance; a sample where there are too many."""

    @abstractmethod
    def reader(self, part: range, units: Units, device: torch.device, dtype: torch.dtype) -> Reader:
        """A reader of the data points in `part`, which it numbers from 0."""

    def n_blind(self, part: range) -> int:
        """The number of data points in `part` without an observed value."""
        return 0

    def completed(self) -> Source:
        """The same data points with a first guess of every missing value."""
        return self

    def places(self) -> Places | None:
        """The positions of patches of a picture; None: the data have no neighbourhood."""
        return None


class InMemory(Source):
    """A tensor (N, D), and where values are missing `observed` (N, D) bool."""

    def __init__(self, data: Tensor, observed: Tensor | None = None):
        self.data, self.observed = data, observed
        self.n_points, self.n_values = data.shape
        self.is_masked = observed is not None

    def known_values(self) -> Tensor:
        return self.data if self.observed is None else self.data[self.observed]

    def reader(self, part: range, units: Units, device: torch.device, dtype: torch.dtype) -> Reader:
        own = slice(part.start, part.stop)
        observed = None if self.observed is None else self.observed[own].to(device)
        return TensorReader(to_model(self.data[own], observed, units, device, dtype), observed)

    def n_blind(self, part: range) -> int:
        return 0 if self.observed is None else int((~self.observed[part.start : part.stop].any(1)).sum())

    def completed(self) -> Source:
        """The same data points with missing values at the mean of their dimension."""
        if self.observed is None:
            return self
        known = self.observed.to(self.data.dtype)
        mean = (self.data * known).sum(0) / known.sum(0).clamp(min=1)
        return InMemory(torch.where(self.observed, self.data, mean))


class TensorReader(Reader):
    def __init__(self, x: Tensor, observed: Tensor | None):
        self.x, self.observed = x, observed

    def take(self, index: Tensor) -> Batch:
        return self.x[index], None if self.observed is None else self.observed[index]


def to_model(x: Tensor, observed: Tensor | None, units: Units, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Values in their own units as a model sees them, zero where they are not observed."""
    standardised = units.to_model(x).to(device, dtype)
    return standardised if observed is None else standardised.where(observed.to(device), 0)


def units_of(source: Source, standardise: bool) -> Units:
    """Mean and standard deviation over all observed values, or none."""
    if not standardise:
        return Units()
    known = source.known_values().double()
    std = known.std(correction=0).item()
    return Units(known.mean().item(), std)


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
        self.is_sampled, self.log_volume = source.is_sampled, source.log_volume
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
