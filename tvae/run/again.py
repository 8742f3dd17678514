"""Restore the picture of a run that is there already, with `run=DIR`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from tvae.core.errors import UserError, refuse
from tvae.data.picture import check_missing
from tvae.options.checks import read_config
from tvae.options.recipe import prepare
from tvae.options.schema import FREE, Config
from tvae.run.connection import join
from tvae.run.files import CONFIG
from tvae.run.initialise import load_run, resume
from tvae.run.progress import as_time
from tvae.run.record import RestoredRecord
from tvae.run.result import check_output, deliver
from tvae.run.run_directory import claimed, data_problem, read_metrics
from tvae.run.session import Session

log = logging.getLogger("tvae.train")


def restore_run(config: Config, path: Path) -> dict[str, Any]:
    """Read configuration and checkpoint of `config.run`, restore, and write the pictures to `path`.

    It need not have been asked for the same: what was denoised can be filled in, if pixels were missing.
    """
    assert config.run is not None
    ranks, source = join(), Path(config.run)
    theirs = _read_source(source, path)
    saved = load_run(source, ranks, "run")
    theirs.states.memmap = False
    theirs.device, theirs.threads, theirs.data_dir = config.device, config.threads, config.data_dir
    theirs.keep_known = config.task == "inpaint" and theirs.noise is None
    theirs, dataset = ranks.in_turn(lambda: prepare(theirs))
    if dataset.picture is None:
        raise UserError(f"run={source}: was trained on {theirs.dataset.name}, which is no image")
    changed = data_problem(source, theirs, dataset.fingerprint())
    refuse(changed is not None, f"run={source}: {changed}; train on it anew")
    if config.task == "inpaint":
        check_missing(dataset.picture.missing, f"run={source}")
    if ranks.is_leader:
        check_output(config, path, dataset.picture)
    session = Session(theirs, dataset, None, ranks)
    resume(session.fit, saved)
    with claimed(path, config, dataset.fingerprint(), ranks):
        if ranks.is_leader:
            of_run = read_metrics(source) or {}
            session.record = RestoredRecord(path, theirs, session.fit, dataset, of_run, source)
        metrics = session.finish()
        if ranks.is_leader:
            deliver(config, path, dataset.picture)
    took = as_time(session.record.seconds_total())
    log.info("restored in %s from epoch %d of %s; results in %s", took, session.fit.epoch, source, path)
    return metrics


def _read_source(source: Path, path: Path) -> Config:
    """The configuration of the run in `source`, if it can be restored from and `path` written to."""
    for override in HydraConfig.get().overrides.task if HydraConfig.initialized() else []:
        if override.partition("=")[0] not in ("run", *FREE):
            raise UserError(f"{override}: a run that is there keeps its options; beside run= go only {', '.join(FREE)}")
    if (source / CONFIG).resolve() == (path / CONFIG).resolve():
        raise UserError(f"run={source}: cannot write to the directory it reads; name another hydra.run.dir")
    return read_config(source / CONFIG)
