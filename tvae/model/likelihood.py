"""p(x | z) given the decoder's output mu(z) and the state: everything that the noise model decides, one class for each.

A likelihood depends on the state by one number, its `error`. Where only part of x is observed, the unobserved
dimensions are integrated out, which here means left out.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from tvae.model.parts import ClosedForm, Start, Visited
from tvae.model.units import Units

SIGMA2_MIN = 1e-10  # keeps sigma2 off the pole of the log-likelihood


class Likelihood(ClosedForm):
    """The contract, with that of `ClosedForm`.

    Shapes: x (B, D), mu (B, S, D), z (B, S, H) zeros and ones, observed (B, D) bool or None where all is observed. For
    rows, which are states with their data points: x, mu, observed (R, D), and packed states z (R, ceil(H/8)) uint8,
    which `model.packed.unpack` turns into (R, H); a likelihood without parameters per latent leaves them packed.
    """

    @classmethod
    @abstractmethod
    def start(cls, start: Start) -> Likelihood:
        """The likelihood before training, for standardised values; options are given in the data's units."""

    @abstractmethod
    def error(self, x: Tensor, mu: Tensor, z: Tensor, observed: Tensor | None = None) -> Tensor:
        """(B, S): the number by which log p(x | z) depends on the state; the lower, the more likely."""

    @abstractmethod
    def log_prob(self, error: Tensor, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """(B, S): log p(x | z) from the `error`, with all constants."""

    @abstractmethod
    def slope(self, x: Tensor, mu: Tensor, z: Tensor, weight: Tensor, observed: Tensor | None, n_points: int) -> Tensor:
        """(R, D): gradient in mu of -1 / n_points sum_r weight_r log p(x_r | mu_r, z_r); of rows, z packed."""

    @abstractmethod
    def sample(self, mu: Tensor, rng: torch.Generator, z: Tensor | None = None) -> Tensor:
        """Draws from p(x | z), of the shape of mu, on the CPU's random numbers; z (..., H)."""

    def clean(
        self, x: Tensor, mu: Tensor, z: Tensor, observed: Tensor | None = None, root: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(R, D) each: posterior mean and variance of the value without noise given x and z; of rows, z packed.

        None: no variance. With `root` (D, D): moments of the value times `root`. By default x tells nothing beyond mu.
        """
        return mu if root is None else mu @ root, None

    @abstractmethod
    def sigma(self, units: Units) -> float:
        """The noise's standard deviation in the data's units, for reports."""


class Gaussian(Likelihood):
    """log p(x|z) = -D/2 log(2 pi sigma2) - |x - mu(z)|^2 / (2 sigma2), Eq. (1); sigma2 by Eq. (5)."""

    name = "gaussian"
    sigma2_min: ClassVar[float] = SIGMA2_MIN
    sigma2: Tensor

    def __init__(self, sigma2: Tensor):
        super().__init__()
        self.register_buffer("sigma2", sigma2.clamp(min=self.sigma2_min))
        self.is_fixed = False  # sigma2 is known
        self.sigma2_max = math.inf

    @classmethod
    def start(cls, start: Start) -> Gaussian:
        found = cls(cls.sigma2_at_start(start))
        found.limit(start)
        return found

    def limit(self, start: Start) -> None:
        """Set what the options say of sigma2 during training."""
        self.is_fixed = bool(start.options.fixed_sigma2)
        if start.options.capped_sigma2:
            self.sigma2_max = self.sigma2.item()

    @staticmethod
    def sigma2_at_start(start: Start) -> Tensor:
        sigma2 = start.data_variance if start.options.sigma2 is None else start.options.sigma2
        return torch.tensor(sigma2 / start.units.std**2, dtype=torch.float64)

    def error(self, x: Tensor, mu: Tensor, z: Tensor, observed: Tensor | None = None) -> Tensor:
        return squared_error(x, mu, observed)

    def log_prob(self, error: Tensor, x: Tensor, observed: Tensor | None = None) -> Tensor:
        n_observed = count_observed(x, observed)
        return -0.5 * (error / self.sigma2 + n_observed * torch.log(2 * math.pi * self.sigma2))

    def slope(self, x: Tensor, mu: Tensor, z: Tensor, weight: Tensor, observed: Tensor | None, n_points: int) -> Tensor:
        difference = mu - x if observed is None else (mu - x) * observed
        return (weight * (1 / (2 * self.sigma2 * n_points)))[:, None] * (2 * difference)

    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"error": ()}

    def add_statistics(self, sums: dict[str, Tensor], batch: Visited) -> None:
        sums["error"] += (batch.weights * batch.error).sum()

    @torch.no_grad()
    def update(self, sums: dict[str, Tensor]) -> None:
        if not self.is_fixed:
            self.sigma2.copy_((sums["error"] / sums["n_observed"]).clamp(self.sigma2_min, self.sigma2_max))  # Eq. (5)

    def sample(self, mu: Tensor, rng: torch.Generator, z: Tensor | None = None) -> Tensor:
        return mu + self.sigma2.sqrt() * standard_normal(mu, rng)

    def sigma(self, units: Units) -> float:
        return units.std * math.sqrt(self.sigma2.item())

    def spec(self) -> dict[str, Any]:
        return {}

    def problem(self, state: dict[str, Tensor]) -> str | None:
        return not_positive(state)


class KnownVariance(Likelihood):
    """log p(x|z) = -1/2 sum_d [log(2 pi v_d) + (x_d - mu_d(z))^2 / v_d]: a known variance v_d for each dimension."""

    name = "known_variance"
    variance: Tensor

    def __init__(self, variance: Tensor):
        super().__init__()
        self.register_buffer("variance", variance.clamp(min=SIGMA2_MIN))

    @classmethod
    def start(cls, start: Start) -> KnownVariance:
        return cls(torch.tensor(start.options.variances, dtype=torch.float64) / start.units.std**2)

    def error(self, x: Tensor, mu: Tensor, z: Tensor, observed: Tensor | None = None) -> Tensor:
        scale = self.variance.rsqrt()
        return squared_error(x * scale, mu * scale, observed)

    def log_prob(self, error: Tensor, x: Tensor, observed: Tensor | None = None) -> Tensor:
        constants = torch.log(2 * math.pi * self.variance)
        total = constants.sum() if observed is None else (observed * constants).sum(-1, keepdim=True)
        return -0.5 * (error + total)

    def slope(self, x: Tensor, mu: Tensor, z: Tensor, weight: Tensor, observed: Tensor | None, n_points: int) -> Tensor:
        difference = mu - x if observed is None else (mu - x) * observed
        return (weight / n_points)[:, None] * difference / self.variance

    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def add_statistics(self, sums: dict[str, Tensor], batch: Visited) -> None:
        """Nothing is learned."""

    def update(self, sums: dict[str, Tensor]) -> None:
        """Nothing is learned."""

    def sample(self, mu: Tensor, rng: torch.Generator, z: Tensor | None = None) -> Tensor:
        return mu + self.variance.sqrt() * standard_normal(mu, rng)

    def sigma(self, units: Units) -> float:
        return units.std * math.sqrt(self.variance.mean().item())

    def spec(self) -> dict[str, Any]:
        return {"likelihood": self.name}

    def problem(self, state: dict[str, Tensor]) -> str | None:
        return not_positive(state)


LIKELIHOODS: dict[str, type[Likelihood]] = {kind.name: kind for kind in (Gaussian, KnownVariance)}


def not_positive(state: dict[str, Tensor]) -> str | None:
    """The first variance that is not above zero, in words."""
    return next((f"{name} not above 0" for name, value in state.items() if not bool((value > 0).all())), None)


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
