"""The visit in torch: on any device, for any model and search, and the reference for faster engines.

Every state is passed through the decoder once: the S old ones (the parameters have changed since the last visit) and
the children. A child that flips latents of its parent inherits the cheap part of the decoder, `first`, from it; only
`rest` is computed anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from tvae.core.engine import GradientFunction
from tvae.core.evolution import SELECTIONS, EaConfig, breed, draw_flips
from tvae.core.model import Model
from tvae.core.posterior import EStep, Rows, outputs
from tvae.core.products import Products
from tvae.core.states import code_numbers, codes, keep_best, pack, unpack
from tvae.core.streams import Stream


class Population(NamedTuple):
    """C states for each of B data points, and what is known about them."""

    packed: Tensor  # (B, C, ceil(H/8)) uint8
    code: Tensor  # (B, C) int64
    pre: Tensor  # (B, C, M): the decoder's `first`
    log_prior: Tensor  # (B, C)
    error: Tensor  # (B, C): the likelihood's `error`
    log_joint: Tensor  # (B, C)


@torch.no_grad()
def e_step(
    model: Model, ea: EaConfig, x: Tensor, packed: Tensor, rng: Stream | None, observed: Tensor | None = None
) -> EStep:
    """Eqs. (7) and (8), see `core.engine.EStepFunction`."""
    n_states = packed.shape[1]
    old = evaluate_states(model, x, packed, observed)
    if rng is None or n_states >= 2**model.n_latents:  # with all states in, this is the exact posterior
        return EStep(old.packed, old.error, old.log_joint, old.log_joint.new_zeros(()))

    pools = [old]
    for _ in range(ea.n_generations):
        pools.append(next_generation(model, ea, x, pools[-1], rng, observed))
    log_joint = torch.cat([pool.log_joint for pool in pools], 1)
    kept = keep_best(log_joint, torch.cat([pool.code for pool in pools], 1), n_states)
    return EStep(
        _take(torch.cat([pool.packed for pool in pools], 1), kept),
        torch.cat([pool.error for pool in pools], 1).gather(1, kept),
        log_joint.gather(1, kept),
        (kept >= n_states).sum(),
    )


def evaluate_states(model: Model, x: Tensor, packed: Tensor, observed: Tensor | None) -> Population:
    """Pass states (B, C, ceil(H/8)) through the whole decoder."""
    z = unpack(packed, model.n_latents, x.dtype)
    code = codes(packed, model.n_latents)
    return _judge(model, x, packed, code, model.decoder.first(z), model.log_prior(z), observed)


def next_generation(
    model: Model, ea: EaConfig, x: Tensor, pool: Population, rng: Stream, observed: Tensor | None = None
) -> Population:
    """P parents from the pool, `n_children` of each, evaluated."""
    place = SELECTIONS[ea.selection](pool.log_joint, ea.n_parents, rng)
    if ea.is_by_flips:
        flips = draw_flips(model.n_latents, ea.n_parents, ea.n_children, ea.n_flips, rng)
        return evaluate_flips(model, x, pool, place, flips, observed)
    parents = unpack(_take(pool.packed, place), model.n_latents, x.dtype)
    return evaluate_states(model, x, pack(breed(parents, ea, model.pi.sum(), rng)), observed)


def evaluate_flips(
    model: Model, x: Tensor, pool: Population, place: Tensor, flips: Tensor, observed: Tensor | None
) -> Population:
    """Children of the parents at `place` (B, P) with the latents `flips` (B, P, C, n_flips) inverted."""
    n_children, n_flips = flips.shape[2:]
    place = place.repeat_interleave(n_children, 1)
    flips = flips.flatten(1, 2)
    packed, code, log_prior = _take(pool.packed, place), pool.code.gather(1, place), pool.log_prior.gather(1, place)
    pre = _take(pool.pre, place)
    logit, numbers = torch.logit(model.pi), code_numbers(model.n_latents, x.device)
    for i in range(n_flips):
        latent = flips[..., i]
        byte, bit = (latent >> 3)[..., None], (latent & 7).to(torch.uint8)[..., None]
        value = packed.gather(2, byte)
        packed.scatter_(2, byte, value ^ (torch.ones_like(bit) << bit))
        sign = 1 - 2 * (value >> bit & 1).squeeze(2).long()
        code = code + sign * numbers[latent]
        log_prior = log_prior + sign * logit[latent]
        pre = model.decoder.flip(pre, latent, sign)
    return _judge(model, x, packed, code, pre, log_prior, observed)


def _judge(
    model: Model, x: Tensor, packed: Tensor, code: Tensor, pre: Tensor, log_prior: Tensor, observed: Tensor | None
) -> Population:
    error = model.likelihood.error(x, model.decoder.rest(pre), observed)
    log_joint = log_prior + model.likelihood.log_prob(error, x, observed)
    return Population(packed, code, pre, log_prior, error, log_joint)


def _take(rows: Tensor, place: Tensor) -> Tensor:
    """(B, C, K) rows at places (B, P) -> (B, P, K)."""
    return rows.gather(1, place[..., None].expand(-1, -1, rows.shape[2]))


def gradient_by(products: Products, impute: bool) -> GradientFunction:
    """Back-propagation from the likelihood's slope in mu.

    Missing values are left out, or with `impute` (paper, Appendix C) stand at their posterior mean, Eq. (15).
    """

    def gradient(model: Model, x: Tensor, rows: Rows, observed: Tensor | None, n_points: int) -> list[Tensor]:
        mu = outputs(model, rows, products)
        fixed = mu.detach()
        if observed is not None and impute:
            mean = torch.zeros_like(x).index_add_(0, rows.point, rows.weight[:, None] * fixed)
            x, observed = torch.where(observed, x, mean), None
        known = None if observed is None else observed[rows.point]
        slope = model.likelihood.slope(x[rows.point], fixed, rows.weight, known, n_points)
        return list(torch.autograd.grad(mu, list(model.decoder.parameters()), slope))

    return gradient


def adam(parameters: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.Optimizer:
    parameters = list(parameters)
    return torch.optim.Adam(parameters, lr=rate, fused=parameters[0].device.type in ("cpu", "cuda"))
