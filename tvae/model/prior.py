"""p(z): how probable a state is before the data are seen, one class for each prior.

    log p(z) = sum_h [z_h log pi_h + (1 - z_h) log(1 - pi_h)]

Latents are independent given the data point, so that flipping latent h changes log p(z) by its logit. `index` (B,)
int64 are the numbers of the data points, for priors that differ between them; None: data that are not trained on.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.model.parts import ClosedForm, Start, Visited

PI_MIN = 1e-6  # pi is kept within [PI_MIN, 1 - PI_MIN], off the poles of the log-joint


class Prior(ClosedForm):
    """The contract, with that of `ClosedForm`."""

    per_point: ClassVar[tuple[str, ...]] = ()  # parameters (..., H) that belong to these data alone; of others: `pi`

    @classmethod
    @abstractmethod
    def start(cls, start: Start) -> Prior:
        """The prior before training."""

    @abstractmethod
    def mean(self) -> Tensor:
        """(H,): p(z_h = 1), averaged over data points: for initial states and reports."""

    @abstractmethod
    def logits(self, index: Tensor | None = None) -> Tensor:
        """(H,), or (B, H) where data points differ: log p(z_h = 1) - log p(z_h = 0)."""

    def log_prob(self, z: Tensor, index: Tensor | None = None) -> Tensor:
        """z (..., H) -> (...): log p(z); with logits (B, H), z (B, S, H) -> (B, S)."""
        logits = self.logits(index)
        if logits.dim() == 2:
            logits = logits[:, None]  # (B, 1, H)
        return (z * logits).sum(-1) + F.logsigmoid(-logits).sum(-1)

    def sample(self, n_points: int, rng: torch.Generator) -> Tensor:
        """(N, H): states from `mean`, on the CPU's random numbers."""
        pi = self.mean()
        return (torch.rand(n_points, len(pi), generator=rng, dtype=pi.dtype).to(pi.device) < pi).to(pi.dtype)


class Bernoulli(Prior):
    """p(z) = prod_h Bern(z_h; pi_h), Eq. (1), the same for all data points; pi by Eq. (5)."""

    name = "bernoulli"
    pi: Tensor

    def __init__(self, pi: Tensor):
        super().__init__()
        self.register_buffer("pi", pi.clamp(PI_MIN, 1 - PI_MIN))

    @classmethod
    def start(cls, start: Start) -> Bernoulli:
        n_latents = start.options.n_latents
        return cls(torch.full((n_latents,), start.options.pi or 1 / n_latents, dtype=torch.float64))

    def mean(self) -> Tensor:
        return self.pi

    def logits(self, index: Tensor | None = None) -> Tensor:
        return torch.logit(self.pi)

    def log_prob(self, z: Tensor, index: Tensor | None = None) -> Tensor:
        return z @ torch.logit(self.pi) + torch.log1p(-self.pi).sum()

    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"active": (len(self.pi),)}

    def add_statistics(self, sums: dict[str, Tensor], batch: Visited) -> None:
        rows = batch.rows
        sums["active"] += batch.products.multiply_transposed(rows.packed, rows.weight[:, None], len(self.pi))[:, 0]

    @torch.no_grad()
    def update(self, sums: dict[str, Tensor]) -> None:
        self.pi.copy_((sums["active"] / sums["n_points"]).clamp(PI_MIN, 1 - PI_MIN))  # Eq. (5)

    def spec(self) -> dict[str, Any]:
        return {}

    def problem(self, state: dict[str, Tensor]) -> str | None:
        pi = state["pi"]
        return None if bool(((pi > 0) & (pi < 1)).all()) else "pi beyond 0 and 1"


PRIORS: dict[str, type[Prior]] = {Bernoulli.name: Bernoulli}
