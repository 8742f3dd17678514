"""Training at its start: from a configuration and data to a `Fit`, on the device and threads that suit the work.

With `n_starts` several initialisations are trained for a while, and the best one goes on: short trainings tell local
optima from each other.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tvae.backends import choose_backend
from tvae.backends.native.threads import torch_on_one_thread, use_threads
from tvae.config.placement import choose_device, choose_threads
from tvae.config.recipe import prepare
from tvae.config.schema import Config
from tvae.data.dataset import Dataset
from tvae.data.mapped import MappedSets
from tvae.errors import TrainingFailed, UserError
from tvae.inference.streams import derive, generator
from tvae.model.units import Units
from tvae.model.vae import start_model
from tvae.runs.files import STATES
from tvae.training.points import Points, Source, StateSets, units_of
from tvae.training.start import learn_completed, start_slabs
from tvae.training.team import ALONE, Team
from tvae.training.trainer import Fit

log = logging.getLogger(__name__)


def prepared(config: Config, opened: Any = None) -> tuple[Config, Dataset]:
    """What `config.recipe.prepare` returns, torch working on one thread.

    Noise is judged by decompositions of many small matrices, which on two threads take several times as long as soon as
    another process is at work.
    """
    if config.threads is not None:
        use_threads(config.threads)
    with torch_on_one_thread():
        return prepare(config, opened)


def make_fit(
    config: Config, dataset: Dataset, folder: Path | None = None, team: Team = ALONE, units: Units | None = None
) -> Fit:
    """Set up training. `folder`: for states that live in a file; `units`: those of a model that exists already."""
    source = dataset.source
    use_threads(config.threads or choose_threads(batch_cost(config, source.n_values)))
    units = units or units_for(config, dataset)  # whose last digit depends on the threads
    device, dtype = choose_device(config.device, config.precision), getattr(torch, config.precision)
    variance = source.known_values().double().var(correction=0).item()
    weights = generator(config.seed, "weights")
    start = start_model(config.model, source.n_points, source.n_values, variance, units, weights, source.places())
    make_sets: Callable[[tuple[int, ...]], StateSets] = StateSets
    if config.states.memmap:
        assert folder is not None
        path = folder / STATES.format(team.rank)
        make_sets = lambda shape: MappedSets(path, shape)  # noqa: E731

    def points(of: Source, sets: Callable[[tuple[int, ...]], StateSets] = StateSets) -> Points:
        made = Points(of, team, units, device, dtype, sets)
        made.draw_states(start.pi, config.states, config.seed)
        return made

    model = copy.deepcopy(start).to(device, dtype)
    if config.compile:
        model.decoder.rest = torch.compile(model.decoder.rest)  # type: ignore[method-assign]
    imputes = config.model.impute and source.is_masked
    backend = choose_backend(model, config.ea, imputes, source.is_masked and config.model.solver == "exact")
    held_out = None if dataset.held_out is None else points(dataset.held_out)
    own = points(source, make_sets)
    if config.model.likelihood == "slab" and not config.model.hidden:
        completed = source.completed().reader(range(source.n_points), units, device, dtype)
        with backend.at_work():
            start_slabs(model, own, completed, dataset.shape, config.seed, source.whitening)
            if source.is_masked:
                learn_completed(model, backend.visit, config.ea, own, completed, team)
    return Fit(config, model, backend, own, units, held_out, team)


def units_for(config: Config, dataset: Dataset) -> Units:
    """The units of the model's values; raises `UserError` for data that cannot be standardised."""
    units = units_of(dataset.source, config.dataset.standardise)
    if units.std == 0:
        raise UserError("the data are constant: there is nothing to learn")
    return units


def batch_cost(config: Config, n_values: int) -> int:
    """Multiplications that a dense evaluation of a minibatch's states takes."""
    assert config.model.n_latents is not None
    assert config.model.hidden is not None
    assert config.batch_size is not None
    sizes = [config.model.n_latents, *config.model.hidden, n_values]
    return config.batch_size * config.states.n_states * sum(a * b for a, b in itertools.pairwise(sizes))


def start_config(config: Config, number: int) -> Config:
    """The configuration of one of `n_starts`, with a seed and a length of its own."""
    return replace(config, seed=derive(config.seed, "start", number), epochs=config.start_epochs)


def take_best_start(fit: Fit, config: Config, make: Callable[[Config], Fit]) -> None:
    """Give `fit` parameters and states of the one of `n_starts` with the highest ELBO after `start_epochs`.

    `make`: from the configuration of a start to its `Fit`, on the same data.
    """
    best: tuple[float, Fit] | None = None
    failure = TrainingFailed("no start was tried")
    for number in range(config.n_starts):
        trial = make(start_config(config, number))
        try:
            *_, last = trial.epochs()
        except TrainingFailed as failed:  # on all ranks alike
            log.warning("start %d/%d  %s", number + 1, config.n_starts, failed)
            failure = failed
            continue
        log.info("start %d/%d  ELBO %.3f", number + 1, config.n_starts, last.elbo)
        if best is None or last.elbo > best[0]:
            best = (last.elbo, trial)
    if best is None:
        raise failure
    found = best[1]
    fit.model.load(found.model.parameters_by_name())
    for mine, its in zip(fit.sets_by_name().values(), found.sets_by_name().values(), strict=True):
        mine.sets.tensor.copy_(its.sets.tensor)
