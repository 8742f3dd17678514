"""Visits of minibatches to be timed: training as the backend does it, as a whole and by its parts, and a dense one.

"Dense" is slow and obvious: every old and new state goes through every layer, and the gradient through all S states by
autograd.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tvae.config.recipe import prepare
from tvae.config.schema import Config
from tvae.data.dataset import Dataset
from tvae.data.sets.image import ImageConfig
from tvae.errors import UserError
from tvae.inference.evolution import SELECTIONS, EaConfig, draw_flips, flip
from tvae.inference.states import StatesConfig, codes, keep_best
from tvae.inference.streams import Stream
from tvae.model.packed import pack, unpack
from tvae.model.vae import ModelConfig
from tvae.runs.setup import make_fit
from tvae.training.m_step import update_closed_forms
from tvae.training.points import InMemory
from tvae.training.trainer import Fit, LrConfig

BATCH = 32

Visit = Callable[[torch.Tensor, int], None]  # data points (B,), seed


def make_training(setting: dict[str, Any], folder: Path) -> Fit:
    """Patches of a noisy picture (house, or camera where that is missing), all of them or the first `points`."""
    n_parents, n_children, n_generations = setting["ea"]
    config = Config(
        dataset=ImageConfig(name="house", standardise=True, patch_size=setting["patch"], train_stride=1),
        model=ModelConfig(n_latents=setting["latents"], hidden=setting["hidden"], sigma2=None),
        states=StatesConfig(n_states=setting["states"], memmap=setting.get("memmap", False)),
        ea=EaConfig(n_parents=n_parents, n_children=n_children, n_generations=n_generations),
        lr=LrConfig(kind="cyclic", max=setting["lr"]),
        noise=setting["noise"],
        epochs=1,
        batch_size=BATCH,
        device="cpu",
    )
    try:
        config, dataset = prepare(config)
    except UserError:
        config, dataset = prepare(replace(config, dataset=replace(config.dataset, name="camera")))
    if "points" in setting:
        dataset = Dataset(InMemory(dataset.source.known_values()[: setting["points"]]), dataset.shape)
    return make_fit(config, dataset, folder)


def batches(fit: Fit, n_points: int) -> list[torch.Tensor]:
    order = torch.randperm(len(fit.points.own), generator=torch.Generator().manual_seed(0))[:n_points]
    return list(order.split(BATCH))


def seconds_of(visit: Visit, indices: list[torch.Tensor], seed: int) -> float:
    started = time.perf_counter()
    for index in indices:
        visit(index, seed)
    return time.perf_counter() - started


def backend_visit(fit: Fit) -> Visit:
    return lambda index, seed: fit.visit(index, seed, len(index))


def training_seconds(fit: Fit, indices: list[torch.Tensor], seed: int) -> float:
    """Seconds of visits as training does them, several minibatches a call."""
    order, started, n_done = torch.cat(indices), time.perf_counter(), 0
    with fit.backend.at_work():
        while n_done < len(order):
            index = order[n_done : n_done + fit.pace.n_at_once * BATCH]
            with fit.pace.kept():
                fit.visit(index, seed, len(index))
            n_done += len(index)
    return time.perf_counter() - started


def end_epoch(fit: Fit) -> None:
    update_closed_forms(fit.model, fit.totals)
    fit.totals = fit._new_totals()


@contextmanager
def phases(fit: Fit) -> Iterator[dict[str, float]]:
    """Within, the time spent in the parts of a visit is added up."""
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                spent[name] += time.perf_counter() - started

        return wrapper

    backend, step = fit.backend, fit.optimiser.step
    stretch = backend.stretch and timed("minibatches", backend.stretch)
    fit.backend = replace(backend, visit=timed("E-step and gradient", backend.visit), stretch=stretch)
    fit.optimiser.step = timed("Adam", step)  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        fit.backend, fit.optimiser.step = backend, step  # type: ignore[method-assign]


def dense_visit(fit: Fit) -> Visit:
    """The same visit, slow and obvious."""
    model, ea, sets = fit.model, fit.config.ea, fit.points.sets

    def visit(index: torch.Tensor, seed: int) -> None:
        (x, _), rng = fit.points.rows(index), Stream(seed, index)
        z = unpack(sets.take(index), model.n_latents)
        n_states = z.shape[1]
        with torch.no_grad():
            pools, values = [z], [model.log_joint(x, z)]
            for _ in range(ea.n_generations):
                place = SELECTIONS[ea.selection](values[-1], ea.n_parents, rng)
                parents = pools[-1].gather(1, place[..., None].expand(-1, -1, z.shape[2]))
                flips = draw_flips(z.shape[2], ea.n_parents, ea.n_children, ea.n_flips, rng)
                pools.append(flip(parents.repeat_interleave(ea.n_children, 1), flips.flatten(1, 2)))
                values.append(model.log_joint(x, pools[-1]))
            every, value = torch.cat(pools, 1), torch.cat(values, 1)
            kept = keep_best(value, codes(pack(every), z.shape[2]), n_states)
            z = every.gather(1, kept[..., None].expand(-1, -1, z.shape[2]))
            weights = value.gather(1, kept).softmax(1)
            sets.put(index, pack(z))
        fit.optimiser.zero_grad()
        (-(weights * model.log_joint(x, z)).sum() / len(x)).backward()
        fit.optimiser.step()

    return visit
