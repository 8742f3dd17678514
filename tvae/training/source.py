"""Where data points come from, by index: they lie in memory, in a file, or are cut from a picture when asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Optional

import torch
from torch import Tensor

from tvae.model.units import Units

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
    is_sampled: bool = False  # too many to look at: `known_values` are those of some data points

    @abstractmethod
    def known_values(self) -> Tensor:
        """All observed values there are, to take mean and variance from; where too many, a sample."""

    @abstractmethod
    def reader(self, part: range, units: Units, device: torch.device, dtype: torch.dtype) -> Reader:
        """A reader of the data points in `part`, which it numbers from 0."""

    def n_blind(self, part: range) -> int:
        """How many of the data points in `part` have no observed value."""
        return 0


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
