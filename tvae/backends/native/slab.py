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
from tvae.model.covariance import Whitening
from tvae.model.decoder import Mlp
from tvae.model.local_prior import Local
from tvae.model.prior import Bernoulli
from tvae.model.slab import Slab
from tvae.model.vae import Model
from tvae.training.backend import Minibatch
from tvae.training.m_step import Totals

MOST_ON = 8  # latents in any state, as in slab.hpp
PRUNE = 1e-3  # states with a smaller q do not count in posterior moments
PART_MIN = 2048  # data points
N_PARTS = 8  # of the data points, whose sums are added in order: results do not depend on the number of threads


def has_slab(model: Model, ea: EaConfig) -> bool:
    """True if the kernel can do the whole visit of this model with this search."""
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
        n_points, n_states, _ = packed.shape
        n_latents, rank, n_values = likelihood.directions.shape
        self.bias = decoder.biases[0].detach()
        self.vectors = torch.cat([decoder.weights[0].detach()[:, None], likelihood.directions], 1)
        prior, pi, cell, is_local = model.prior, model.prior.mean()[None], None, False
        if isinstance(prior, Local) and index is not None and prior.cells is not None:
            pi, cell = prior.local, prior.cells[index]
            is_local = bool((pi != pi[0]).any())
        n_tried = min(ea.n_candidates or n_latents, n_latents) if is_local else n_latents
        self.n_values: int | Tensor = n_values if observed is None else observed.sum(1, keepdim=True)
        self.packed = torch.empty_like(packed, memory_format=torch.contiguous_format)
        self.log_joint, self.log_prior = (torch.empty(n_points, n_states, dtype=torch.float64) for _ in range(2))
        self.n_accepted = torch.zeros(n_points, dtype=torch.int64)
        self.arguments = of = Arguments()
        self.task = SlabTask(
            n_points=n_points,
            n_values=n_values,
            n_latents=n_latents,
            rank=rank,
            n_states=n_states,
            n_cells=len(pi),
            n_threads=n_threads_for(n_points * n_tried * (rank + 1) * n_values),
            n_parts=max(1, min(N_PARTS, n_points // PART_MIN)),
            most_on=min(ea.most_on, MOST_ON),
            n_candidates=n_tried,
            n_parents=ea.n_parents,
            n_children=ea.n_children,
            n_generations=ea.n_generations if searches else 0,
            sigma2=likelihood.sigma2.item(),
            prune=prune,
            far_below=ea.far_below,
            x=of.tensor(x),
            bias=of.tensor(self.bias),
            vectors=of.tensor(self.vectors),
            observed=of.optional(None if observed is None else observed.view(torch.uint8)),
            cell=of.optional(cell),
            pi=of.tensor(pi.to(x.dtype)),
            packed=of.tensor(packed),
            new_packed=self.packed.data_ptr(),
            log_joint=self.log_joint.data_ptr(),
            log_prior=self.log_prior.data_ptr(),
            n_accepted=self.n_accepted.data_ptr(),
        )

    def run(self, dtype: torch.dtype) -> None:
        kernel("slab", dtype)(ctypes.byref(self.task))
        if self.task.most_found > MOST_ON:
            raise ValueError(f"a state with more than {MOST_ON} latents on")

    def e_step(self, dtype: torch.dtype) -> EStep:
        """The result of an E-step, after `run`."""
        sigma2 = self.task.sigma2
        constant = self.n_values * torch.log(torch.tensor(2 * torch.pi * sigma2, dtype=torch.float64))
        error = sigma2 * (2 * (self.log_prior - self.log_joint) - constant)
        return EStep(self.packed, error.to(dtype), self.log_joint.to(dtype), self.n_accepted.sum())


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
    searches = rng is not None and packed.shape[1] < 2**model.n_latents
    job = _Job(model, ea, x, packed, searches, observed, index)
    job.run(x.dtype)
    return job.e_step(x.dtype)


def visit(model: Model, ea: EaConfig, prune: float, batch: Minibatch, totals: Totals) -> tuple[Tensor, list[Tensor]]:
    """E-step and the sums of the M-step at one go, see `training.backend.VisitFunction`; needs `has_slab`."""
    x, observed, index, sums = batch.x, batch.observed, batch.index, totals.sums
    searches = batch.packed.shape[1] < 2**model.n_latents
    job = _Job(model, ea, x, batch.packed, searches, observed, index, prune)  # of each state, not of all together
    task, prior = job.task, model.prior
    cell = prior.cells[index] if isinstance(prior, Local) and prior.cells is not None else None
    n_rows = task.n_parts if cell is None else task.n_cells
    active = torch.zeros(n_rows, model.n_latents, dtype=torch.float64)
    task.active = active.data_ptr()
    task.together, task.shift, task.spread = (sums[name].data_ptr() for name in ("n_together", "shift", "spread"))
    job.run(x.dtype)
    sums["n_points"] += len(x)
    sums["n_observed"] += x.numel() if observed is None else observed.sum()
    sums["elbo"] += task.elbo
    sums["n_accepted"] += job.n_accepted.sum()
    sums["error"] += task.error
    sums["n_on"] += active.sum(0)
    if cell is None:
        sums["active"] += active.sum(0)
    else:
        sums["active"] += active
        sums["n_in_cell"] += torch.bincount(cell, minlength=n_rows)
    return job.packed, []


def moments(
    model: Model,
    ea: EaConfig,
    x: Tensor,
    packed: Tensor,
    rng: Stream | None,
    observed: Tensor | None = None,
    index: Tensor | None = None,
    whitening: Whitening | None = None,
) -> tuple[Tensor, Tensor]:
    """(B, D) each: posterior mean and variance of the clean value, after an E-step; needs `has_slab`.

    `whitening`: by which x, all of which is observed then, has been whitened; see `inference.posterior.clean_moments`.
    """
    searches = rng is not None and packed.shape[1] < 2**model.n_latents
    job = _Job(model, ea, x, packed, searches, observed, index, PRUNE)
    mean, variance = torch.empty_like(x), torch.empty_like(x)
    job.task.mean, job.task.variance = mean.data_ptr(), variance.data_ptr()
    if whitening is not None:
        assert observed is None
        job.task.clean_bias, job.task.clean_vectors = (
            job.arguments.tensor(each @ whitening.of_model) for each in (job.bias, job.vectors)
        )
    job.run(x.dtype)
    return (mean, variance) if whitening is None else whitening.back(x, mean, variance, job.task.sigma2)
