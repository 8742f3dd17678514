"""p(x | z) given the decoder's output mu(z): everything that the noise model decides, one class for each.

A likelihood is a function of mu through one number for each state, its `error`, so that an engine can rank states by
partial sums. Where only part of x is observed, the unobserved dimensions are integrated out, which here means left out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tvae.model.units import Units

SIGMA2_MIN = 1e-10  # keeps sigma2 off the pole of the log-likelihood


class Likelihood(nn.Module, ABC):
    """The contract. Shapes: x (B, D), mu (B, S, D), observed (B, D) bool or None where all is observed."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def start(
        cls, sigma2: float | None, variances: Sequence[float] | None, data_variance: float, units: Units
    ) -> Likelihood:
        """Before training, for standardised values; all variances are given in the data's units.

        `sigma2`: of the noise, None: to be taken from `data_variance`. `variances` (D,): known ones.
        """

    @abstractmethod
    def error(self, x: Tensor, mu: Tensor, observed: Tensor | None = None) -> Tensor:
        """(B, S): what log p(x | z) depends on the state by; the lower, the more likely."""

    @abstractmethod
    def log_prob(self, error: Tensor, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """(B, S): log p(x | z) from the `error`, with all constants."""

    @abstractmethod
    def slope(self, x: Tensor, mu: Tensor, weight: Tensor, observed: Tensor | None, n_points: int) -> Tensor:
        """(R, D): gradient in mu (R, D) of -1 / n_points sum_r weight_r log p(x_r | mu_r), for x, observed (R, D)."""

    @abstractmethod
    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what `statistics` returns."""

    @abstractmethod
    def statistics(self, x: Tensor, weights: Tensor, error: Tensor, observed: Tensor | None) -> dict[str, Tensor]:
        """What `update` needs, to be added up over an epoch; weights (B, S) is q."""

    @abstractmethod
    def update(self, sums: dict[str, Tensor]) -> None:
        """The closed-form M-step from the sums of an epoch."""

    @abstractmethod
    def sample(self, mu: Tensor, rng: torch.Generator) -> Tensor:
        """Draws from p(x | z), of the shape of mu, on the CPU's random numbers."""

    @abstractmethod
    def clean(self, x: Tensor, mu: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(R, D) each: posterior mean and variance of the value without noise given x and z; None: no variance."""

    @abstractmethod
    def sigma(self, units: Units) -> float:
        """The noise's standard deviation in the data's units, for reports."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Its `name` as `likelihood`, {} for the Gaussian; the rest is in the `state_dict`, which `__init__` takes."""


class Gaussian(Likelihood):
    """log p(x|z) = -D/2 log(2 pi sigma2) - |x - mu(z)|^2 / (2 sigma2), Eq. (1); sigma2 by Eq. (5)."""

    name = "gaussian"
    sigma2: Tensor

    def __init__(self, sigma2: Tensor):
        super().__init__()
        self.register_buffer("sigma2", sigma2.clamp(min=SIGMA2_MIN))

    @classmethod
    def start(
        cls, sigma2: float | None, variances: Sequence[float] | None, data_variance: float, units: Units
    ) -> Likelihood:
        start = data_variance if sigma2 is None else sigma2
        return cls(torch.tensor(start / units.std**2, dtype=torch.float64))

    def error(self, x: Tensor, mu: Tensor, observed: Tensor | None = None) -> Tensor:
        return squared_error(x, mu, observed)

    def log_prob(self, error: Tensor, x: Tensor, observed: Tensor | None = None) -> Tensor:
        n_observed = count_observed(x, observed)
        return -0.5 * (error / self.sigma2 + n_observed * torch.log(2 * math.pi * self.sigma2))

    def slope(self, x: Tensor, mu: Tensor, weight: Tensor, observed: Tensor | None, n_points: int) -> Tensor:
        difference = mu - x if observed is None else (mu - x) * observed
        return (weight * (1 / (2 * self.sigma2 * n_points)))[:, None] * (2 * difference)

    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"error": ()}

    def statistics(self, x: Tensor, weights: Tensor, error: Tensor, observed: Tensor | None) -> dict[str, Tensor]:
        return {"error": (weights * error).sum()}

    @torch.no_grad()
    def update(self, sums: dict[str, Tensor]) -> None:
        self.sigma2.copy_((sums["error"] / sums["n_observed"]).clamp(min=SIGMA2_MIN))  # Eq. (5)

    def sample(self, mu: Tensor, rng: torch.Generator) -> Tensor:
        return mu + self.sigma2.sqrt() * standard_normal(mu, rng)

    def clean(self, x: Tensor, mu: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return mu, None

    def sigma(self, units: Units) -> float:
        return units.std * math.sqrt(self.sigma2.item())

    def spec(self) -> dict[str, Any]:
        return {}


class KnownVariance(Likelihood):
    """log p(x|z) = -1/2 sum_d [log(2 pi v_d) + (x_d - mu_d(z))^2 / v_d]: a known variance v_d for each dimension."""

    name = "known_variance"
    variance: Tensor

    def __init__(self, variance: Tensor):
        super().__init__()
        self.register_buffer("variance", variance.clamp(min=SIGMA2_MIN))

    @classmethod
    def start(
        cls, sigma2: float | None, variances: Sequence[float] | None, data_variance: float, units: Units
    ) -> Likelihood:
        assert variances is not None
        return cls(torch.tensor(variances, dtype=torch.float64) / units.std**2)

    def error(self, x: Tensor, mu: Tensor, observed: Tensor | None = None) -> Tensor:
        scale = self.variance.rsqrt()
        return squared_error(x * scale, mu * scale, observed)

    def log_prob(self, error: Tensor, x: Tensor, observed: Tensor | None = None) -> Tensor:
        constants = torch.log(2 * math.pi * self.variance)
        total = constants.sum() if observed is None else (observed * constants).sum(-1, keepdim=True)
        return -0.5 * (error + total)

    def slope(self, x: Tensor, mu: Tensor, weight: Tensor, observed: Tensor | None, n_points: int) -> Tensor:
        difference = mu - x if observed is None else (mu - x) * observed
        return (weight / n_points)[:, None] * difference / self.variance

    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def statistics(self, x: Tensor, weights: Tensor, error: Tensor, observed: Tensor | None) -> dict[str, Tensor]:
        return {}

    def update(self, sums: dict[str, Tensor]) -> None:
        """Nothing is learned."""

    def sample(self, mu: Tensor, rng: torch.Generator) -> Tensor:
        return mu + self.variance.sqrt() * standard_normal(mu, rng)

    def clean(self, x: Tensor, mu: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return mu, None

    def sigma(self, units: Units) -> float:
        return units.std * math.sqrt(self.variance.mean().item())

    def spec(self) -> dict[str, Any]:
        return {"likelihood": self.name}


LIKELIHOODS: dict[str, type[Likelihood]] = {kind.name: kind for kind in (Gaussian, KnownVariance)}


def restore_likelihood(spec: dict[str, Any], state: dict[str, Tensor]) -> Likelihood:
    """The likelihood whose `spec` and `state_dict` were saved."""
    return LIKELIHOODS[spec.get("likelihood", Gaussian.name)](**state)


def squared_error(x: Tensor, mu: Tensor, observed: Tensor | None = None) -> Tensor:
    """x (B, D), mu (B, S, D) -> (B, S): |x - mu|^2 over the observed dimensions."""
    difference = mu - x[:, None]
    if observed is not None:
        difference = difference * observed[:, None]
    return difference.square().sum(-1)


def count_observed(x: Tensor, observed: Tensor | None) -> Tensor | int:
    """(B, 1) or D: how many dimensions of each data point are observed."""
    return x.shape[-1] if observed is None else observed.sum(-1, keepdim=True)


def standard_normal(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng, dtype=like.dtype).to(like.device)
