"""The run directory: whose it is, and what a run left there.

A directory belongs to the configuration in its `config.yaml`. A run resumes in a directory that is its own, takes an
empty one, and refuses any other before it writes a byte. Ranks that are to share it must have the same work, and see
the same files.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from tvae.config.checks import flat, read_config
from tvae.config.paths_as_typed import as_written
from tvae.config.placement import choose_device
from tvae.config.schema import FREE, Config
from tvae.data.dataset import Dataset
from tvae.errors import UserError, refuse
from tvae.io.atomic import remove_temporary, write_atomically
from tvae.runs.distributed.ranks import Ranks
from tvae.runs.files import CONFIG, FIGURE_DIR, FINGERPRINT, IN_FOLDERS, METRICS, NAMED, PARTS, PATTERNS

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("tvae.train")

N_TRIES = 20  # to make a directory that other processes, which end, remove


class Busy(UserError):
    """Mistake of using a directory in which another process is running."""

    def __init__(self, path: Path):
        super().__init__(f"{path}: another process is running in this directory")
        self.path = path

    def wait(self) -> None:
        """Wait until it has ended."""
        log.info("%s: waiting for another process that is running in this directory", self.path)
        while True:
            try:
                handle = os.open(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return
            try:
                assert fcntl is not None
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(1)
            finally:
                os.close(handle)


class RunDirectory:
    def __init__(self, path: Path, config: Config, fingerprint: str, given: Config | None = None):
        """Claim `path` for `config` on the data with this fingerprint, or raise `UserError`.

        `given`: the configuration before the recipe has chosen what was left open in it.
        """
        self.path = path
        self._chosen = _differing(flat(config), flat(config if given is None else given))
        self._handle: int | None = None
        self._is_longer = False  # it is trained further than its configuration said
        try:
            self._lock()
            self._check_owner(config, fingerprint)
            if config.restart:
                self._clear()
            (path / FIGURE_DIR).mkdir(exist_ok=True)
            for folder in (path, path / FIGURE_DIR):
                remove_temporary(folder)
            if not (path / CONFIG).exists():
                write_atomically(path / FINGERPRINT, f"{fingerprint}\n".encode())
            if self._is_longer or not (path / CONFIG).exists():
                write_atomically(path / CONFIG, OmegaConf.to_yaml(as_written(config)).encode())
        except OSError as error:
            self.release()
            raise UserError(f"{path}: cannot be used as run directory ({error.strerror})") from error
        except UserError:
            self.release()
            raise

    def _lock(self) -> None:
        """Make the directory and hold it until the process ends, so that two runs cannot mix.

        Another process may remove it in between, as long as it is empty.
        """
        for is_last in (False,) * N_TRIES + (True,):
            self.release()
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                if fcntl is None:
                    return
                self._handle = os.open(self.path, os.O_RDONLY)
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(self._handle), os.stat(self.path)):
                    return
            except BlockingIOError:
                raise Busy(self.path) from None
            except FileNotFoundError:
                if is_last:
                    raise
        raise FileNotFoundError(errno.ENOENT, "is removed again and again")

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _clear(self) -> None:
        """Remove what a run writes; other files, also in its folders, stay."""
        for target in self._outputs():
            patterns = IN_FOLDERS.get(target.name, ()) if target.is_dir() else None
            written = [target] if patterns is None else [file for each in patterns for file in target.glob(each)]
            for file in written:
                file.unlink(missing_ok=True)

    def _outputs(self) -> list[Path]:
        named = [self.path / name for name in NAMED]
        return named + [file for pattern in PATTERNS for file in sorted(self.path.glob(pattern))]

    def _check_owner(self, config: Config, fingerprint: str) -> None:
        for target in self._outputs():
            if target.is_symlink():
                raise UserError(f"{self.path}: {target.name} is a link to elsewhere; name another hydra.run.dir")
            if target.exists() and not (target.is_dir() if target.name in IN_FOLDERS else target.is_file()):
                kind = "folder" if target.name in IN_FOLDERS else "file"
                raise UserError(f"{self.path}: {target.name} is no {kind}; name another hydra.run.dir")
        theirs_path = self.path / CONFIG
        if not theirs_path.exists():
            for target in self._outputs():
                if target.name == FINGERPRINT and read_fingerprint(self.path) == fingerprint:
                    continue  # the first thing a run writes: it was killed before the second
                if target.is_file() or (target.is_dir() and any(target.iterdir())):
                    raise UserError(f"{self.path}: holds a foreign {target.name}; name another hydra.run.dir")
            return
        try:
            theirs = flat(read_config(theirs_path))
        except UserError:
            raise UserError(f"{self.path}: holds a foreign config.yaml; name another hydra.run.dir") from None
        if config.restart:
            return
        mine = flat(config)
        # Options left open there and chosen here are from a version that did not write down its choice.
        left_open = {key for key in self._chosen if theirs.get(key) is None}
        differing = [key for key in _differing(mine, theirs) if key not in FREE and key not in left_open]
        changed = data_problem(self.path, config, fingerprint)
        given = [key for key in differing if key not in self._chosen]
        if changed and not {*given} - {"epochs"}:
            raise UserError(f"{self.path}: {changed}; name another hydra.run.dir, or restart=true to start over")
        if differing == ["epochs"] and not changed and mine["epochs"] > theirs["epochs"]:
            self._is_longer = True
            return
        if differing := given or differing:  # what the recipe makes of it need not be told
            what = ", ".join(f"{key}={theirs.get(key)} there, {mine.get(key)} here" for key in differing[:5])
            more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
            advice = _other_task(self.path, mine, differing)
            raise UserError(
                f"{self.path}: belongs to another configuration ({what}{more}); {advice}"
                "name another hydra.run.dir, or restart=true to start over"
            )


def _other_task(path: Path, mine: dict[str, Any], differing: list[str]) -> str:
    """Advice where the run was made by another command; in runs of earlier versions all commands are `train`."""
    if "task" not in differing or mine["task"] == "train":
        return ""
    return f"if it was made by an earlier version, or by train, run={path} restores from it into another directory; "


def _differing(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Names of the options that are not the same in two configurations."""
    return [name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]


def read_fingerprint(path: Path) -> str | None:
    """The fingerprint of the data of the run in `path`; None if it cannot be read."""
    try:
        if not (path / FINGERPRINT).is_file():  # a pipe would keep the command waiting
            return None
        found = (path / FINGERPRINT).read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return found if re.fullmatch("[0-9a-f]{64}", found) else None


def data_problem(path: Path, config: Config, fingerprint: str) -> str | None:
    """A message if the run in `path` was not made from the data with this fingerprint, else None."""
    theirs = read_fingerprint(path)
    if theirs == fingerprint:
        return None
    if theirs is None:
        return f"its {FINGERPRINT} cannot be read, so it is not known whether the data are still the same"
    files = [
        f"{name}={getattr(config, name)}" for name in ("image", "mask", "clean", "sigma_map") if getattr(config, name)
    ]
    what = "picture has" if config.dataset.is_image else "data have"
    return f"the {what} changed since that run ({', '.join(files) or f'dataset={config.dataset.name}'})"


@contextmanager
def claimed(path: Path, config: Config, fingerprint: str, ranks: Ranks, given: Config | None = None) -> Iterator[None]:
    """Hold the directory for this run, once all ranks see it; `given`: see `RunDirectory`."""
    directory = RunDirectory(path, config, fingerprint, given) if ranks.is_leader else None
    try:
        check_directory(path, ranks)
        yield
    finally:
        if directory is not None:
            directory.release()


def check_ranks(config: Config, dataset: Dataset, fingerprint: str, ranks: Ranks) -> None:
    """Raise `UserError` unless the ranks have the same work, and enough of it."""
    options = {name: value for name, value in flat(config).items() if name not in FREE}
    options["device"] = choose_device(config.device, config.precision).type
    n_points = dataset.source.n_points
    refuse(n_points < ranks.size, f"{n_points} data points: too few for {ranks.size} processes")
    for rank, (theirs, data) in enumerate(ranks.gather((options, fingerprint))):
        names = {*options, *theirs}
        differing = [f"{name}={theirs.get(name)}" for name in sorted(names) if theirs.get(name) != options.get(name)]
        if differing:
            raise UserError(f"process {rank} was started with other options ({', '.join(differing)})")
        refuse(data != fingerprint, f"process {rank} has other data, though its options are the same")


def check_directory(path: Path, ranks: Ranks) -> None:
    """Raise `UserError` unless all ranks see what the leader writes: each of them reads what the others have saved."""
    (token, *_) = ranks.gather(secrets.token_hex(8))
    probe = path / PARTS.replace("*", token)  # should it be left over, it goes with the next checkpoint
    if ranks.is_leader:
        probe.touch()
    ranks.meet()
    is_seen = ranks.gather(probe.exists())
    if ranks.is_leader:
        probe.unlink(missing_ok=True)
    refuse(
        not all(is_seen),
        f"{path}: not seen by all processes; hydra.run.dir must be on a file system that their machines share",
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def read_metrics(path: Path) -> dict[str, Any] | None:
    """The content of a run's metrics.json, or None."""
    try:
        if not (path / METRICS).is_file():
            return None
        content = json.loads((path / METRICS).read_text("utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


# Directories on the way to those of this command's runs that were not there before. Hydra makes them before a run has
# begun; a mistake leaves no empty ones behind.
_missing: set[Path] = set()


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
