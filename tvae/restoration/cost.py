"""Cost of restoration: seconds of each of its stages, which tell how long it will take and how far it has come.

The E-step is tried, which changes nothing. What refines is too costly to try: its constants are those of one core of an
AMD EPYC (Zen 3), times what this machine takes for a small part of it (docs/pictures.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache

import torch

from tvae.backends.native.threads import WORTH_THREADS, n_threads_for
from tvae.config.schema import Config
from tvae.data.picture import Picture
from tvae.data.sets.image import ImageConfig
from tvae.inference.streams import Stream, generator
from tvae.restoration.non_local.block_matching import similar_patches
from tvae.restoration.non_local.effort import REFINEMENTS, Refinement
from tvae.restoration.non_local.nl_ridge import refine
from tvae.restoration.non_local.stage import LARGER_GROUPS, MUCH_NOISE, SIDE_MIN
from tvae.training.trainer import Fit

# Seconds, grey and in colour
REFERENCE = 60e-6, 90e-6  # of a patch that a local group is formed around, and on top by the square of the group's size
BY_SQUARE = 0.073e-6, 0.11e-6
FILLED, BY_VOLUME = 60e-6, 2.4e-9  # where pixels are missing, and on top by that square times the values of a patch
ENDING = 1.5  # seconds that figures take

THREADS_GAIN = 0.5  # what each further thread of the refinement brings
TRIAL, TRIAL_SECONDS = 48, 0.145  # pixels along a side of a trial, and what it took where the constants are from
N_TRIALS = 3
N_TRIED = 1024  # data points of an E-step that is timed


N_DENSE = 1_000_000  # pixels; a larger picture's pilot takes every second patch (docs/pictures.md)


def stride_of_states(config: Config, picture: Picture) -> int:
    """Between the patches that are averaged; a large picture's first estimate of two takes every second one."""
    options = config.dataset
    assert isinstance(options, ImageConfig)
    assert options.patch_size is not None
    is_thinned = config.restoration.method == "nonlocal" and picture.noisy[..., 0].size > N_DENSE
    return min(options.patch_size, max(options.stride, 2)) if is_thinned else options.stride


def stages(config: Config, fit: Fit, picture: Picture) -> dict[str, float]:
    """Seconds of what `restore_picture` does, one after the other."""
    is_refined = config.restoration.method == "nonlocal"
    n_steps = 1 if is_refined else 1 + config.restoration.n_rounds
    seconds = {"states": n_steps * seconds_by_states(config, fit, picture)}
    is_small = min(picture.page_height, picture.noisy.shape[1]) < SIDE_MIN
    if not is_refined or is_small or picture.seen.covariance is not None:
        return seconds
    plan, seen = REFINEMENTS[config.effort], picture.seen
    is_whole = seen.is_nearly_whole(bool(config.keep_known))
    work = _denoising(plan, seen) if is_whole else _filling(plan, seen)
    n_at_work = fit.team.size * (1 + THREADS_GAIN * (n_threads_for(WORTH_THREADS + 1) - 1))
    return seconds | {stage: slowness() * each / n_at_work for stage, each in work.items()}


def seconds_by_states(config: Config, fit: Fit, picture: Picture) -> float:
    """Seconds of the posterior means of all patches, which take about as long as an E-step."""
    n_patches = math.prod(side / stride_of_states(config, picture) for side in picture.noisy.shape[:2])
    return e_step_seconds(fit) * n_patches / fit.team.size


def _denoising(plan: Refinement, picture: Picture) -> dict[str, float]:
    height, width, n_channels = picture.noisy.shape
    colour = int(n_channels > 1)
    growth = LARGER_GROUPS if picture.noise * 255 / picture.grey_range > MUCH_NOISE else 1.0
    each = (REFERENCE[colour] + BY_SQUARE[colour] * (growth * n_similar) ** 2 for _, n_similar in plan.local)
    seconds = height * width / plan.step**2 * sum(each)
    return {"local": seconds, "again": seconds} if plan.is_repeated else {"local": seconds}


def _filling(plan: Refinement, picture: Picture) -> dict[str, float]:
    height, width, n_channels = picture.noisy.shape
    each = (FILLED + BY_VOLUME * n_similar**2 * side**2 * n_channels for side, n_similar in plan.fill)
    seconds = height * width / plan.step**2 * sum(each)
    return {f"filled {i}": seconds for i in range(plan.n_fill_passes)}


def e_step_seconds(fit: Fit) -> float:
    """Seconds of an E-step for one data point, in batches of those that a rank visits at a time, or of `N_TRIED`."""
    n_own = math.ceil(min(fit.batch_size, N_TRIED) / fit.team.size)
    index = torch.arange(min(len(fit.points.own), n_own), device=fit.device)
    x, observed = fit.points.rows(index)

    def e_step() -> None:
        packed, number = fit.points.sets.take(index), index + fit.points.own.start
        fit.backend.e_step(fit.model, fit.config.ea, x, packed, Stream(0, index), observed, number)

    return _shortest(e_step, 5, fit.device.type == "cpu") / len(index)


@lru_cache
def slowness() -> float:
    """How many times as long as the measured one this machine takes for local groups."""
    pixels = torch.rand(TRIAL, TRIAL, 1, generator=generator(0, "trial"))

    groups, sigma2 = [*similar_patches(pixels, 6, 3, 15, 60)], torch.tensor([0.01])

    def trial() -> None:
        refine(pixels, pixels, groups, 6, sigma2)

    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # others would wait for each other, and count as work
        return _shortest(trial, N_TRIALS, True) / TRIAL_SECONDS
    finally:
        torch.set_num_threads(n_threads)


def _shortest(action: Callable[[], None], n: int, is_here: bool) -> float:
    """Seconds; the first ones have threads to start and caches to fill. `is_here`: of this thread, not of others."""
    clock, times = time.thread_time if is_here else time.perf_counter, []
    for _ in range(n):
        started = clock()
        action()
        times.append(clock() - started)
    return min(times)
