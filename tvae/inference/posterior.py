"""The truncated posterior q over a set of states, which of them matter, and moments under it.

q_n(z) = p(x_n, z) / sum_{z' in Phi_n} p(x_n, z')   for z in Phi_n, else 0                                  Eq. (3)
F_n    = log sum_{z in Phi_n} p(x_n, z)                                                                     Eq. (7)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tvae.model.covariance import Whitening
from tvae.model.likelihood import Gaussian
from tvae.model.packed import Products
from tvae.model.parts import Rows
from tvae.model.vae import Model


class EStep(NamedTuple):
    """The S states of each of B data points after an E-step."""

    packed: Tensor  # (B, S, ceil(H/8)) uint8
    error: Tensor  # (B, S): the likelihood's `error`
    log_joint: Tensor  # (B, S)
    n_accepted: Tensor  # scalar: how many states are new

    @property
    def weights(self) -> Tensor:
        """(B, S): q, Eq. (3)."""
        return self.log_joint.softmax(1)

    @property
    def elbo(self) -> Tensor:
        """(B,): Eq. (7), a term for each data point."""
        return self.log_joint.logsumexp(1)


def significant_states(step: EStep, prune: float) -> Rows:
    """Leave out states with q below prune / S: at most `prune` of the mass of a data point; the rest is rescaled.

    On accelerators all stay in: their number would have to be waited for.
    """
    weights = step.weights
    if prune == 0 or weights.device.type != "cpu":
        batch, n_states = weights.shape
        point = torch.arange(batch, device=weights.device).repeat_interleave(n_states)
        return Rows(point, step.packed.flatten(0, 1), weights.flatten())
    kept = weights >= prune / weights.shape[1]
    weights = weights * kept
    weights = weights / weights.sum(1, keepdim=True)
    point, place = kept.nonzero(as_tuple=True)
    return Rows(point, step.packed[point, place], weights[point, place])


def outputs(model: Model, rows: Rows, products: Products) -> Tensor:
    """(R, D): mu of each row."""
    return model.decoder.rest(model.decoder.first_of_packed(rows.packed, products))


def clean_moments(
    model: Model,
    x: Tensor,
    rows: Rows,
    observed: Tensor | None,
    products: Products,
    whitening: Whitening | None = None,
) -> tuple[Tensor, Tensor]:
    """(B, D) each: mean, Eq. (15), and variance under q of the values without noise, for x (B, D).

    `whitening`: by which x has been whitened; the moments are those of the values before it.
    """
    known = None if observed is None else observed[rows.point]
    told = () if whitening is None else (whitening.of_model,)
    clean, variance = model.likelihood.clean(x[rows.point], outputs(model, rows, products), rows.packed, known, *told)
    weighted = rows.weight[:, None] * clean
    mean = torch.zeros_like(x).index_add_(0, rows.point, weighted)
    square = torch.zeros_like(x).index_add_(0, rows.point, weighted * clean)
    if variance is not None:
        square.index_add_(0, rows.point, rows.weight[:, None] * variance)
    variance = (square - mean.square()).clamp(min=0)
    if whitening is None:
        return mean, variance
    assert isinstance(model.likelihood, Gaussian)
    return whitening.back(x, mean, variance, model.likelihood.sigma2)
