"""The slab model by the kernel: E-step with residual proposals, sums of the M-step, posterior moments; slab.hpp."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tvae.backends.native.bindings import C_TYPES, Arguments, SlabTask
from tvae.backends.native.loading import is_available, kernel
from tvae.backends.native.threads import n_threads_for
from tvae.inference.evolution import EaConfig
from tvae.inference.posterior import EStep
from tvae.inference.streams import Stream
from tvae.model.decoder import Mlp
from tvae.model.local_prior import Local
from tvae.model.packed import byte_table
from tvae.model.prior import Bernoulli
from tvae.model.slab import Slab
from tvae.model.vae import Model
from tvae.training.backend import Minibatch
from tvae.training.m_step import Totals

MOST_ON = 8  # latents in any state, as in slab.hpp
PRUNE = 1e-3  # states with a smaller q do not count in posterior moments
N_PARTS = 8  # of the data points, whose sums are added in order: results do not depend on the number of threads


def has_slab(model: Model, ea: EaConfig) -> bool:
    """Whether the kernel can do the whole visit of this model with this search."""
    decoder, pi = model.decoder, model.pi
    is_known = type(decoder) is Mlp and decoder.is_linear and type(model.prior) in (Bernoulli, Local)
    is_here = pi.device.type == "cpu" and pi.dtype in C_TYPES and is_available()
    return is_known and is_here and type(model.likelihood) is Slab and ea.mutation == "residual"


class _Job:
    """A call of the kernel: what it reads, and where its results will be."""

    def __init__(
        self,
        model: Model,
        ea: EaConfig,
        x: Tensor,
        packed: Tensor,
        searches: bool,
        observed: Tensor | None,
        index: Tensor | None,
        prune: float = 0.0,
    ) -> None:
        decoder, likelihood = model.decoder, model.likelihood
        assert isinstance(decoder, Mlp)
        assert isinstance(likelihood, Slab)
        (n_points, n_states, _), dtype = packed.shape, x.dtype
        n_latents, rank, n_values = likelihood.directions.shape
        self.model, self.arguments = model, Arguments()
        vectors = torch.cat([decoder.weights[0].detach()[:, None], likelihood.directions], 1).contiguous()
        rows = vectors.view(-1, n_values)
        shape = n_latents, rank + 1, n_latents, rank + 1
        gram = (rows @ rows.T).view(shape).transpose(1, 2).contiguous()
        logits, cell = self._prior(index)
        candidates, n_candidates = None, min(ea.n_candidates or n_latents, n_latents)
        if n_candidates < n_latents and bool((logits != logits[0]).any()):  # a prior that knows the neighbourhood
            candidates = logits.topk(n_candidates, dim=1).indices.int()
        step_dtype = torch.float64
        self.packed = torch.empty_like(packed, memory_format=torch.contiguous_format)
        self.log_joint, self.log_prior = (torch.empty(n_points, n_states, dtype=step_dtype) for _ in range(2))
        self.n_accepted = torch.zeros(n_points, dtype=torch.int64)
        of = self.arguments
        self.task = SlabTask(
            n_points=n_points,
            n_values=n_values,
            n_latents=n_latents,
            rank=rank,
            n_states=n_states,
            n_threads=n_threads_for(n_points * n_candidates * (rank + 1) * n_values),
            n_parts=min(N_PARTS, max(1, n_points)),
            most_on=min(ea.most_on, MOST_ON),
            n_candidates=n_candidates,
            n_parents=ea.n_parents,
            n_children=ea.n_children,
            n_generations=ea.n_generations if searches else 0,
            sigma2=likelihood.sigma2.item(),
            prune=prune,
            far_below=ea.far_below,
            x=of.tensor(x),
            bias=of.tensor(decoder.biases[0]),
            vectors=of.tensor(vectors),
            gram=of.tensor(gram),
            observed=of.optional(None if observed is None else observed.view(torch.uint8)),
            cell=of.optional(cell),
            logit=of.tensor(logits.to(dtype)),
            rest=of.tensor(torch.nn.functional.logsigmoid(-logits).sum(1).to(dtype)),
            candidates=of.optional(candidates),
            packed=of.tensor(packed),
            new_packed=self.packed.data_ptr(),
            log_joint=self.log_joint.data_ptr(),
            log_prior=self.log_prior.data_ptr(),
            n_accepted=self.n_accepted.data_ptr(),
        )

    def _prior(self, index: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(cells, H): logits, and of each data point its cell; None: there is one."""
        prior = self.model.prior
        if isinstance(prior, Local) and index is not None and prior.cells is not None:
            cells, place = prior.cells[index].unique(return_inverse=True)
            return torch.logit(prior.local[cells]), place
        return prior.logits()[None], None

    def run(self, x: Tensor, observed: Tensor | None) -> EStep:
        kernel("slab", x.dtype)(ctypes.byref(self.task))
        n_values = x.shape[1] if observed is None else observed.sum(1, keepdim=True)
        sigma2 = self.task.sigma2
        constant = n_values * torch.log(torch.tensor(2 * torch.pi * sigma2, dtype=torch.float64))
        error = sigma2 * (2 * (self.log_prior - self.log_joint) - constant)
        return EStep(self.packed, error.to(x.dtype), self.log_joint.to(x.dtype), self.n_accepted.sum())


def e_step(
    model: Model,
    ea: EaConfig,
    x: Tensor,
    packed: Tensor,
    rng: Stream | None,
    observed: Tensor | None = None,
    index: Tensor | None = None,
) -> EStep:
    """Eqs. (7) and (8), see `training.backend.EStepFunction`; needs `has_slab`. Nothing is drawn from `rng`."""
    _check(packed)
    searches = rng is not None and packed.shape[1] < 2**model.n_latents
    return _Job(model, ea, x, packed, searches, observed, index).run(x, observed)


def visit(model: Model, ea: EaConfig, prune: float, batch: Minibatch, totals: Totals) -> tuple[Tensor, list[Tensor]]:
    """E-step and the sums of the M-step at one go, see `training.backend.VisitFunction`; needs `has_slab`."""
    x, observed, index, sums = batch.x, batch.observed, batch.index, totals.sums
    _check(batch.packed)
    searches = batch.packed.shape[1] < 2**model.n_latents
    job = _Job(model, ea, x, batch.packed, searches, observed, index, prune)  # of each state, not of all together
    n_parts, n_latents, n_values = job.task.n_parts, model.n_latents, x.shape[1]
    error, together = (torch.zeros(n_parts, *shape, dtype=torch.float64) for shape in ((), (n_latents,)))
    active = torch.zeros(len(x), n_latents)
    shift = x.new_zeros(n_parts, n_latents, n_values)
    spread = x.new_zeros(n_parts, n_latents, n_values, n_values)
    task = job.task
    task.error, task.active, task.shift, task.spread = (each.data_ptr() for each in (error, active, shift, spread))
    task.together = together.data_ptr()
    step = job.run(x, observed)
    sums["n_points"] += len(x)
    sums["n_observed"] += x.numel() if observed is None else observed.sum()
    sums["elbo"] += job.log_joint.logsumexp(1).sum()
    sums["n_accepted"] += step.n_accepted
    sums["error"] += error.sum()
    on = active.double()
    sums["n_on"] += on.sum(0)
    sums["n_together"] += together.sum(0)
    for part in range(n_parts):
        sums["shift"] += shift[part]
        sums["spread"] += spread[part]
    if isinstance(model.prior, Local):
        assert model.prior.cells is not None
        cell = model.prior.cells[index]
        sums["active"].index_add_(0, cell, on)
        sums["n_in_cell"].index_add_(0, cell, torch.ones(len(cell), dtype=torch.float64))
    else:
        sums["active"] += on.sum(0)
    return step.packed, []


def moments(
    model: Model, ea: EaConfig, x: Tensor, packed: Tensor, observed: Tensor | None, index: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(B, D) each: posterior mean and variance of the clean value, with the states as they are; needs `has_slab`."""
    _check(packed)
    job = _Job(model, ea, x, packed, False, observed, index, PRUNE)
    mean, variance = torch.empty_like(x), torch.empty_like(x)
    job.task.mean, job.task.variance = mean.data_ptr(), variance.data_ptr()
    job.run(x, observed)
    return mean, variance


def _check(packed: Tensor) -> None:
    """Raise `ValueError` where more latents are on than the kernel has room for."""
    n_on = byte_table(torch.uint8, packed.device).sum(1, dtype=torch.uint8)[packed.int()].sum(-1)
    if packed.numel() and int(n_on.max()) > MOST_ON:
        raise ValueError(f"a state with more than {MOST_ON} latents on")
