"""The run directory: whose it is, and what a run left there.

A directory belongs to the configuration in its `config.yaml`. A run goes on in a directory that is its own, takes an
empty one, and refuses any other before it writes a byte. Ranks that are to share it must have the same work, and see
the same files.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tvae.atomic import write_atomically
from tvae.check import flat, read_config
from tvae.checkpoint import DAMAGED, NAME, NEW, PARTS, PREVIOUS
from tvae.config import Config, UserError, refuse
from tvae.datasets import Dataset
from tvae.device import choose_device
from tvae.points import STATES
from tvae.ranks import Ranks

FINGERPRINT = "data.sha256"
# Everything a run may write; nothing else in the directory is ever touched.
IMAGES = ("input.png", "restored.png", "restored.tiff", "uncertainty.png", "uncertainty.tiff")
REPORTS = ("config.yaml", FINGERPRINT, "metrics.json", "history.csv", "run.log", "figures", "tensorboard")
OUTPUTS = (*REPORTS, *IMAGES, NAME, PREVIOUS, NEW, DAMAGED)
PATTERNS = (PARTS, STATES.format("*"))
FIGURES = ("decoder.png", "latents.png", "training.png", "comparison.png")
# Options that do not change the result, so that a run may go on with others.
FREE = ("restart", "device", "threads", "checkpoint_seconds", "data_dir")


class Busy(UserError):
    """Another process is running in the directory."""


class RunDirectory:
    def __init__(self, path: Path, config: Config, fingerprint: str):
        """Claim `path` for `config` on the data with this fingerprint, or raise `UserError`."""
        self.path = path
        self._handle: int | None = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock()
            self._check_owner(config, fingerprint)
            if config.restart:
                self._clear()
            (path / "figures").mkdir(exist_ok=True)
            if not (path / "config.yaml").exists():
                write_atomically(path / FINGERPRINT, f"{fingerprint}\n".encode())
                write_atomically(path / "config.yaml", OmegaConf.to_yaml(config).encode())
        except OSError as error:
            self.release()
            raise UserError(f"{path}: cannot be used as run directory ({error.strerror})") from error
        except UserError:
            self.release()
            raise

    def _lock(self) -> None:
        """Hold the directory until the process ends, so that two runs cannot mix."""
        try:
            import fcntl
        except ImportError:  # no such locks on Windows
            return
        self._handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"{self.path}: another process is running in this directory") from None

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _clear(self) -> None:
        """Remove what a run writes; other files, also in its folders, stay."""
        for target in self._outputs():
            written = [target / figure for figure in FIGURES] + list(target.glob("events.out.tfevents.*"))
            for file in written if target.is_dir() else [target]:
                file.unlink(missing_ok=True)

    def _outputs(self) -> list[Path]:
        named = [self.path / name for name in OUTPUTS]
        return named + [file for pattern in PATTERNS for file in sorted(self.path.glob(pattern))]

    def _check_owner(self, config: Config, fingerprint: str) -> None:
        for target in self._outputs():
            if target.is_symlink():
                raise UserError(f"{self.path}: {target.name} is a link to elsewhere; name another hydra.run.dir")
        theirs_path = self.path / "config.yaml"
        if not theirs_path.exists():
            for target in self._outputs():
                if target.name == FINGERPRINT and target.is_file() and target.read_text().strip() == fingerprint:
                    continue  # the first thing a run writes: it was killed before the second
                if target.is_file() or (target.is_dir() and any(target.iterdir())):
                    raise UserError(f"{self.path}: holds a {target.name} that is no run's; name another hydra.run.dir")
            return
        try:
            theirs = flat(read_config(theirs_path))
        except UserError:
            raise UserError(f"{self.path}: holds a config.yaml that is no run's; name another hydra.run.dir") from None
        if config.restart:
            return
        mine = flat(config)
        differing = [key for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key) and key not in FREE]
        if differing:
            what = ", ".join(f"{key}={theirs.get(key)} there, {mine.get(key)} here" for key in differing[:5])
            more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
            raise UserError(
                f"{self.path}: belongs to another configuration ({what}{more}); "
                "name another hydra.run.dir, or restart=true to start over"
            )
        if (self.path / FINGERPRINT).read_text().strip() != fingerprint:
            raise UserError(
                f"{self.path}: was made from other data, though the options are the same (has a file changed?); "
                "name another hydra.run.dir, or restart=true to start over"
            )


def check_ranks(config: Config, dataset: Dataset, fingerprint: str, ranks: Ranks) -> None:
    """Raise `UserError` unless the ranks have the same work, and enough of it."""
    options = {name: value for name, value in flat(config).items() if name not in FREE}
    options["device"] = choose_device(config.device, config.precision).type
    found = ranks.gather((options, fingerprint))
    if len(dataset.data) < ranks.size:
        raise UserError(f"{len(dataset.data)} data points: too few for {ranks.size} processes")
    for rank, (theirs, data) in enumerate(found):
        names = {*options, *theirs}
        differing = [f"{name}={theirs.get(name)}" for name in sorted(names) if theirs.get(name) != options.get(name)]
        if differing:
            raise UserError(f"process {rank} was started with other options ({', '.join(differing)})")
        if data != fingerprint:
            raise UserError(f"process {rank} has other data, though its options are the same")


def check_directory(path: Path, ranks: Ranks) -> None:
    """Raise `UserError` unless all ranks see what the leader writes: each of them reads what the others have saved."""
    (token, *_) = ranks.gather(secrets.token_hex(8))
    probe = path / PARTS.replace("*", token)  # should it be left over, it goes with the next checkpoint
    ranks.lead(probe.touch)
    is_seen = ranks.gather(probe.exists())
    ranks.lead(lambda: probe.unlink(missing_ok=True))
    problem = f"{path}: not seen by all processes; hydra.run.dir must be on a file system that their machines share"
    ranks.together(lambda: refuse(not all(is_seen), problem))


def read_metrics(path: Path) -> dict[str, Any] | None:
    """What a run reported, if it did."""
    try:
        content = json.loads((path / "metrics.json").read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
