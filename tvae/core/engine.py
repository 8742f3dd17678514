"""What an engine does for the training loop: the E-step, the decoder's gradient, products with packed states, Adam.

An engine is put together once, where training is set up (`tvae.engines.choose_engine`), from the functions that suit
the model, the search and the device. The loop calls them and does not ask which they are. All functions with the same
name compute the same thing from the same random numbers, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tvae.core.evolution import EaConfig
from tvae.core.model import Model
from tvae.core.posterior import EStep, Rows
from tvae.core.products import Products
from tvae.core.streams import Stream


class EStepFunction(Protocol):
    def __call__(
        self,
        model: Model,
        ea: EaConfig,
        x: Tensor,
        packed: Tensor,
        rng: Stream | None,
        observed: Tensor | None = None,
    ) -> EStep:
        """One round of evolution: `n_generations` of children, then the S fittest of old and new.

        x (B, D), packed (B, S, ceil(H/8)), observed (B, D) bool; without `rng`, or where the set holds all states, the
        states are evaluated and stay as they are. What is drawn from `rng` is counted there.
        """


class GradientFunction(Protocol):
    def __call__(self, model: Model, x: Tensor, rows: Rows, observed: Tensor | None, n_points: int) -> list[Tensor]:
        """Of -1 / n_points sum_r weight_r log p(x_point(r) | z_r), for each of the decoder's parameters in order.

        x (B, D), observed (B, D) bool.
        """


@dataclass(frozen=True)
class Engine:
    name: str
    e_step: EStepFunction
    gradient: GradientFunction
    products: Products
    optimiser: Callable[[Iterable[torch.nn.Parameter], float], torch.optim.Optimizer]  # parameters, rate -> Adam
    at_work: Callable[[], AbstractContextManager[None]]  # entered while minibatches are visited
