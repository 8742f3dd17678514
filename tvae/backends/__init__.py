"""Backends: the visit of a minibatch in torch and in C++, and which of them suits a model."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

from tvae.backends import native, torch_backend
from tvae.backends.native import slab
from tvae.inference.evolution import EaConfig
from tvae.model.packed import UNPACKED
from tvae.model.vae import Model
from tvae.training.backend import Backend, EStepFunction, visit_by

__all__ = ["choose_backend"]


def choose_backend(model: Model, ea: EaConfig, imputes: bool = False, is_exact_masked: bool = False) -> Backend:
    """The fastest functions for this model, on its device and in its precision, and this search.

    `imputes`: missing values stand at their posterior mean in the gradient. `is_exact_masked`: the M-step is exact and
    values are missing, which torch adds up.
    """
    if slab.has_slab(model, ea):
        gradient = torch_backend.gradient_by(native.PRODUCTS, imputes)
        return Backend(
            name="native",
            visit=slab.visit,
            e_step=slab.e_step,
            gradient=gradient,
            products=native.PRODUCTS,
            optimiser=native.Adam,
            at_work=native.torch_on_one_thread,
            moments=slab.moments,
        )
    if not native.is_usable(model):
        e_step: EStepFunction = torch_backend.e_step
        gradient = torch_backend.gradient_by(UNPACKED, imputes)
        visit = visit_by(e_step, gradient, UNPACKED)
        return Backend("torch", visit, e_step, gradient, UNPACKED, torch_backend.adam, nullcontext)
    products = native.PRODUCTS
    has_e_step = native.has_e_step(model, ea)
    has_gradient = native.has_gradient(model)
    is_whole = has_e_step and has_gradient and not is_exact_masked
    e_step = native.e_step if has_e_step else torch_backend.e_step
    gradient = (
        partial(native.gradient, imputes=imputes) if has_gradient else torch_backend.gradient_by(products, imputes)
    )
    return Backend(
        name="native" if is_whole else "native and torch",
        visit=partial(native.visit_batch, imputes=imputes) if is_whole else visit_by(e_step, gradient, products),
        e_step=e_step,
        gradient=gradient,
        products=products,
        optimiser=native.Adam,
        # The visit then leaves little to torch, and waking its threads takes longer.
        at_work=native.torch_on_one_thread if is_whole else nullcontext,
        stretch=partial(native.visit_stretch, imputes=imputes) if is_whole else None,
    )
