"""From a trained model back to an image: the posterior mean of every overlapping patch, averaged.

    x_est = sum_z q(z) E[clean x | x, z]                                                                       Eq. (15)

For the paper's likelihood the expectation is mu(z; W). A pixel's uncertainty is the standard deviation that belongs to
it, over the states of a patch and over the patches that hold the pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tvae.core.fit import Fit
from tvae.core.posterior import clean_moments, significant_states
from tvae.core.streams import Stream, derive
from tvae.data.patch_source import PatchSource
from tvae.data.patches import AVERAGES, nearest
from tvae.data.picture import Picture
from tvae.restore.averaging import Accumulator

CHUNK = 512  # patches restored at once
PRUNE = 1e-4  # share of q left out


@dataclass(frozen=True)
class Plan:
    """How a picture is restored."""

    patch_size: int
    train_stride: int  # between the patches that were trained on, whose states are taken over
    stride: int = 1  # between the patches that are averaged
    average: str = "uniform"
    n_rounds: int = 2  # E-steps with fixed parameters before the posterior mean is taken
    keep_observed: bool = False  # only missing pixels are replaced


@dataclass(frozen=True, eq=False)
class Restored:
    pixels: np.ndarray  # (H, W, C) float64, in the image's units, not clipped
    uncertainty: np.ndarray  # (H, W, C) float64: posterior standard deviation, in the same units
    noise_level: float | None = None  # standard deviation of the noise, where it was looked for, in the same units


@torch.no_grad()
def restore(fit: Fit, picture: Picture, plan: Plan) -> Restored:
    """The restored picture. To be called on all ranks: each estimates those patches whose states it has."""
    height, width, n_channels = shape = picture.noisy.shape
    dtype = fit.model.pi.dtype
    source = PatchSource(picture, plan.patch_size, plan.stride)
    patches = source.reader(range(source.n_points), fit.units, fit.device, dtype)
    place = nearest(shape, plan.patch_size, plan.train_stride, plan.stride).to(fit.device)  # whose states are taken
    own = fit.points.own
    is_own = (place >= own.start) & (place < own.stop)
    weights = AVERAGES[plan.average](plan.patch_size)
    sums = Accumulator((height, width, n_channels), plan.patch_size, plan.stride, weights)
    for index in is_own.nonzero()[:, 0].split(CHUNK):
        x, observed = patches.take(index)
        packed = fit.points.sets.take(place[index] - own.start)
        sums.add(index, *_moments(fit, x, packed, index, observed, plan.n_rounds))
    sums.merge(fit.team)
    mean, variance = (values.numpy() for values in sums.result())
    pixels, uncertainty = fit.units.to_data(mean), np.sqrt(variance) * fit.units.std
    if plan.keep_observed and picture.known is not None:
        pixels = np.where(picture.known, picture.noisy, pixels)
        uncertainty = np.where(picture.known, 0, uncertainty)
    return Restored(pixels, uncertainty)


def _moments(
    fit: Fit, x: Tensor, packed: Tensor, index: Tensor, observed: Tensor | None, n_rounds: int
) -> tuple[Tensor, Tensor]:
    """(B, D) each: mean and variance of the clean patches."""
    model, config, engine = fit.model, fit.config, fit.engine
    for round_ in range(n_rounds):
        rng = Stream(derive(config.seed, "restore", round_), index)
        packed = engine.e_step(model, config.ea, x, packed, rng, observed).packed
    rows = significant_states(engine.e_step(model, config.ea, x, packed, None, observed), PRUNE)
    return clean_moments(model, x, rows, observed, engine.products)
