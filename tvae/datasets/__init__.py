"""Data sets: what a run trains on, and how to show it.

`load` returns data in their own units. `Units` is the change to the standardised values the model sees, and back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tvae.config import BarsConfig, DatasetConfig, UserError
from tvae.model import Model


@dataclass(frozen=True)
class Dataset:
    data: Tensor  # (N, D) in the data's own units
    shape: tuple[int, ...]  # of one data point as a picture
    observed: Tensor | None = None  # (N, D) bool: which values are known; None: all
    truth: Model | None = None  # the generating parameters, where they are known


@dataclass(frozen=True)
class Units:
    """x_model = (x - mean) / std."""

    mean: float = 0.0
    std: float = 1.0

    def to_model(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def to_data(self, x: Tensor) -> Tensor:
        return x * self.std + self.mean

    def elbo_to_data(self, elbo: float, n_observed: float) -> float:
        """Densities of the data are those of the model divided by std, once for each observed value."""
        return elbo - n_observed * math.log(self.std)


def load(config: DatasetConfig) -> Dataset:
    if isinstance(config, BarsConfig):
        from tvae.datasets import bars

        dataset = bars.make(config)
    else:
        raise UserError(f"dataset.name={config.name}: no such data set")
    known = dataset.data if dataset.observed is None else dataset.data[dataset.observed]
    if not torch.isfinite(known).all():
        raise UserError(f"dataset={config.name}: the data hold NaN or infinite values")
    return dataset


def units_of(dataset: Dataset, standardise: bool) -> Units:
    """Mean and standard deviation over all observed values, or none."""
    if not standardise:
        return Units()
    known = (dataset.data if dataset.observed is None else dataset.data[dataset.observed]).double()
    std = known.std(correction=0).item()
    if std == 0:
        raise UserError("the data are constant: there is nothing to learn")
    return Units(known.mean().item(), std)
