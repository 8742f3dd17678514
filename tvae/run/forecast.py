"""What a run will do and take, said in one line before it begins: picture, model, time and memory.

Training is timed by a few E-steps, which change nothing. The refinement that follows it is too costly to try, so its
time is that of the machine it was measured on: one core of an AMD EPYC (Zen 3).
"""

from __future__ import annotations

import logging
import math
import time

import torch

from tvae.core.fit import Fit
from tvae.core.streams import Stream
from tvae.data.dataset import Dataset
from tvae.data.noise_level import estimate_noise
from tvae.data.picture import Picture, size_of
from tvae.data.sets.image import ImageConfig
from tvae.options.schema import Config
from tvae.restore.refinement import SIDE_MIN
from tvae.run.memory import bytes_needed
from tvae.run.progress import as_time
from tvae.run.restoring import stride_of_states

log = logging.getLogger(__name__)

# Microseconds of a core per grey pixel that refinement takes (64x64): little noise, much noise, missing pixels
REFINEMENT_COST = {"fast": (130, 140, 490), "default": (390, 550, 1210), "best": (990, 1210, 3440)}
IN_COLOUR = 2.0  # times that, with three channels
MUCH_NOISE = 35.0  # grey levels of 0..255
THREADS_GAIN = 0.5  # what each further thread of the refinement brings


def opening(config: Config, fit: Fit, dataset: Dataset) -> str:
    """The line. Where a run is resumed, the time is that of what is left."""
    picture, options = dataset.picture, config.dataset
    if picture is None or not isinstance(options, ImageConfig):
        what = f"{options.name}: {fit.points.n_points} data points of {dataset.source.n_values} values"
        patches = ""
        seconds = _training_seconds(fit)
    else:
        noise = estimate_noise(picture.noisy, picture.missing) * 255 / picture.grey_range
        what = f"{config.image or options.name}: {_shown(picture)}, noise about {noise:.3g} of 255"
        patches = f"patches of {options.patch_size}x{options.patch_size}, "
        seconds = _training_seconds(fit) + _restoration_seconds(config, fit, picture, noise)
    epochs = f"{fit.n_epochs} epochs" if fit.epoch == 0 else f"{fit.n_epochs - fit.epoch} of {fit.n_epochs} epochs left"
    model = f"{patches}{fit.model.n_latents} latents, {epochs}"
    return f"{what}; {model}; about {as_time(seconds)} and {bytes_needed(config, dataset) / 2**30:.1f} GB of memory"


def _shown(picture: Picture) -> str:
    missing = 0.0 if picture.missing is None else 100 * float(picture.missing.mean())
    colours = "" if picture.noisy.shape[2] == 3 else " grey"
    return f"{size_of(picture.image)}{colours}, {missing:.3g} % missing"


def _e_step_seconds(fit: Fit) -> float:
    """Of one data point, in batches of those that a rank visits at a time."""
    n_own = math.ceil(fit.batch_size / fit.team.size)
    index = torch.arange(min(len(fit.points.own), n_own), device=fit.device)
    x, observed = fit.points.rows(index)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        fit.engine.e_step(fit.model, fit.config.ea, x, fit.points.sets.take(index), Stream(0, index), observed)
        times.append(time.perf_counter() - started)
    return min(times) / len(index)  # the first ones have threads to start and caches to fill


def _training_seconds(fit: Fit) -> float:
    """The rest of a visit takes about as long as its E-step."""
    n_visits = (fit.n_epochs - fit.epoch) * fit.n_batches * math.ceil(fit.batch_size / fit.team.size)
    return 2 * _e_step_seconds(fit) * n_visits


def _restoration_seconds(config: Config, fit: Fit, picture: Picture, noise: float) -> float:
    """Of all patches by their states, now and then and at the end, and of the refinement."""
    assert isinstance(config.dataset, ImageConfig)
    n_patches = math.prod(side / stride_of_states(config, picture) for side in picture.noisy.shape[:2])
    n_looks = (fit.n_epochs - fit.epoch) // config.restore_every
    is_refined = config.model.residual != "none"
    n_steps = 1 + n_looks + (0 if is_refined else config.restore_rounds)
    by_states = _e_step_seconds(fit) * n_steps * n_patches / fit.team.size
    if not is_refined or min(picture.noisy.shape[:2]) < SIDE_MIN:
        return by_states
    kind = 2 if picture.missing is not None else int(noise > MUCH_NOISE)
    height, width, n_channels = picture.noisy.shape
    per_pixel = 1e-6 * REFINEMENT_COST[config.effort][kind] * (1 if n_channels == 1 else IN_COLOUR)
    return by_states + height * width * per_pixel / (1 + THREADS_GAIN * (torch.get_num_threads() - 1))


def warn_of_blind_patches(fit: Fit, dataset: Dataset) -> None:
    """Warn of patches without a known pixel: they get the mean of the states' outputs under the prior."""
    n_blind = sum(fit.team.gather(dataset.source.n_blind(fit.points.own)))
    if n_blind and fit.team.is_leader:
        log.warning(
            "%d of %d patches have no known pixel; what is restored there is what the model expects of any patch "
            "(a larger dataset.patch_size reaches further)", n_blind, fit.points.n_points,
        )  # fmt: skip
