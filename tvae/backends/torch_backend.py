"""The visit in torch: on any device, for any model and search, and the reference for faster backends.

Every state is passed through the decoder once: the S old ones (the parameters have changed since the last visit) and
the children. A child that flips latents of its parent inherits the cheap part of the decoder, `first`, from it; only
`rest` is computed anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from tvae.inference.evolution import SELECTIONS, EaConfig, breed, draw_flips, flip
from tvae.inference.posterior import EStep, outputs
from tvae.inference.states import codes, keep_best
from tvae.inference.streams import Stream
from tvae.model.packed import Products, pack, unpack
from tvae.model.parts import Rows
from tvae.model.vae import Model
from tvae.training.backend import GradientFunction


class Population(NamedTuple):
    """C states for each of B data points, and what is known about them."""

    z: Tensor  # (B, C, H)
    pre: Tensor  # (B, C, M): the decoder's `first`
    log_prior: Tensor  # (B, C)
    error: Tensor  # (B, C): the likelihood's `error`
    log_joint: Tensor  # (B, C)


@torch.no_grad()
def e_step(
    model: Model,
    ea: EaConfig,
    x: Tensor,
    packed: Tensor,
    rng: Stream | None,
    observed: Tensor | None = None,
    index: Tensor | None = None,
) -> EStep:
    """Eqs. (7) and (8), see `training.backend.EStepFunction`."""
    n_states = packed.shape[1]
    old = evaluate_states(model, x, unpack(packed, model.n_latents, x.dtype), observed, index)
    if rng is None or ea.n_generations == 0 or n_states >= 2**model.n_latents:  # with all in, the exact posterior
        return EStep(packed, old.error, old.log_joint, old.log_joint.new_zeros(()))

    if ea.is_by_flips:
        rng.draw_ahead(ea.n_generations * ea.n_parents * (1 + ea.n_children * ea.n_flips))
    pools = [old]
    for _ in range(ea.n_generations):
        pools.append(next_generation(model, ea, x, pools[-1], rng, observed, index))  # selection, mutation
    # Union of the old states and all generations, then truncation to the S fittest: Eq. (8).
    every = torch.cat([packed, pack(torch.cat([pool.z for pool in pools[1:]], 1))], 1)
    log_joint = torch.cat([pool.log_joint for pool in pools], 1)
    kept = keep_best(log_joint, codes(every, model.n_latents), n_states, ea.keeps_order)
    return EStep(
        _take(every, kept),
        torch.cat([pool.error for pool in pools], 1).gather(1, kept),
        log_joint.gather(1, kept),
        (kept >= n_states).sum(),
    )


def evaluate_states(model: Model, x: Tensor, z: Tensor, observed: Tensor | None, index: Tensor | None) -> Population:
    """Pass states (B, C, H) through the whole decoder."""
    return _judge(model, x, z, model.decoder.first(z), model.log_prior(z, index), observed)


def next_generation(
    model: Model,
    ea: EaConfig,
    x: Tensor,
    pool: Population,
    rng: Stream,
    observed: Tensor | None,
    index: Tensor | None,
) -> Population:
    """P parents from the pool, `n_children` of each, evaluated."""
    if ea.mutation == "residual":
        return evaluate_states(model, x, residual_children(model, ea, x, pool, observed, index), observed, index)
    place = SELECTIONS[ea.selection](pool.log_joint, ea.n_parents, rng)
    if ea.is_by_flips:
        flips = draw_flips(model.n_latents, ea.n_parents, ea.n_children, ea.n_flips, rng)
        return evaluate_flips(model, x, pool, place, flips, observed, index)
    return evaluate_states(model, x, breed(_take(pool.z, place), ea, model.pi.sum(), rng), observed, index)


def residual_children(
    model: Model, ea: EaConfig, x: Tensor, pool: Population, observed: Tensor | None, index: Tensor | None
) -> Tensor:
    """(B, C, H): single latents, and the fittest states with a latent less, one more or another.

    A latent is judged by the exact log-joint of the state with it, which suits small models; the kernel ranks latents
    by what they explain of the residual and evaluates the best alone.
    """
    n_latents = model.n_latents
    eye = torch.eye(n_latents, dtype=x.dtype, device=x.device)
    singles = eye.expand(len(x), -1, -1)
    single_fit = evaluate_states(model, x, singles, observed, index).log_joint
    is_there = (pool.z[:, :, None] == eye).all(-1).any(1)  # (B, H)
    fitness = torch.cat([pool.log_joint, single_fit.masked_fill(is_there, -torch.inf)], 1)
    best = fitness.topk(ea.n_parents, dim=1).indices
    parents = _take(torch.cat([pool.z, singles], 1), best)  # (B, P, H)
    on, latent = parents.topk(min(ea.most_on, n_latents), dim=2)
    less = parents[:, :, None] * (1 - eye[latent] * on[..., None])  # a latent that is not on: the parent itself
    bases = torch.cat([torch.zeros_like(parents[:, :1]), parents, less.flatten(1, 2)], 1)  # (B, K, H)
    more = (bases[:, :, None] + eye).clamp(max=1)  # (B, K, H, H)
    allowed = more.sum(-1) <= ea.most_on
    fit = evaluate_states(model, x, more.flatten(1, 2), observed, index).log_joint.view(allowed.shape)
    gain = fit.masked_fill(~allowed | (bases > 0), -torch.inf)
    best = gain.topk(min(ea.n_children, n_latents), dim=2).indices
    children = (bases[:, :, None] + eye[best]).clamp(max=1)
    children = torch.where((children.sum(-1) <= ea.most_on)[..., None], children, bases[:, :, None])
    return torch.cat([bases, children.flatten(1, 2)], 1)


def evaluate_flips(
    model: Model,
    x: Tensor,
    pool: Population,
    place: Tensor,
    flips: Tensor,
    observed: Tensor | None,
    index: Tensor | None,
) -> Population:
    """Children of the parents at `place` (B, P) with the latents `flips` (B, P, C, n_flips) inverted."""
    n_children, n_flips = flips.shape[2:]
    place = place[:, _parents_of(place.shape[1], n_children, place.device)]
    flips = flips.flatten(1, 2)
    z, pre, log_prior = _take(pool.z, place), _take(pool.pre, place), pool.log_prior.gather(1, place)
    logits = model.prior.logits(index)  # (H,) or (B, H)
    for i in range(n_flips):
        latent = flips[..., i]
        sign = 1 - 2 * z.gather(2, flips[..., i : i + 1]).squeeze(2)
        log_prior = torch.addcmul(log_prior, sign, logits[latent] if logits.dim() == 1 else logits.gather(1, latent))
        pre = model.decoder.flip(pre, latent, sign)
    return _judge(model, x, flip(z, flips), pre, log_prior, observed)


def _judge(model: Model, x: Tensor, z: Tensor, pre: Tensor, log_prior: Tensor, observed: Tensor | None) -> Population:
    error = model.likelihood.error(x, model.decoder.rest(pre), z, observed)
    log_joint = log_prior + model.likelihood.log_prob(error, x, observed)
    return Population(z, pre, log_prior, error, log_joint)


def _take(rows: Tensor, place: Tensor) -> Tensor:
    """(B, C, K) rows at places (B, P) -> (B, P, K)."""
    return rows[_points(len(rows), rows.device), place]


@lru_cache
def _points(batch: int, device: torch.device) -> Tensor:
    """(B, 1): the data points of a batch."""
    return torch.arange(batch, device=device)[:, None]


@lru_cache
def _parents_of(n_parents: int, n_children: int, device: torch.device) -> Tensor:
    """(P * n_children,): whose child each is."""
    return torch.arange(n_parents, device=device).repeat_interleave(n_children)


def gradient_by(products: Products, impute: bool) -> GradientFunction:
    """Back-propagation from the likelihood's slope in mu; prior and likelihood by autograd where they have parameters.

    Missing values are left out, or with `impute` (paper, Appendix C) stand at their posterior mean, Eq. (15).
    """

    def gradient(
        model: Model,
        x: Tensor,
        rows: Rows,
        observed: Tensor | None,
        n_points: int,
        index: Tensor | None = None,
    ) -> list[Tensor]:
        mu = outputs(model, rows, products)
        fixed = mu.detach()
        if observed is not None and impute:
            mean = torch.zeros_like(x).index_add_(0, rows.point, rows.weight[:, None] * fixed)
            x, observed = torch.where(observed, x, mean), None
        known = None if observed is None else observed[rows.point]
        slope = model.likelihood.slope(x[rows.point], fixed, rows.packed, rows.weight, known, n_points)
        gradients = torch.autograd.grad(mu, list(model.decoder.parameters()), slope.detach())
        others = [*model.likelihood.parameters(), *model.prior.parameters()]
        if not others:
            return list(gradients)
        z = unpack(rows.packed, model.n_latents, x.dtype)[:, None]  # (R, 1, H)
        error = model.likelihood.error(x[rows.point], fixed[:, None], z, known)
        log_joint = model.likelihood.log_prob(error, x[rows.point], known) + model.log_prior(
            z, None if index is None else index[rows.point]
        )
        loss = -(rows.weight * log_joint[:, 0]).sum() / n_points
        return [*gradients, *torch.autograd.grad(loss, others)]

    return gradient


def adam(parameters: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.Optimizer:
    parameters = list(parameters)
    return torch.optim.Adam(parameters, lr=rate, fused=parameters[0].device.type in ("cpu", "cuda"))
