"""The arguments that decoder, prior and likelihood share: what they start from, and a minibatch after its E-step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tvae.model.packed import Products
from tvae.model.units import Units


class Places(NamedTuple):
    """Positions of data points that are patches of a picture."""

    at: tuple[Tensor, Tensor, Tensor]  # (N,) int64 each: page, row and column of the first pixel
    shape: tuple[int, int, int]  # pages, rows and columns that there are


@dataclass(frozen=True)
class Start:
    """Everything that a part may need to know before training."""

    options: Any  # `model.vae.ModelConfig`, with n_latents and hidden filled in
    n_points: int  # N
    n_outputs: int  # D
    data_variance: float  # in the data's units
    units: Units
    rng: torch.Generator
    places: Places | None = None  # where the data are patches of a picture


class Rows(NamedTuple):
    """States with their weights, R in all, and the data point each belongs to."""

    point: Tensor  # (R,) place in the batch
    packed: Tensor  # (R, ceil(H/8)) uint8, see `model.packed.unpack`
    weight: Tensor  # (R,): q, which adds up to 1 for each data point


@dataclass(frozen=True, eq=False)
class Visited:
    """A minibatch after its E-step, as closed-form M-steps see it."""

    x: Tensor  # (B, D)
    observed: Tensor | None  # (B, D) bool
    index: Tensor | None  # (B,) int64: the numbers of the data points
    weights: Tensor  # (B, S): q
    error: Tensor  # (B, S): the likelihood's `error`
    rows: Rows  # the states that matter
    mu: Callable[[], Tensor]  # (R, D): decoded rows, computed at the first call
    products: Products  # with packed states


class ClosedForm(nn.Module, ABC):
    """The part of the contract that prior and likelihood share: parameters that an M-step sets in closed form.

    What `__init__` takes is the `state_dict`.
    """

    name: ClassVar[str]

    @abstractmethod
    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of the sums that `update` needs."""

    @abstractmethod
    def add_statistics(self, sums: dict[str, Tensor], batch: Visited) -> None:
        """Add a minibatch to the sums of the epoch, in place."""

    @abstractmethod
    def update(self, sums: dict[str, Tensor]) -> None:
        """The closed-form M-step from the sums of an epoch; `n_points` and `n_observed` are among them."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """The `name` as `prior` or `likelihood`, {} for the paper's; the rest is in the `state_dict`."""

    def problem(self, state: dict[str, Tensor]) -> str | None:
        """The reason why this cannot be the `state_dict` after training, if there is one."""
        return None
