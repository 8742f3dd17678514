"""The bound of a small slab model on patches of a picture, by which models of its noise are compared.

    log p(x) >= ELBO of the model on T(x) R^-1/2 + log |T'(x)| - 1/2 log |R|

in the picture's own units, so that whichever describes the picture best has the highest one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tvae.backends import choose_backend
from tvae.inference.evolution import EaConfig
from tvae.inference.states import StatesConfig
from tvae.inference.streams import generator
from tvae.model.units import Units
from tvae.model.vae import ModelConfig, start_model
from tvae.training.points import InMemory, Points
from tvae.training.start import start_slabs
from tvae.training.team import ALONE
from tvae.training.trainer import Fit, FitConfig, LrConfig

N_LATENTS = 40
RANK = 6
N_EPOCHS = 8
N_STATES = 4
BATCH = 32_768


class Bound(NamedTuple):
    nats: float  # per value, in the units of the patches
    sigma: float  # deviation of the noise, in these units


def bound_of(
    x: Tensor, shape: tuple[int, ...], sigma: float, observed: Tensor | None = None, is_fixed: bool = False
) -> Bound:
    """Fit the model to patches x (N, D) of `shape`; `sigma`: the noise, or unless `is_fixed` a guess from which it is
    learned."""
    n_latents = max(2, min(N_LATENTS, len(x) // 50))
    model_options = ModelConfig(
        n_latents=n_latents,
        hidden=[],
        likelihood="slab",
        slab=min(RANK, x.shape[1] - 1),
        solver="exact",
        sigma2=sigma**2,
        fixed_sigma2=is_fixed,
    )
    ea = EaConfig(selection="best", mutation="residual", n_parents=1, n_children=4, most_on=1)
    options = FitConfig(
        model=model_options,
        states=StatesConfig(n_states=min(N_STATES, n_latents)),
        ea=ea,
        lr=LrConfig(max=1e-3),
        epochs=N_EPOCHS,
        batch_size=BATCH,
    )
    source = InMemory(x, observed)
    known = source.known_values().double()
    units = Units(known.mean().item(), known.std(correction=0).item())
    variance = known.var(correction=0).item()
    rng = generator(0, "noise model")
    model = start_model(model_options, source.n_points, source.n_values, variance, units, rng).to(torch.float32)
    points = Points(source, ALONE, units, torch.device("cpu"), torch.float32)
    points.draw_states(model.pi, options.states, 0)
    start_slabs(model, points, points.reader, shape, 0)
    backend = choose_backend(model, ea, False, source.is_masked)
    fit = Fit(options, model, backend, points, units)
    for _ in fit.epochs():
        pass
    n_known = source.n_values if observed is None else float(observed.sum()) / len(x)
    nats = fit.bound() + (source.n_values - n_known) * math.log(units.std)  # missing values have no units
    return Bound(nats / n_known, model.likelihood.sigma(units))
