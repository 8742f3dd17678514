"""What a run will take, said before it is taken: time and memory."""

from __future__ import annotations

import logging
import math
import time

import torch

from tvae.core.fit import Fit
from tvae.core.streams import Stream
from tvae.data.dataset import Dataset
from tvae.data.sets.image import ImageConfig
from tvae.options.schema import Config

log = logging.getLogger(__name__)

MINUTES_TO_TELL = 20
MEMORY_TO_TELL = 2.0  # GB


def tell_memory(config: Config, dataset: Dataset) -> None:
    """Say how much memory a large image will take, and how to need less."""
    options, picture, n_latents = config.dataset, dataset.picture, config.model.n_latents
    if not isinstance(options, ImageConfig) or picture is None:
        return
    assert options.patch_size is not None
    assert n_latents is not None
    height, width, n_channels = picture.noisy.shape
    n_values = options.patch_size**2 * n_channels
    state_bytes = config.states.n_states * math.ceil(n_latents / 8)
    # States twice while they are saved; all patches once in double precision, for their mean and variance.
    gigabytes = dataset.source.n_points * (8 * n_values + 2 * state_bytes) / 2**30
    if gigabytes > MEMORY_TO_TELL:
        log.warning(
            "%d x %d pixels, %d patches to train on: this needs about %.1f GB of memory; less with a larger "
            "dataset.train_stride, or fewer states.n_states", width, height, dataset.source.n_points, gigabytes,
        )  # fmt: skip


def tell_time(fit: Fit) -> None:
    """Say beforehand if training will take long: from the E-step of some batches, which changes nothing."""
    n_own = math.ceil(fit.config.batch_size / fit.team.size)
    index = torch.arange(min(len(fit.points.own), n_own), device=fit.device)
    x, observed = fit.points.rows(index)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        fit.engine.e_step(fit.model, fit.config.ea, x, fit.points.sets.take(index), Stream(0, index), observed)
        times.append(time.perf_counter() - started)
    # The first ones have threads to start and caches to fill. The rest of a visit takes about as long as the E-step.
    minutes = 2 * min(times) * fit.n_batches * (fit.n_epochs - fit.epoch) / 60
    if minutes > MINUTES_TO_TELL:
        log.warning(
            "%d data points, %d epochs: this takes about %.0f minutes on this machine; less with fewer epochs, "
            "fewer data points (a larger dataset.train_stride) or a smaller model.n_latents",
            fit.points.n_points, fit.n_epochs, minutes,
        )  # fmt: skip


def warn_of_blind_patches(fit: Fit, dataset: Dataset) -> None:
    """Warn of patches without a known pixel: they get the mean of the states' outputs under the prior."""
    n_blind = sum(fit.team.gather(dataset.source.n_blind(fit.points.own)))
    if n_blind and fit.team.is_leader:
        log.warning(
            "%d of %d patches have no known pixel; what is restored there is what the model expects of any patch "
            "(a larger dataset.patch_size reaches further)", n_blind, fit.points.n_points,
        )  # fmt: skip
