"""Restoration of an image by a trained model: the posterior mean of every overlapping patch, averaged.

    x_est = sum_z q(z) E[clean x | x, z]                                                                       Eq. (15)

For the paper's likelihood the expectation is mu(z; W). A pixel's uncertainty is the standard deviation over
the states of a patch and over the patches that hold the pixel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tvae.data.patch_source import PatchSource
from tvae.data.patches import AVERAGES, nearest
from tvae.data.picture import Picture
from tvae.inference.posterior import clean_moments, significant_states
from tvae.inference.streams import Stream, derive
from tvae.model.covariance import Whitening
from tvae.model.slab import Slab
from tvae.restoration.aggregation import Accumulator
from tvae.restoration.tiling import Band, Bands, chunks, overlapping
from tvae.training.points import Reader
from tvae.training.trainer import Fit

CHUNK = 512  # patches restored at once
CHUNK_AT_ONCE = 32768  # the same, where the backend has `moments`
WEIGHT_FLOOR = 0.05  # of sigma2, added to a patch's variance before its inverse is taken as a weight
PRUNE = 1e-4  # share of q left out


@dataclass(frozen=True)
class Plan:
    """Options of a restoration by posterior mean."""

    patch_size: int
    train_stride: int  # between the patches that were trained on, whose states are taken over
    stride: int = 1  # between the patches that are averaged
    average: str = "uniform"
    n_rounds: int = 2  # E-steps with fixed parameters before the posterior mean is taken
    keep_known: bool = False  # only missing pixels are replaced


@dataclass(frozen=True, eq=False)
class Restored:
    pixels: np.ndarray  # (H, W, C) float64, in the image's units, not clipped
    uncertainty: np.ndarray  # (H, W, C) float64: standard deviation of the error as stated, in the same units
    noise_level: float | None = None  # standard deviation of the noise, where it was looked for, in the same units
    psnr_model: float | None = None  # of the posterior mean alone, where the clean picture is known
    is_posterior: bool = False  # the uncertainty is that of the model's whole posterior


def first_page(picture: Picture, restored: Restored, step: int = 1) -> tuple[Picture, Restored]:
    """The first page of a stack, with every `step`-th pixel; a single picture with step 1 is returned unchanged."""
    if picture.image.layout is None and step == 1:
        return picture, restored
    own = slice(0, picture.page_height, step), slice(None, None, step)
    alpha = picture.image.alpha
    image = replace(picture.image, layout=None, alpha=None if alpha is None else alpha[own])
    page = replace(
        picture,
        image=image,
        noisy=picture.noisy[own],
        clean=None if picture.clean is None else picture.clean[own],
        missing=None if picture.missing is None else picture.missing[own],
    )
    return page, replace(restored, pixels=restored.pixels[own], uncertainty=restored.uncertainty[own])


@torch.no_grad()
def restore(fit: Fit, picture: Picture, plan: Plan, bands: Bands = Bands()) -> Restored:  # noqa: B008
    """The restored picture. To be called on all ranks: each estimates those patches whose states it has."""
    source = PatchSource(picture, plan.patch_size, plan.stride)
    patches = source.reader(range(source.n_points), fit.units, fit.device, fit.model.pi.dtype)
    whitening = None if source.whitening is None else source.whitening.to(fit.model.pi)
    found = torch.empty(2, *picture.noisy.shape, dtype=torch.float64)

    def of_band(band: Band) -> Tensor:
        mean, variance = _of_band(fit, patches, (picture.page_height, *picture.noisy.shape[1:]), plan, band, whitening)
        return torch.stack([fit.units.to_data(mean), variance.sqrt() * fit.units.std])

    bands.fill("states", found, picture.n_pages, of_band, is_joint=True)
    likelihood = fit.model.likelihood  # a slab model tells the noise from the picture, binary states do not
    pixels, uncertainty = found.numpy()
    is_slab, is_exact = isinstance(likelihood, Slab), plan.keep_known and picture.known is not None
    level = likelihood.sigma(fit.units) if is_slab and not is_exact else None
    restored = Restored(pixels, uncertainty, level, is_posterior=is_slab)
    return kept(restored, picture) if is_exact else restored


def kept(restored: Restored, picture: Picture) -> Restored:
    """The same with the known pixels as they were, if some are missing."""
    if picture.known is not None:
        np.copyto(restored.pixels, picture.noisy, where=picture.known)
        np.copyto(restored.uncertainty, 0, where=picture.known)
    return restored


def _of_band(
    fit: Fit, patches: Reader, shape: tuple[int, ...], plan: Plan, band: Band, whitening: Whitening | None
) -> Tensor:
    """(2, rows, W, C): mean and variance of its pixels, as the model sees them; `shape`: of a page.

    `whitening`: of correlated noise, by which patches were whitened.
    """
    height, width, n_channels = shape
    sums = Accumulator((height, width, n_channels), plan.patch_size, plan.stride, _weights(plan), band.rows)
    rows, columns = nearest(shape, plan.patch_size, plan.train_stride, plan.stride)  # whose states are taken
    page, own, n = band.page.start // height, fit.points.own, len(rows) * len(columns)
    n_trained = int(rows[-1]) + int(columns[-1]) + 1  # of a page
    reach = overlapping(sums.rows, plan.patch_size, band.rows)
    size = CHUNK if fit.backend.moments is None else CHUNK_AT_ONCE
    for index in chunks(range(reach.start * len(columns), reach.stop * len(columns)), size, n):
        trained = page * n_trained + rows[index // len(columns)] + columns[index % len(columns)]
        is_own = (trained >= own.start) & (trained < own.stop)
        if is_own.any():
            index, trained = index[is_own], trained[is_own] - own.start
            number = (page * n + index).to(fit.device)
            packed = fit.points.sets.take(trained.to(fit.device))
            trained = trained + own.start
            moments = _moments(fit, *patches.take(number), packed, number, trained, plan.n_rounds, whitening)
            sums.add(index, *moments, _certainty(fit, moments[1]))
    sums.merge(fit.team)
    return sums.result()


def _certainty(fit: Fit, variance: Tensor) -> Tensor | None:
    """(B,): the inverse of a patch's posterior variance, where the likelihood has one; else all count alike."""
    likelihood = fit.model.likelihood
    if not isinstance(likelihood, Slab):
        return None
    return 1 / (variance.mean(1) + WEIGHT_FLOOR * likelihood.sigma2)


def _weights(plan: Plan) -> Tensor:
    return AVERAGES[plan.average](plan.patch_size)


def _moments(
    fit: Fit,
    x: Tensor,
    observed: Tensor | None,
    packed: Tensor,
    number: Tensor,
    trained: Tensor,
    n_rounds: int,
    whitening: Whitening | None,
) -> tuple[Tensor, Tensor]:
    """(B, D) each: mean and variance of the clean patches with these numbers, and those of the nearest trained ones."""
    index = trained.to(fit.device)
    model, config, backend = fit.model, fit.config, fit.backend
    streams = [Stream(derive(config.seed, "restore", i), number) for i in range(n_rounds)]
    last = streams.pop() if streams and backend.moments is not None else None
    for rng in streams:
        packed = backend.e_step(model, config.ea, x, packed, rng, observed, index).packed
    if backend.moments is not None:
        return backend.moments(model, config.ea, x, packed, last, observed, index, whitening)
    rows = significant_states(backend.e_step(model, config.ea, x, packed, None, observed, index), PRUNE)
    return clean_moments(model, x, rows, observed, backend.products, whitening)
