"""Cost of training and restoration: seconds of each stage, for the forecast of a run and how far it has come.

Constants are seconds of one busy core of an Intel Xeon (2.5 GHz, AVX-512), times what this machine takes for a small
part of the work. That is kept in the cache: the least that was ever measured, so that a neighbour does not count.
Where the kernel does not do the whole visit, an E-step is tried, which changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import torch

from tvae.backends.native.loading import cache_dir, speed_key
from tvae.backends.native.slab import has_slab
from tvae.backends.native.threads import WORTH_THREADS, n_threads_for
from tvae.config.schema import Config
from tvae.data.picture import Picture
from tvae.inference.streams import Stream, generator
from tvae.io.atomic import write_atomically
from tvae.model.local_prior import Local
from tvae.model.slab import Slab
from tvae.restoration.non_local.local_groups import refine_locally
from tvae.restoration.pipeline import stride_of_states
from tvae.restoration.second_stage import SECOND_STAGES
from tvae.training.trainer import Fit

# Seconds of a data point of the slab model: its posterior mean, on top by products of candidates, and for the sums of
# the M-step by the square of its values; of an M-step by H D^3, and of the local prior by cells and latents
POINT, BY_PRODUCT, VISIT, BY_SQUARE = 5e-6, 0.23e-9, 3e-6, 1.5e-9
BY_CUBE, BY_CELL = 1.4e-9, 55e-9
ENDING = 2.0  # seconds that figures take

THREADS_GAIN = 0.8  # what each further thread of the kernel brings
TRIAL, TRIAL_SECONDS = 48, 0.010  # pixels along a side of a trial, and what it took where the constants are from
N_TRIALS = 5
N_TRIED = 1024  # data points of an E-step that is timed


def stages(config: Config, fit: Fit, picture: Picture) -> dict[str, float]:
    """Seconds of what `restore_picture` does, one after the other."""
    second = SECOND_STAGES.get(config.restoration.method or "")
    n_steps = 1 + config.restoration.n_rounds if second is None else 1
    seconds = {"states": n_steps * seconds_by_states(config, fit, picture)}
    work = {} if second is None else second.seconds(picture.seen, bool(config.keep_known), config.effort)
    return seconds | {stage: slowness() * each / n_at_work(fit) for stage, each in work.items()}


def n_at_work(fit: Fit) -> float:
    """Speed of all ranks and threads together, relative to one thread."""
    return fit.team.size * (1 + THREADS_GAIN * (n_threads_for(WORTH_THREADS + 1) - 1))


def seconds_by_states(config: Config, fit: Fit, picture: Picture) -> float:
    """Seconds of the posterior means of all patches, which take about as long as an E-step."""
    n_patches = math.prod(side / stride_of_states(config, picture) for side in picture.noisy.shape[:2])
    if _is_by_formula(fit):
        return slowness() * _seconds_of_point(fit) * n_patches / n_at_work(fit)
    return e_step_seconds(fit) * n_patches / fit.team.size


def training_seconds(fit: Fit) -> float:
    """Seconds of the epochs that are left."""
    epochs = range(fit.epoch, fit.n_epochs)
    if not _is_by_formula(fit):
        n_points = sum(map(fit.n_batches, epochs)) * math.ceil(fit.batch_size / fit.team.size)
        return 2 * e_step_seconds(fit) * n_points  # the rest of a visit takes about as long as its E-step
    n_points, n_latents, n_values = sum(map(fit.n_visited, epochs)), fit.model.n_latents, fit.points.n_values
    visits = n_points * (_seconds_of_point(fit) + VISIT + BY_SQUARE * n_values**2) / n_at_work(fit)
    prior = fit.model.prior
    n_cells = len(prior.local) if isinstance(prior, Local) else 1
    return slowness() * (visits + len(epochs) * (BY_CUBE * n_latents * n_values**3 + BY_CELL * n_cells * n_latents))


def _is_by_formula(fit: Fit) -> bool:
    return has_slab(fit.model, fit.config.ea) and not fit.points.is_masked


def _seconds_of_point(fit: Fit) -> float:
    likelihood = fit.model.likelihood
    assert isinstance(likelihood, Slab)
    n_latents, rank, n_values = likelihood.directions.shape
    n_tried = min(fit.config.ea.n_candidates or n_latents, n_latents)
    return POINT + BY_PRODUCT * n_tried * (rank + 1) * n_values


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
    """Time that this machine takes for local groups, relative to the measured one."""
    kept = cache_dir() / f"speed-{speed_key()}.txt"
    least = math.inf
    with suppress(OSError, ValueError):
        least = float(kept.read_text())
    found = min(least, _trial_seconds())
    if found < least:
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, f"{found:.6f}\n".encode())
    return found / TRIAL_SECONDS


def _trial_seconds() -> float:
    pixels = torch.rand(TRIAL, TRIAL, 1, generator=generator(0, "trial"))
    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # others would wait for each other, and count as work
        return _shortest(lambda: refine_locally(pixels, pixels, 6, 3, 15, 60, 0.01, range(TRIAL)), N_TRIALS, True)
    finally:
        torch.set_num_threads(n_threads)


def _shortest(action: Callable[[], object], n: int, is_here: bool) -> float:
    """Seconds of the fastest of n runs: the first have threads to start and caches to fill.

    `is_here`: time of this thread alone.
    """
    clock, times = time.thread_time if is_here else time.perf_counter, []
    for _ in range(n):
        started = clock()
        action()
        times.append(clock() - started)
    return min(times)
