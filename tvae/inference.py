"""The E-step: evolve new states for each data point of a batch and keep the S fittest, Eqs. (7) and (8).

Every state is passed through the decoder once: the S old ones (the parameters have changed since the last visit) and
the children. A child that flips latents of its parent inherits the first layer's sums from it, plus or minus a row of
weights for each flip; only what lies behind the first layer is computed anew.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tvae import native
from tvae.config import EaConfig
from tvae.evolution import cross, draw_flips, flip, mutate_sparsely, select_parents
from tvae.model import Model, count_observed, squared_error
from tvae.states import code_numbers, codes, keep_best, pack, unpack
from tvae.streams import Stream


class Population(NamedTuple):
    """C states for each of B data points, and what is known about them."""

    packed: Tensor  # (B, C, ceil(H/8)) uint8
    code: Tensor  # (B, C) int64
    pre: Tensor  # (B, C, M): the first layer's sums
    log_prior: Tensor  # (B, C)
    error: Tensor  # (B, C): |x - mu(z)|^2 over the observed dimensions
    log_joint: Tensor  # (B, C)


class EStep(NamedTuple):
    """The S states of each data point after the E-step."""

    packed: Tensor  # (B, S, ceil(H/8)) uint8
    error: Tensor  # (B, S)
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


@torch.no_grad()
def e_step(
    model: Model, ea: EaConfig, x: Tensor, packed: Tensor, rng: Stream | None, observed: Tensor | None = None
) -> EStep:
    """One round of evolution: `n_generations` of children, then the S fittest of old and new.

    x (B, D), packed (B, S, ceil(H/8)); without `rng` the states are evaluated and stay as they are.
    """
    n_states = packed.shape[1]
    if n_states >= 2**model.n_latents:  # all states are in: this is the exact posterior
        rng = None
    if native.supports(ea, x):
        return EStep(*native.e_step(model, ea, x, packed, rng, observed))
    old = evaluate_states(model, x, packed, observed)
    if rng is None:
        return EStep(old.packed, old.error, old.log_joint, old.log_joint.new_zeros(()))

    pools = [old]
    for _ in range(ea.n_generations):
        pools.append(breed(model, ea, x, pools[-1], rng, observed))
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


def breed(
    model: Model, ea: EaConfig, x: Tensor, pool: Population, rng: Stream, observed: Tensor | None = None
) -> Population:
    """One generation: P parents from the pool, `n_children` of each, evaluated."""
    n_latents = model.n_latents
    place = select_parents(pool.log_joint, ea.n_parents, ea.selection, rng)
    if ea.crossover or ea.mutation == "sparse":
        parents = unpack(_take(pool.packed, place), n_latents, x.dtype)
        z = cross(parents, ea.n_children, rng) if ea.crossover else parents.repeat_interleave(ea.n_children, 1)
        if ea.mutation == "sparse":
            z = mutate_sparsely(z, ea.n_flips, model.pi.sum(), rng)
        else:
            z = flip(z, draw_flips(n_latents, ea.n_parents, ea.n_children, ea.n_flips, rng).flatten(1, 2))
        return evaluate_states(model, x, pack(z), observed)
    flips = draw_flips(n_latents, ea.n_parents, ea.n_children, ea.n_flips, rng)
    return evaluate_flips(model, x, pool, place, flips, observed)


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
        pre.addcmul_(sign[..., None].to(pre.dtype), model.decoder.weights[0][latent])
    return _judge(model, x, packed, code, pre, log_prior, observed)


def _judge(
    model: Model, x: Tensor, packed: Tensor, code: Tensor, pre: Tensor, log_prior: Tensor, observed: Tensor | None
) -> Population:
    error = squared_error(x, model.decoder.rest(pre), observed)
    log_joint = log_prior + model.log_noise(error, count_observed(x, observed))
    return Population(packed, code, pre, log_prior, error, log_joint)


def _take(rows: Tensor, place: Tensor) -> Tensor:
    """(B, C, K) rows at places (B, P) -> (B, P, K)."""
    return rows.gather(1, place[..., None].expand(-1, -1, rows.shape[2]))
