"""Restore the image of a run that is already there, with `run=DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from tvae import checkpoint, datasets
from tvae.check import read_config
from tvae.checked import DamagedCheckpoint
from tvae.config import Config, UserError, refuse
from tvae.fit import make_fit
from tvae.ranks import join
from tvae.report import restore_to, write_json
from tvae.rundir import FREE, RunDirectory, read_metrics
from tvae.train import go_on, log


def _read_source(source: Path, path: Path) -> Config:
    """The configuration of the run in `source`, if it can be restored from and `path` written to."""
    for override in HydraConfig.get().overrides.task if HydraConfig.initialized() else []:
        if override.partition("=")[0] not in ("run", *FREE):
            raise UserError(f"{override}: a run that is there keeps its options; beside run= go only {', '.join(FREE)}")
    if (source / "config.yaml").resolve() == (path / "config.yaml").resolve():
        raise UserError(f"run={source}: cannot write to the directory it reads; name another hydra.run.dir")
    return read_config(source / "config.yaml")


def restore_run(config: Config, path: Path, keep_observed: bool | None) -> dict[str, Any]:
    """Read configuration and checkpoint of `config.run`, restore, and write the pictures to `path`."""
    assert config.run is not None
    ranks, source = join(), Path(config.run)
    theirs = ranks.together(lambda: _read_source(source, path))
    saved, problem = None, f"run={source}: no checkpoint there"
    try:
        saved = checkpoint.load_newest(source, ranks)
    except DamagedCheckpoint as error:
        problem = str(error)
    ranks.together(lambda: refuse(saved is None, problem))
    assert saved is not None
    theirs.states.memmap = False
    theirs.device, theirs.threads, theirs.data_dir = config.device, config.threads, config.data_dir
    dataset = ranks.in_turn(lambda: datasets.load(theirs))
    no_image = f"run={source}: was trained on {theirs.dataset.name}, which is no image"
    ranks.together(lambda: refuse(dataset.picture is None, no_image))
    fit = ranks.together(lambda: make_fit(theirs, dataset, ranks=ranks))
    ranks.together(lambda: go_on(fit, saved))
    directory = ranks.lead(lambda: RunDirectory(path, config, dataset.fingerprint()))
    try:
        found = restore_to(path, fit, dataset, theirs.noise is None if keep_observed is None else keep_observed)
        metrics = {**(read_metrics(source) or {}), **found, "status": "finished", "run": str(source)}
        ranks.lead(lambda: write_json(path / "metrics.json", metrics))
    finally:
        if directory is not None:
            directory.release()
    log.info("restored from epoch %d of %s; results in %s", fit.epoch, source, path)
    return metrics
