"""From a trained model back to an image: the posterior mean of every overlapping patch, averaged.

    x_est = sum_z q(z) mu(z; W)                                                                                Eq. (15)

A pixel's uncertainty is the standard deviation of mu under q, with the patches that hold the pixel as a mixture: the
average of their variances plus the variance of their means.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tvae.config import ImageConfig
from tvae.datasets import Picture
from tvae.datasets.images import cut
from tvae.fit import Fit
from tvae.inference import e_step
from tvae.learning import outputs, weighty_states
from tvae.metrics import psnr, ssim
from tvae.patches import average, nearest, patch_weights
from tvae.streams import Stream, derive

log = logging.getLogger(__name__)

CHUNK = 512  # patches restored at once
PRUNE = 1e-4  # share of q left out


@dataclass(frozen=True, eq=False)
class Restored:
    pixels: np.ndarray  # (H, W, C) float64, in the image's units, not clipped
    uncertainty: np.ndarray  # (H, W, C) float64: posterior standard deviation, in the same units


@torch.no_grad()
def restore(fit: Fit, picture: Picture, keep_observed: bool, n_rounds: int) -> Restored:
    """Average all patches at `dataset.stride` after `n_rounds` of E-steps with fixed parameters.

    With `keep_observed` only missing pixels are replaced. To be called on all ranks: each estimates those patches whose
    states it has.
    """
    options = fit.config.dataset
    assert isinstance(options, ImageConfig)
    patch_size, stride, train_stride = options.patch_size, options.stride, options.train_stride
    assert patch_size is not None
    assert train_stride is not None
    x, observed = fit.points.to_model(*cut(picture, patch_size, stride))
    place = nearest(picture.noisy.shape, patch_size, train_stride, stride).to(x.device)  # whose states are taken
    is_own = (place >= fit.points.own.start) & (place < fit.points.own.stop)
    mean, variance = torch.zeros_like(x), torch.zeros_like(x)
    for index in is_own.nonzero()[:, 0].split(CHUNK):
        known = None if observed is None else observed[index]
        packed = fit.points.states[place[index] - fit.points.own.start]
        mean[index], variance[index] = _moments(fit, x[index], packed, index, known, n_rounds)
    fit.ranks.add([mean, variance])

    weights = patch_weights(options.average, patch_size)
    height, width, n_channels = picture.noisy.shape

    def averaged(patches: Tensor) -> np.ndarray:
        shape = (height, width, n_channels)
        return average(patches.cpu().double(), shape, patch_size, stride, weights).numpy()

    estimate = averaged(mean)
    spread = averaged(variance + mean.square()) - estimate**2
    pixels = fit.units.to_data(estimate)
    uncertainty = np.sqrt(np.maximum(spread, 0)) * fit.units.std
    if keep_observed and picture.missing is not None:
        pixels = np.where(picture.missing[..., None], pixels, picture.noisy)
        uncertainty = np.where(picture.missing[..., None], uncertainty, 0)
    return Restored(pixels, uncertainty)


def _moments(
    fit: Fit, x: Tensor, packed: Tensor, index: Tensor, observed: Tensor | None, n_rounds: int
) -> tuple[Tensor, Tensor]:
    """(B, D) each: mean and variance of mu under q."""
    model, config = fit.model, fit.config
    for round_ in range(n_rounds):
        rng = Stream(derive(config.seed, "restore", round_), index)
        packed = e_step(model, config.ea, x, packed, rng, observed).packed
    rows = weighty_states(e_step(model, config.ea, x, packed, None, observed), PRUNE)
    mu = outputs(model.decoder, rows)
    weighted = rows.weight[:, None] * mu
    mean = torch.zeros_like(x).index_add_(0, rows.point, weighted)
    square = torch.zeros_like(x).index_add_(0, rows.point, weighted * mu)
    return mean, (square - mean.square()).clamp(min=0)


def quality(restored: Restored, picture: Picture) -> dict[str, float | None]:
    """PSNR and SSIM against the clean image; null where there is none, or (the input's) where pixels are missing."""
    if picture.clean is None:
        return {"psnr": None, "psnr_input": None, "ssim": None}
    found = {
        "psnr": psnr(picture.clean, restored.pixels, picture.peak),
        "psnr_input": psnr(picture.clean, picture.noisy, picture.peak) if picture.missing is None else math.inf,
        "ssim": ssim(picture.clean, restored.pixels, picture.peak),
    }
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def warn_of_blind_patches(fit: Fit) -> None:
    """Say so where there is nothing to go by: such patches get the mean of the states' outputs under the prior."""
    n_blind = 0 if fit.points.observed is None else int((~fit.points.observed.any(1)).sum())
    n_blind = sum(fit.ranks.gather(n_blind))
    if n_blind and fit.ranks.is_leader:
        log.warning(
            "%d of %d patches have no known pixel; what is restored there is what the model expects of any patch "
            "(a larger dataset.patch_size reaches further)", n_blind, fit.points.n_points,
        )  # fmt: skip
