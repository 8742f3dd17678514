"""The default recipe: options that were left open (null), chosen for the data at hand, and the data themselves.

What a data set decides is in its module (`data.sets`). An option that was given is never changed, and one line says
what was chosen for the others.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from tvae.config.checks import flat, inconsistencies
from tvae.config.every_option import as_text
from tvae.config.placement import choose_device
from tvae.config.schema import FREE, Config
from tvae.data.dataset import Dataset, RestorationConfig
from tvae.data.sets.image import ImageConfig
from tvae.errors import UserError
from tvae.training.trainer import BATCH

log = logging.getLogger(__name__)

BATCH_OF_ACCELERATOR = 256


def prepare(config: Config, opened: Any = None) -> tuple[Config, Dataset]:
    """A copy of the configuration without open options, and the data; what has to be read for both is read once.

    `opened`: what the data set would have read, where it is in memory already.
    """
    opened = config.dataset.look(config, config.dataset.open(config) if opened is None else opened)
    config = complete(config, opened)
    return config, config.dataset.make(config, opened).check(config.dataset.name)


def batch_size_for(config: Config) -> int:
    """An accelerator wants larger minibatches; for pictures they cost hardly anything (docs/quality.md)."""
    is_picture = isinstance(config.dataset, ImageConfig) and config.restoration.has_second_stage
    on_cpu = choose_device(config.device, config.precision).type == "cpu"
    return BATCH_OF_ACCELERATOR if is_picture and not on_cpu else BATCH


def restoration_for(config: Config) -> RestorationConfig:
    """The model alone where it is trained for its own sake, all that helps the picture where that is asked for."""
    given, is_picture = config.restoration, config.task != "train"
    return replace(
        given,
        method=given.method or ("nonlocal" if is_picture else "posterior_mean"),
        keep_unexplained=is_picture if given.keep_unexplained is None else given.keep_unexplained,
    )


def complete(config: Config, opened: Any) -> Config:
    """A copy of the configuration with every open option filled in."""
    completed = config.dataset.complete(replace(config, restoration=restoration_for(config)), opened)
    model = completed.model
    assert model.n_latents is not None
    hidden = [model.n_latents] if model.hidden is None else model.hidden
    size = completed.batch_size or batch_size_for(completed)
    completed = replace(
        completed,
        model=replace(model, hidden=hidden),
        batch_size=size,
        n_thinned=completed.n_thinned or 0,
    )
    problems = inconsistencies(completed)
    if problems:
        raise UserError(*problems)
    return completed


def tell_choices(given: Config, completed: Config) -> None:
    """Log the options that were open, with their values, in one line."""
    before = flat(given)
    now = {name: value for name, value in flat(completed).items() if value is not None and name not in FREE}
    chosen = [f"{name}={as_text(value)}" for name, value in now.items() if before.get(name) is None]
    if chosen:
        log.info("chosen for %s: %s", given.dataset.name, ", ".join(chosen))
