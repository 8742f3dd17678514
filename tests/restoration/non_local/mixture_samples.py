"""Mixtures of Gaussians to compare with: random ones, their dense matrices and densities, and draws from them."""

import torch
from torch.distributions import MultivariateNormal

from tvae.restoration.non_local.mixture import Mixture

SIGMA2 = 0.3


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_mixture(n_values=6, ranks=(0, 1, 3, 6), distance=1.0):
    """In double precision, with groups of different rank."""
    basis = [torch.linalg.qr(randn(n_values, n_values, seed=k))[0][:, :rank] for k, rank in enumerate(ranks)]
    spread = [0.2 + randn(rank, seed=k + 50).square() for k, rank in enumerate(ranks)]
    weight = torch.arange(1.0, len(ranks) + 1, dtype=torch.float64)
    return Mixture(
        (weight / weight.sum()).log(), distance * randn(len(ranks), n_values, seed=99), basis, spread, SIGMA2
    )


def covariances(mixture):
    """(K, D, D): C_k as full matrices."""
    return torch.stack(
        [(basis * spread) @ basis.T for basis, spread in zip(mixture.basis, mixture.spread, strict=True)]
    )


def noisy_covariances(mixture):
    return covariances(mixture) + mixture.sigma2 * torch.eye(mixture.mean.shape[1], dtype=torch.float64)


def dense_log_joint(mixture, y):
    """(N, K)"""
    normal = MultivariateNormal(mixture.mean, noisy_covariances(mixture))
    return mixture.log_weight + normal.log_prob(y[:, None])


def draw(mixture, n_points, rng):
    """Noisy points, points without noise, and their groups."""
    group = torch.multinomial(mixture.log_weight.exp(), n_points, replacement=True, generator=rng)
    x = torch.empty(n_points, mixture.mean.shape[1], dtype=torch.float64)
    for k, (basis, spread) in enumerate(zip(mixture.basis, mixture.spread, strict=True)):
        own = (group == k).nonzero()[:, 0]
        draws = torch.randn(len(own), len(spread), generator=rng, dtype=torch.float64)
        x[own] = mixture.mean[k] + (draws * spread.sqrt()) @ basis.T
    return x + mixture.sigma2**0.5 * torch.randn(x.shape, generator=rng, dtype=torch.float64), x, group
