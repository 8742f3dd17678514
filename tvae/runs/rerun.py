"""A run that is there already, with `run=DIR`: its picture is restored again, or it is trained further."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from tvae.config.checks import read_config
from tvae.config.paths_as_typed import change_paths
from tvae.config.recipe import restoration_for
from tvae.config.schema import FREE, Config
from tvae.data.picture import check_missing
from tvae.errors import UserError, refuse
from tvae.runs.callbacks.record import RestoredRecord
from tvae.runs.distributed.connection import join
from tvae.runs.files import CONFIG
from tvae.runs.initialise import load_run, resume
from tvae.runs.log_lines import closing
from tvae.runs.result import check_kind, check_output, deliver, tell_result
from tvae.runs.run_directory import claimed, data_problem, read_metrics, remove_made
from tvae.runs.session import Session, train
from tvae.runs.setup import prepared

log = logging.getLogger("tvae.train")

# Options in which a restoration may differ from its run
OF_RESTORATION = (
    "dataset.stride", "dataset.average", "effort", "restoration", "restoration.method", "restoration.n_rounds",
    "restoration.keep_unexplained",
)  # fmt: skip


def restore_run(config: Config, path: Path) -> dict[str, Any]:
    """Read configuration and checkpoint of `config.run`, restore, and write the pictures to `path`.

    It need not have been asked for the same: what was denoised can be filled in, if pixels were missing.
    """
    assert config.run is not None
    ranks, source = join(), Path(config.run)
    given = _given()
    theirs = _read_source(source, path, given)
    if "epochs" in given:
        return _train_further(config, theirs, source, path)
    for name in sorted(given & {"dataset.stride", "dataset.average", "effort"}):
        node, _, key = name.rpartition(".")
        setattr(theirs.dataset if node else theirs, key, getattr(config.dataset if node else config, key))
    wanted = restoration_for(config)
    if theirs.task == config.task:  # its picture again, but for what is given
        kept = [f.name for f in fields(wanted) if not {"restoration", f"restoration.{f.name}"} & given]
        wanted = replace(wanted, **{name: getattr(theirs.restoration, name) for name in kept})
    theirs.restoration = wanted
    if ranks.is_leader:
        check_output(replace(theirs, output=config.output, overwrite=config.overwrite), path)
    saved = load_run(source, ranks, "run")
    theirs.states.memmap = False
    theirs.device, theirs.threads, theirs.data_dir = config.device, config.threads, config.data_dir
    theirs.keep_known = config.task == "inpaint" and theirs.noise is None and theirs.corruption == "none"
    theirs, dataset = ranks.in_turn(lambda: prepared(theirs))
    if dataset.picture is None:
        raise UserError(f"run={source}: was trained on {theirs.dataset.name}, which is not an image")
    changed = data_problem(source, theirs, dataset.fingerprint())
    refuse(changed is not None, f"run={source}: {changed}; train on it anew")
    if config.task == "inpaint":
        check_missing(dataset.picture.missing, f"run={source}")
    check_kind(config, dataset.picture)
    session = Session(theirs, dataset, None, ranks)
    resume(session.fit, saved)
    with claimed(path, config, dataset.fingerprint(), ranks):
        if ranks.is_leader:
            of_run = read_metrics(source) or {}
            session.record = RestoredRecord(path, theirs, session.fit, dataset, of_run, source)
        metrics = session.finish()
        if ranks.is_leader:
            deliver(config, path, dataset.picture)
    restored = session.record.restored
    if ranks.is_leader and restored is not None:
        now = {**metrics, "seconds_total": session.record.seconds_total()}
        told = closing(theirs, dataset.picture, restored, now, path)
        log.info("%s (by the model of %s, epoch %d)", told, source, session.fit.epoch)
    return metrics


def _given() -> set[str]:
    """Names of the options that the user has set beside `run`."""
    words = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    return {word.partition("=")[0].lstrip("+") for word in words} - {"run"}


def _read_source(source: Path, path: Path, given: set[str]) -> Config:
    """The configuration of the run in `source`, if it can be restored from and `path` written to."""
    allowed = (*OF_RESTORATION, *FREE)
    for name in sorted(given - {"epochs", *allowed}):
        raise UserError(f"{name}: a run keeps its options; run= can be combined only with {', '.join(allowed)}")
    if (source / CONFIG).resolve() == (path / CONFIG).resolve():
        raise UserError(f"run={source}: cannot write to the directory it reads; name another hydra.run.dir")
    refuse(not source.is_dir(), f"run={source}: there is no such directory")
    refuse(not (source / CONFIG).exists(), f"run={source}: is not a run directory: it holds no {CONFIG}")
    theirs = read_config(source / CONFIG)
    theirs.init_from = None  # it has started
    if "epochs" not in given and theirs.working_dir not in (None, os.getcwd()):
        change_paths(theirs, partial(_found_in, Path(str(theirs.working_dir))))
    return theirs


def _found_in(folder: Path, path: str) -> str:
    """A relative path as the run has found it, if it is still there."""
    return str(folder / path) if (folder / path).exists() else path


def _train_further(config: Config, theirs: Config, source: Path, path: Path) -> dict[str, Any]:
    """Train the run in `source` to more epochs, in its own directory; the one that was made for it is not needed."""
    n_before, n_epochs = theirs.epochs, config.epochs
    is_more = n_before is not None and n_epochs is not None and n_epochs > n_before
    refuse(not is_more, f"epochs={n_epochs}: run={source} has {n_before} already; a larger number trains it further")
    folder = theirs.working_dir
    for name in FREE:
        setattr(theirs, name, getattr(config, name))
    for name in ("output", "data_dir"):
        given = getattr(config, name)
        setattr(theirs, name, given and os.path.abspath(given))
    theirs.epochs, theirs.restart = n_epochs, False
    source = source.absolute()
    with _where_it_was(folder):
        metrics = train(theirs, source)
    if join().is_leader:
        remove_made(path)
        tell_result(config, source)
    return metrics


@contextmanager
def _where_it_was(folder: str | None) -> Iterator[None]:
    """Work in the run's own directory, if it is still there: the paths of its configuration are as they were."""
    before = os.getcwd()
    os.chdir(before if folder is None or not os.path.isdir(folder) else folder)
    try:
        yield
    finally:
        os.chdir(before)
