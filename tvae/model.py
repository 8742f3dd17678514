"""Theta = {pi, W, sigma2}, the log-joint of Eq. (1), and what follows from it for a set of states.

    log p(x, z) = sum_h [z_h log pi_h + (1 - z_h) log(1 - pi_h)] - D/2 log(2 pi sigma2) - |x - mu(z; W)|^2 / (2 sigma2)

Where only part of x is observed, D and the squared error count the observed dimensions alone: the unobserved ones are
integrated out. Values are the true ones, never up to a constant, so that ELBOs can be compared across models.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tvae.decoder import Decoder

PI_MIN = 1e-6  # pi is kept within [PI_MIN, 1 - PI_MIN] and sigma2 above SIGMA2_MIN, off the poles of the log-joint
SIGMA2_MIN = 1e-10


class Model(nn.Module):
    """A decoder, the prior `pi` (H,) and the noise variance `sigma2` (scalar)."""

    pi: Tensor
    sigma2: Tensor

    def __init__(self, decoder: Decoder, pi: Tensor, sigma2: Tensor | float):
        super().__init__()
        self.decoder = decoder
        self.register_buffer("pi", pi.clamp(PI_MIN, 1 - PI_MIN))
        self.register_buffer("sigma2", torch.as_tensor(sigma2, dtype=pi.dtype).clamp(min=SIGMA2_MIN))

    @property
    def n_latents(self) -> int:
        return len(self.pi)

    def log_prior(self, z: Tensor) -> Tensor:
        """(..., H) -> (...): log p(z)."""
        return z @ torch.logit(self.pi) + torch.log1p(-self.pi).sum()

    def log_noise(self, error: Tensor, n_observed: Tensor | int) -> Tensor:
        """log p(x | z) from the squared error over the observed dimensions and their number."""
        return -0.5 * (error / self.sigma2 + n_observed * torch.log(2 * math.pi * self.sigma2))

    def log_joint(self, x: Tensor, z: Tensor, observed: Tensor | None = None) -> Tensor:
        """x (B, D), z (B, S, H), observed (B, D) bool -> (B, S): log p(x, z)."""
        error = squared_error(x, self.decoder(z), observed)
        return self.log_prior(z) + self.log_noise(error, count_observed(x, observed))

    def sample(self, n_points: int, rng: torch.Generator) -> Tensor:
        """(N, D): draws from p(x), on the CPU's random numbers."""
        dtype, device = self.pi.dtype, self.pi.device
        z = (torch.rand(n_points, self.n_latents, generator=rng, dtype=dtype).to(device) < self.pi).to(dtype)
        mu = self.decoder(z)
        return mu + self.sigma2.sqrt() * torch.randn(mu.shape, generator=rng, dtype=dtype).to(device)


def squared_error(x: Tensor, mu: Tensor, observed: Tensor | None = None) -> Tensor:
    """x (B, D), mu (B, S, D) -> (B, S): |x - mu|^2 over the observed dimensions."""
    difference = mu - x[:, None]
    if observed is not None:
        difference = difference * observed[:, None]
    return difference.square().sum(-1)


def count_observed(x: Tensor, observed: Tensor | None) -> Tensor | int:
    """(B, 1) or D: how many dimensions of each data point are observed."""
    return x.shape[-1] if observed is None else observed.sum(-1, keepdim=True)


def log_likelihood(model: Model, x: Tensor, z: Tensor, observed: Tensor | None = None) -> Tensor:
    """(B,): log of the sum of p(x, z) over the states z (S, H); with all 2^H of them the exact log p(x)."""
    error = squared_error(x, model.decoder(z)[None], observed)
    return (model.log_prior(z) + model.log_noise(error, count_observed(x, observed))).logsumexp(1)
