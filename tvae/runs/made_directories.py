"""The directories that Hydra makes for a run before the run has begun: a mistake leaves no empty ones behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

_missing: set[Path] = set()  # directories on the way to those of this command's runs that were not there before


class NoteMissing(Callback):
    """Called by Hydra (conf/config.yaml) before it makes a directory."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        note(Path(str(config.hydra.run.dir)))

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        note(Path(str(config.hydra.sweep.dir)))


def note(path: Path) -> None:
    path = path.absolute()
    _missing.update(each for each in (path, *path.parents) if not each.exists())


def remove_made(path: Path) -> None:
    """Remove a run directory that is still empty, and those above it, as far as they were made for it."""
    for each in (path, *path.parents):
        if not any(place == each or place in each.parents for place in _missing):
            return
        try:
            each.rmdir()
        except OSError:  # it holds something
            return
