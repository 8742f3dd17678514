"""The visit by the kernel and its parts, with the meaning and random numbers of `torch_backend`."""

from __future__ import annotations

import ctypes
from collections.abc import Container

import torch
from torch import Tensor

from tvae.backends.native.adam import Adam
from tvae.backends.native.bindings import (
    ACTIVATIONS,
    C_TYPES,
    SELECTIONS,
    Arguments,
    EStepTask,
    GradientTask,
    StretchTask,
    VisitTask,
)
from tvae.backends.native.loading import is_available, kernel
from tvae.backends.native.packed_products import PRODUCTS
from tvae.backends.native.threads import n_threads_for
from tvae.inference.evolution import EaConfig
from tvae.inference.posterior import EStep
from tvae.inference.states import code_numbers
from tvae.inference.streams import Stream
from tvae.model.decoder import Mlp
from tvae.model.likelihood import Gaussian
from tvae.model.parts import Rows
from tvae.model.prior import Bernoulli
from tvae.model.vae import Model
from tvae.training.backend import Minibatch, Stretch, visit_by
from tvae.training.m_step import Totals


def is_usable(model: Model) -> bool:
    """True if the kernel can work with this model's tensors and its kind of decoder."""
    pi = model.pi
    return type(model.decoder) is Mlp and pi.device.type == "cpu" and pi.dtype in C_TYPES and is_available()


def has_e_step(model: Model, ea: EaConfig) -> bool:
    """True if `e_step` can do what this model and these options ask for."""
    is_known = is_usable(model) and _has_known_parts(model, ACTIVATIONS)
    return is_known and ea.is_by_flips and ea.selection in SELECTIONS


def has_gradient(model: Model) -> bool:
    """True if `gradient` can do what this model asks for: ReLU is the one activation that the kernel differentiates."""
    return is_usable(model) and _has_known_parts(model, ("relu",))


def _has_known_parts(model: Model, activations: Container[str]) -> bool:
    decoder = model.decoder
    has_known_decoder = type(decoder) is Mlp and (decoder.is_linear or decoder.activation in activations)
    return has_known_decoder and type(model.likelihood) is Gaussian and type(model.prior) is Bernoulli


def _known_parts(model: Model) -> tuple[Mlp, float]:
    """The decoder and sigma2."""
    decoder, likelihood = model.decoder, model.likelihood
    assert type(decoder) is Mlp
    assert type(likelihood) is Gaussian
    return decoder, likelihood.sigma2.item()


class Gradients:
    """Memory for the decoder's gradients, as the kernel takes it."""

    def __init__(self, decoder: Mlp, arguments: Arguments) -> None:
        self.tensors = [torch.empty_like(parameter) for parameter in (*decoder.weights, *decoder.biases)]
        addresses, n_layers = [tensor.data_ptr() for tensor in self.tensors], len(decoder.weights)
        self.fields = {
            "weight_gradients": arguments.array(addresses[:n_layers]),
            "bias_gradients": arguments.array(addresses[n_layers:]),
        }


def _e_step_task(
    model: Model, ea: EaConfig, x: Tensor, packed: Tensor, rng: Stream | None, observed: Tensor | None
) -> tuple[EStepTask, EStep, Arguments]:
    """The task for the kernel, the tensors of its results, and the memory that it reads."""
    batch, n_states, _ = packed.shape
    if n_states >= 2**model.n_latents:  # with all states in, this is the exact posterior
        rng = None
    decoder, sigma2 = _known_parts(model)
    step = EStep(
        packed=torch.empty_like(packed, memory_format=torch.contiguous_format),
        error=x.new_empty(batch, n_states),
        log_joint=x.new_empty(batch, n_states),
        n_accepted=torch.empty(batch, dtype=torch.int64),
    )
    arguments = Arguments()
    task = EStepTask(
        decoder=arguments.network(decoder),
        batch=batch,
        n_states=n_states,
        n_latents=model.n_latents,
        n_threads=n_threads_for(batch * n_states * decoder.cost),
        selection=SELECTIONS[ea.selection],
        n_parents=ea.n_parents,
        n_children=ea.n_children,
        n_generations=0 if rng is None else ea.n_generations,
        n_flips=ea.n_flips,
        seed=0 if rng is None else rng.seed,
        n_drawn_before=0 if rng is None else rng.n_drawn,
        sigma2=sigma2,
        pi=arguments.tensor(model.pi),
        numbers=arguments.tensor(code_numbers(model.n_latents, x.device)),
        index=arguments.optional(None if rng is None else rng.index),
        x=arguments.tensor(x),
        observed=arguments.optional(observed),
        packed=arguments.tensor(packed),
        new_packed=step.packed.data_ptr(),
        error=step.error.data_ptr(),
        log_joint=step.log_joint.data_ptr(),
        n_accepted=step.n_accepted.data_ptr(),
    )
    return task, step, arguments


def e_step(
    model: Model,
    ea: EaConfig,
    x: Tensor,
    packed: Tensor,
    rng: Stream | None,
    observed: Tensor | None = None,
    index: Tensor | None = None,
) -> EStep:
    """Eqs. (7) and (8), see `training.backend.EStepFunction`; needs `has_e_step`. The prior is the same for all."""
    task, step, _held = _e_step_task(model, ea, x, packed, rng, observed)
    kernel("e_step", x.dtype)(ctypes.byref(task))
    if rng is not None:
        rng.n_drawn += task.n_drawn
    return step._replace(n_accepted=step.n_accepted.sum())


def gradient(
    model: Model,
    x: Tensor,
    rows: Rows,
    observed: Tensor | None,
    n_points: int,
    index: Tensor | None = None,
    imputes: bool = False,
) -> list[Tensor]:
    """Eq. (4) divided by the number of data points, see `training.backend.GradientFunction`; needs `has_gradient`.

    Missing values are left out, or with `imputes` stand at their posterior mean, as in `torch_backend.gradient_by`.
    """
    decoder, sigma2 = _known_parts(model)
    arguments = Arguments()
    gradients = Gradients(decoder, arguments)
    task = GradientTask(
        decoder=arguments.network(decoder),
        n_rows=len(rows.packed),
        n_latents=model.n_latents,
        n_threads=n_threads_for(len(rows.packed) * decoder.cost),
        imputes=imputes,
        scale=1 / (sigma2 * n_points),
        point=arguments.tensor(rows.point),
        packed=arguments.tensor(rows.packed),
        weight=arguments.tensor(rows.weight),
        x=arguments.tensor(x),
        observed=arguments.optional(observed),
        **gradients.fields,
    )
    kernel("gradient", x.dtype)(ctypes.byref(task))
    return gradients.tensors


_visit_by_parts = visit_by(e_step, gradient, PRODUCTS)


def _visit_task(
    model: Model, ea: EaConfig, prune: float, batch: Minibatch, totals: Totals, imputes: bool
) -> tuple[VisitTask, EStep, Gradients, Arguments]:
    """The task for the kernel, the tensors of its results, and the memory that it reads."""
    search, step, arguments = _e_step_task(model, ea, batch.x, batch.packed, batch.rng, batch.observed)
    decoder, sigma2 = _known_parts(model)
    gradients = Gradients(decoder, arguments)
    task = VisitTask(
        search=search,
        imputes=imputes,
        prune=prune,
        scale=1 / (sigma2 * batch.n_points),
        **{name: value.data_ptr() for name, value in totals.sums.items()},
        **gradients.fields,
    )
    return task, step, gradients, arguments


def visit_batch(
    model: Model, ea: EaConfig, prune: float, batch: Minibatch, totals: Totals, imputes: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """See `training.backend.VisitFunction`; needs `has_e_step` and `has_gradient`.

    In one call, so that threads meet as rarely as possible and nothing is left for one of them alone.
    """
    if totals.is_exact:
        return _visit_by_parts(model, ea, prune, batch, totals)
    task, step, gradients, _held = _visit_task(model, ea, prune, batch, totals, imputes)
    kernel("visit", batch.x.dtype)(ctypes.byref(task))
    batch.rng.n_drawn += task.search.n_drawn
    return step.packed, gradients.tensors


def visit_stretch(
    model: Model, ea: EaConfig, prune: float, stretch: Stretch, totals: Totals, imputes: bool = False
) -> Tensor:
    """See `training.backend.StretchFunction`; needs `has_e_step` and `has_gradient`.

    What Python does for a minibatch would take a third of the time of a small model on two threads.
    """
    optimiser, size = stretch.optimiser, stretch.size
    assert isinstance(optimiser, Adam)
    visit, step, gradients, arguments = _visit_task(model, ea, prune, stretch.batch, totals, imputes)
    visit.search.n_threads = n_threads_for(size * visit.search.n_states * model.decoder.cost)
    adam = optimiser.task(arguments, [tensor.data_ptr() for tensor in gradients.tensors], stretch.rates)
    kernel("stretch", stretch.batch.x.dtype)(ctypes.byref(StretchTask(visit=visit, size=size, adam=adam)))
    return step.packed
