"""Loading of what a run has saved: to resume it, to start another run from it, or to restore its picture."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tvae.config.schema import Config
from tvae.data.dataset import Dataset
from tvae.errors import UserError
from tvae.io.sealed import DamagedCheckpoint, understood
from tvae.model.decoder import Decoder, Mlp, why_not_from_linear
from tvae.model.units import Units
from tvae.model.vae import Model, model_from
from tvae.runs.checkpoint import Part, Saved, copy_rows, load_newest, shape_of
from tvae.runs.checkpoint_validation import check_fit, check_history, check_model, check_states
from tvae.runs.distributed.ranks import Ranks
from tvae.runs.run_directory import read_fingerprint, read_metrics
from tvae.runs.setup import units_for
from tvae.training.trainer import Fit

log = logging.getLogger(__name__)


def load_run(directory: Path, ranks: Ranks, name: str) -> Saved:
    """The newest checkpoint of a run that the user names by the option `name`."""
    try:
        saved = load_newest(directory, ranks)
    except DamagedCheckpoint as error:
        raise UserError(str(error)) from error
    if saved is None or "fit" not in saved.content:
        raise UserError(f"{name}={directory}: no checkpoint there")
    return saved


def load_model(directory: Path) -> tuple[Model, Units, list[Part]]:
    """The model of the newest checkpoint of a run, in its own precision, its units, and its states."""
    saved = load_run(directory, Ranks(), "init_from")
    fit = saved.content["fit"]
    with understood(saved.path):
        model = model_from(fit, fit["model"])
        check_model(model, fit["model"])
        check_states(saved.parts, model.n_latents)
        return model, Units(*fit["units"]), saved.parts


def check_source(config: Config, dataset: Dataset, path: Path) -> None:
    """Raise `UserError` unless a run in `path` can start from `init_from`; before anything in `path` is touched."""
    if config.init_from is None:
        return
    directory = Path(config.init_from)
    if path.exists() and directory.resolve() == path.resolve():
        raise UserError(f"init_from={directory}: is the directory of this run itself")
    source, units, _ = load_model(directory)
    if units != units_for(config, dataset):
        raise UserError(f"init_from={directory}: that run was trained on other data, or on another scale")
    problems = _why_not_from(source.decoder, config, dataset.source.n_values)
    if problems:
        raise UserError(*(f"init_from={directory}: {problem}" for problem in problems))


def _why_not_from(decoder: Decoder, config: Config, n_values: int) -> list[str]:
    assert config.model.n_latents is not None
    assert config.model.hidden is not None
    if not isinstance(decoder, Mlp) or config.model.decoder != decoder.kind:
        return [f"its decoder is of another kind, {decoder.kind}"]
    sizes = [config.model.n_latents, *config.model.hidden, n_values]
    if sizes != decoder.sizes:
        return why_not_from_linear(sizes, config.model.activation, decoder.sizes)
    if not decoder.is_linear and decoder.activation != config.model.activation:
        return [f"its activation is {decoder.activation}, here it is {config.model.activation}"]
    return []


def start_from_run(fit: Fit, directory: Path, fingerprint: str) -> None:
    """Take over parameters (a deep decoder also from a linear one) and, where they are of the same data, the states.

    What `check_source` refuses does not come here.
    """
    source, _, parts = load_model(directory)
    if (read_metrics(directory) or {}).get("status") != "finished":
        log.warning("init_from=%s: that run has not finished", directory)
    mine = fit.model.decoder
    assert isinstance(mine, Mlp)
    assert isinstance(source.decoder, Mlp)
    if source.decoder.sizes == mine.sizes:
        mine.load_state_dict(source.decoder.state_dict())
    else:
        mine.start_from_linear(source.decoder.to(fit.device, fit.model.pi.dtype))
    if type(source.prior) is type(fit.model.prior):
        fit.model.prior.load_state_dict(source.prior.state_dict())
    if type(source.likelihood) is type(fit.model.likelihood):
        fit.model.likelihood.load_state_dict(source.likelihood.state_dict())
    if read_fingerprint(directory) != fingerprint:
        log.warning("init_from=%s: other data, so only its parameters are taken over", directory)
    elif shape_of(parts, "states") != (fit.points.n_points, *fit.points.sets.tensor.shape[1:]):
        log.warning("init_from=%s: another number of states, so only its parameters are taken over", directory)
    else:
        load_states(fit, parts)


def load_states(fit: Fit, parts: list[Part]) -> None:
    """Load the states of a checkpoint, whatever the number of ranks that wrote it."""
    for name, points in fit.sets_by_name().items():
        copy_rows(parts, name, points.sets.tensor, points.own.start, points.sets.release)


def resume(fit: Fit, saved: Saved) -> list[dict[str, Any]]:
    """Take over what was saved; returns the rows of the epochs so far."""
    with understood(saved.path):
        content = saved.content["fit"]
        check_fit(fit, content)
        check_states(saved.parts, fit.model.n_latents)
        history = check_history(saved.content["history"], content["epoch"])
        load_states(fit, saved.parts)
        fit.load_state_dict(content)
        return history
