"""The contract of a backend: the visit of a minibatch and its parts, products with packed states, Adam.

A backend is put together once, where training is set up (`tvae.backends.choose_backend`), from the functions that suit
the model, the search and the device. The loop calls them and does not ask which they are. All functions with the same
name compute the same thing from the same random numbers, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tvae.inference.evolution import EaConfig
from tvae.inference.posterior import EStep, significant_states
from tvae.inference.streams import Stream
from tvae.model.covariance import Whitening
from tvae.model.packed import Products
from tvae.model.parts import Rows
from tvae.model.vae import Model
from tvae.training.m_step import Totals


class EStepFunction(Protocol):
    def __call__(
        self,
        model: Model,
        ea: EaConfig,
        x: Tensor,
        packed: Tensor,
        rng: Stream | None,
        observed: Tensor | None = None,
        index: Tensor | None = None,
    ) -> EStep:
        """One round of evolution: `n_generations` of children, then the S fittest of old and new.

        x (B, D), packed (B, S, ceil(H/8)), observed (B, D) bool; without `rng`, or where the set holds all states, the
        states are evaluated and stay as they are. What is drawn from `rng` is counted there. `index` (B,) int64: the
        numbers of the data points, for the prior; None: they are not trained on.
        """


class GradientFunction(Protocol):
    def __call__(
        self,
        model: Model,
        x: Tensor,
        rows: Rows,
        observed: Tensor | None,
        n_points: int,
        index: Tensor | None = None,
    ) -> list[Tensor]:
        """Gradient of -1 / n_points sum_r weight_r log p(x_point(r), z_r), for each of the model's parameters in order.

        x (B, D), observed (B, D) bool, index (B,) as for the E-step.
        """


@dataclass(frozen=True, eq=False)
class Minibatch:
    x: Tensor  # (B, D)
    observed: Tensor | None  # (B, D) bool
    packed: Tensor  # (B, S, ceil(H/8)): the states
    rng: Stream
    n_points: int  # data points in it, those of other ranks included

    @property
    def index(self) -> Tensor:
        """(B,) int64: the numbers of the data points."""
        return self.rng.index


class VisitFunction(Protocol):
    def __call__(
        self, model: Model, ea: EaConfig, prune: float, batch: Minibatch, totals: Totals
    ) -> tuple[Tensor, list[Tensor]]:
        """E-step and gradient at one go; what an epoch sums up is added to `totals`.

        Returns the new states (B, S, ceil(H/8)) and the gradients, [] where the M-step is exact. `prune`: see
        `inference.posterior.significant_states`.
        """


class Stretch(NamedTuple):
    """Minibatches that follow each other, with the steps of Adam between them."""

    batch: Minibatch  # the data points of all of them
    size: int  # data points in each but the last, which may have fewer
    optimiser: torch.optim.Optimizer
    rates: list[float]  # of the steps, one after each minibatch


class StretchFunction(Protocol):
    def __call__(self, model: Model, ea: EaConfig, prune: float, stretch: Stretch, totals: Totals) -> Tensor:
        """Visits one after the other: what `VisitFunction` and the optimiser's steps do by turns, to the last bit.

        Returns the new states of all data points. Not for an exact M-step.
        """


class MomentsFunction(Protocol):
    def __call__(
        self,
        model: Model,
        ea: EaConfig,
        x: Tensor,
        packed: Tensor,
        rng: Stream | None,
        observed: Tensor | None = None,
        index: Tensor | None = None,
        whitening: Whitening | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(B, D) each: mean and variance of the clean value under q after the E-step of `EStepFunction`.

        `whitening`: by which x has been whitened, see `inference.posterior.clean_moments`.
        """


def visit_by(e_step: EStepFunction, gradient: GradientFunction, products: Products) -> VisitFunction:
    """The visit, put together from its parts."""

    def visit(
        model: Model, ea: EaConfig, prune: float, batch: Minibatch, totals: Totals
    ) -> tuple[Tensor, list[Tensor]]:
        x, observed = batch.x, batch.observed
        step = e_step(model, ea, x, batch.packed, batch.rng, observed, batch.index)
        rows = significant_states(step, prune)
        totals.add(model, x, step, rows, observed, products, batch.index)
        if totals.is_exact:
            return step.packed, []
        return step.packed, gradient(model, x, rows, observed, batch.n_points, batch.index)

    return visit


@dataclass(frozen=True)
class Backend:
    name: str
    visit: VisitFunction
    e_step: EStepFunction
    gradient: GradientFunction
    products: Products
    optimiser: Callable[[Iterable[torch.nn.Parameter], float], torch.optim.Optimizer]  # parameters, rate -> Adam
    at_work: Callable[[], AbstractContextManager[None]]  # entered while minibatches are visited
    stretch: StretchFunction | None = None  # where this is faster than visit by visit
    moments: MomentsFunction | None = None  # where this is faster than `inference.posterior.clean_moments`
