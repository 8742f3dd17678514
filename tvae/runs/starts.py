"""Several initialisations, of which the best one is trained: short trainings tell local optima from each other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from tvae.config.schema import Config
from tvae.errors import TrainingFailed
from tvae.inference.streams import derive
from tvae.training.trainer import Fit

log = logging.getLogger(__name__)


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
