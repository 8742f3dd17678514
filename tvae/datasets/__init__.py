"""Data sets: what a run trains on, and how to show it.

`load` returns data in their own units. `Units` is the change to the standardised values the model sees, and back.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tvae.config import ArrayConfig, BarsConfig, Config, ImageConfig, NaturalConfig, UserError
from tvae.images import Image
from tvae.mapped import ROWS_BETWEEN, Mapped
from tvae.model import Model
from tvae.whitening import Whitening

ROWS_SEEN = 1 << 16


@dataclass(frozen=True, eq=False)
class Picture:
    """An image to be restored, in its own units, and what is known about it."""

    image: Image  # as read: how a result is to be written
    noisy: np.ndarray  # (H, W, C) float64: what the patches are from; 0 where missing
    clean: np.ndarray | None  # (H, W, C) float64, where it is known
    missing: np.ndarray | None  # (H, W) bool; None: nothing is missing
    peak: float  # for PSNR and SSIM


@dataclass(frozen=True)
class Dataset:
    data: Tensor  # (N, D) in the data's own units
    shape: tuple[int, ...]  # of one data point as a picture
    observed: Tensor | None = None  # (N, D) bool: which values are known; None: all
    truth: Model | None = None  # the generating parameters, where they are known
    picture: Picture | None = None  # the image the data are patches of
    held_out: Tensor | None = None  # (n_test, D): data that nothing is learned from
    whitening: Whitening | None = None  # what was done to the data, to show them as they were
    made_of: str | None = None  # a hash of what the data were made from, where they themselves may differ by rounding
    file: Mapped | None = None  # the file that `data` lies in, where it is read as it is needed

    def fingerprint(self) -> str:
        """A hash of what is trained on, so that a run notices when a file has changed under its name."""
        if self.made_of is not None:
            return self.made_of
        parts = [self.data] if self.picture is None else [self.picture.noisy, self.picture.missing]
        digest = hashlib.sha256()
        for part in parts:
            if part is not None:
                digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Units:
    """x_model = (x - mean) / std."""

    mean: float = 0.0
    std: float = 1.0

    def to_model(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def to_data(self, x: Any) -> Any:
        return x * self.std + self.mean

    def elbo_to_data(self, elbo: float, n_observed: float) -> float:
        """Densities of the data are those of the model divided by std, once for each observed value."""
        return elbo - n_observed * math.log(self.std)


def load(config: Config) -> Dataset:
    if isinstance(config.dataset, BarsConfig):
        from tvae.datasets import bars

        dataset = bars.make(config.dataset)
    elif isinstance(config.dataset, NaturalConfig):
        from tvae.datasets import natural

        dataset = natural.make(config)
    elif isinstance(config.dataset, ArrayConfig):
        from tvae.datasets import array

        dataset = array.make(config.dataset)
    elif isinstance(config.dataset, ImageConfig):
        from tvae.datasets import images

        dataset = images.make(config)
    else:
        raise UserError(f"dataset.name={config.dataset.name}: no such data set")
    if not torch.isfinite(known_values(dataset)).all():
        raise UserError(f"dataset={config.dataset.name}: the data hold NaN or infinite values")
    return dataset


def known_values(dataset: Dataset) -> Tensor:
    """All observed values; of data that are read as they are needed, those of `ROWS_SEEN` data points over all."""
    if dataset.file is None:
        return dataset.data if dataset.observed is None else dataset.data[dataset.observed]
    index = torch.linspace(0, len(dataset.data) - 1, min(ROWS_SEEN, len(dataset.data)), dtype=torch.float64).long()
    values = dataset.data.new_empty(len(index), dataset.data.shape[1])
    for rows, out in zip(index.split(ROWS_BETWEEN), values.split(ROWS_BETWEEN), strict=True):
        out[:] = dataset.data[rows]
        dataset.file.release()
    return values


def units_of(dataset: Dataset, standardise: bool) -> Units:
    """Mean and standard deviation over all observed values, or none."""
    if not standardise:
        return Units()
    known = known_values(dataset).double()
    std = known.std(correction=0).item()
    if std == 0:
        raise UserError("the data are constant: there is nothing to learn")
    return Units(known.mean().item(), std)
