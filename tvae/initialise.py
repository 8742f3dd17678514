"""What a run left behind as a start for something else: its model, or another run from the same point."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from tvae import checkpoint
from tvae.checked import DamagedCheckpoint
from tvae.checkpoint import Part, shape_of
from tvae.config import Config, UserError
from tvae.datasets import Dataset, Units, units_of
from tvae.decoder import Decoder, why_not_from_linear
from tvae.fit import Fit
from tvae.model import Model
from tvae.rundir import FINGERPRINT, read_metrics

log = logging.getLogger(__name__)


def load_model(directory: Path) -> tuple[Model, Units, list[Part]]:
    """The model of the newest checkpoint of a run, in its own precision, its units, and its states."""
    try:
        saved = checkpoint.load_newest(directory)
    except DamagedCheckpoint as error:
        raise UserError(str(error)) from error
    if saved is None or "fit" not in saved.content:
        raise UserError(f"{directory}: no checkpoint of a run there")
    fit = saved.content["fit"]
    n_latents, *hidden, n_outputs = fit["sizes"]
    decoder = Decoder(n_latents, hidden, n_outputs, fit["activation"], torch.Generator())
    model = Model(decoder, torch.full((n_latents,), 0.5), 1.0).to(fit["model"]["pi"].dtype)
    model.load_state_dict(fit["model"])
    return model, Units(*fit["units"]), saved.parts


def check_source(config: Config, dataset: Dataset, path: Path) -> None:
    """Raise `UserError` unless a run in `path` can start from `init_from`; before anything in `path` is touched."""
    if config.init_from is None:
        return
    directory = Path(config.init_from)
    if path.exists() and directory.resolve() == path.resolve():
        raise UserError(f"init_from={directory}: is the directory of this run itself")
    source, units, _ = load_model(directory)
    if units != units_of(dataset, config.dataset.standardise):
        raise UserError(f"init_from={directory}: that run was trained on other data, or on another scale")
    assert config.model.n_latents is not None
    assert config.model.hidden is not None
    sizes = [config.model.n_latents, *config.model.hidden, dataset.data.shape[1]]
    if sizes != source.decoder.sizes:
        problems = why_not_from_linear(sizes, config.model.activation, source.decoder.sizes)
    elif not source.decoder.is_linear and source.decoder.activation != config.model.activation:
        problems = [f"its activation is {source.decoder.activation}, here it is {config.model.activation}"]
    else:
        problems = []
    if problems:
        raise UserError(*(f"init_from={directory}: {problem}" for problem in problems))


def start_from_run(fit: Fit, directory: Path, fingerprint: str) -> None:
    """Take over parameters (a deep decoder also from a linear one) and, where they are of the same data, the states.

    What `check_source` refuses does not come here.
    """
    source, _, parts = load_model(directory)
    if (read_metrics(directory) or {}).get("status") != "finished":
        log.warning("init_from=%s: that run has not reached its end", directory)
    if source.decoder.sizes == fit.model.decoder.sizes:
        fit.model.decoder.load_state_dict(source.decoder.state_dict())
    else:
        fit.model.decoder.start_from_linear(source.decoder.to(fit.device, fit.dtype))
    fit.model.pi.copy_(source.pi)
    fit.model.sigma2.copy_(source.sigma2)
    if not (directory / FINGERPRINT).is_file() or (directory / FINGERPRINT).read_text().strip() != fingerprint:
        log.warning("init_from=%s: of other data, so only its parameters are taken over", directory)
    elif shape_of(parts, "states") != (fit.points.n_points, *fit.points.states.shape[1:]):
        log.warning("init_from=%s: has another number of states, so only its parameters are taken over", directory)
    else:
        fit.load_states(parts)
