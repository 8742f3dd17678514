"""Restoration of every picture in a folder or matching a pattern: a model for each, or with `shared=true` one for all.

The run directory holds `runs/NAME` for each picture, `restored/NAME` (or `output=FOLDER`) with the results beside each
other, and the table of them. What is done already is skipped; what goes wrong with one picture is told at the end.
"""

from __future__ import annotations

import glob
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvae.config.every_option import options_told
from tvae.config.messages import one_line
from tvae.config.schema import Config
from tvae.errors import Failure, UserError, refuse
from tvae.io.atomic import check_writable
from tvae.io.formats import FORMATS
from tvae.runs.distributed.connection import is_known_to_all, join, sharing_failures
from tvae.runs.distributed.ranks import LostRank
from tvae.runs.files import CHECKPOINT, CONFIG, FINGERPRINT, PAGE, RESTORED_DIR, RUNS_DIR, SHARED_MODEL, TABLE
from tvae.runs.folder_report import Row, write_report
from tvae.runs.signals import Interrupted

log = logging.getLogger("tvae.train")

DONE = {"train": "Trained on", "denoise": "Denoised", "inpaint": "Filled in"}


class SomeFailed(Failure):
    """Some pictures of a folder failed; all others are done."""

    is_shared = True  # so is each of the failures


@dataclass(frozen=True)
class Task:
    """One picture of a folder."""

    name: str  # of its result
    config: Config
    path: Path  # its run directory


def is_folder(image: str | None) -> bool:
    """True for a folder, or a pattern that is not itself the name of a file."""
    return image is not None and (os.path.isdir(image) or (not os.path.exists(image) and glob.has_magic(image)))


def check_folder(config: Config, path: Path) -> None:
    """Raise `UserError` if there are no pictures, or if results cannot be written; nothing is written yet.

    A directory may hold files of the names that a folder's run has, and that are no run's.
    """
    n_left_out = len(_matching(str(config.image))) - len(pictures_of(config))
    if n_left_out:
        log.info("image=%s: %d pictures were written by runs, and are left out", config.image, n_left_out)
    if config.output is not None:
        folder, what = Path(config.output).absolute(), f"output={config.output}"
        refuse(folder.is_file(), f"{what}: is a file; the results of a folder go to a folder")
        check_writable(next(each for each in (folder, *folder.parents) if each.exists()), "results", what)
    is_runs = (path / CONFIG).exists() or (path / RUNS_DIR).exists()
    for name in (TABLE, PAGE, SHARED_MODEL):
        refuse(
            (path / name).exists() and not is_runs,
            f"{path}: holds a foreign {name}; name another hydra.run.dir",
        )


def restore_folder(config: Config, path: Path, restore_one: Callable[[Config, Path], dict[str, Any]]) -> dict[str, Any]:
    """Restore all pictures of `config.image` in `path`; returns the number of pictures of each status.

    `restore_one`: trains on a picture and restores it in a run directory of its own.
    """
    files, ranks = pictures_of(config), join()
    config.output = str(Path(config.output or path / RESTORED_DIR))
    if ranks.is_leader:
        for folder in (path / RUNS_DIR, Path(config.output)):
            folder.mkdir(parents=True, exist_ok=True)
    ranks.meet()
    rows: list[Row] = []
    for i, task in enumerate(tasks_of(config, files, path)):
        log.info("%d of %d: %s", i + 1, len(files), task.config.image)
        try:
            with sharing_failures():
                done = Row.of(task.name, task.path, restore_one(task.config, task.path))
            rows.append(done)
        except (Interrupted, LostRank):
            raise
        except Exception as error:
            if not is_known_to_all(error):
                raise  # the others may be in the middle of the picture
            ranks = join()
            rows.append(Row(task.name, "failed", problem=one_line(error)))
            if ranks.is_leader:
                log.error("%s: %s", task.name, rows[-1].problem)
        if ranks.is_leader:
            write_report(path, rows, f"{DONE[config.task]}: {config.image}")
    failed = [row for row in rows if row.status == "failed"]
    if failed:
        n_done = f"{len(rows) - len(failed)} of {len(rows)} pictures are done, side by side in {path / PAGE}"
        raise SomeFailed(f"{n_done}; these failed:", *(f"  {row.name}: {row.problem}" for row in failed))
    if ranks.is_leader:
        n_done = f"{len(rows)} picture{'s' if len(rows) > 1 else ''}"
        log.info("%s %s, side by side in %s", n_done, DONE[config.task].lower(), path / PAGE)
    return dict(Counter(row.status for row in rows))


def pictures_of(config: Config) -> list[Path]:
    """The pictures in a folder or that match a pattern, in the order of their names, without those of runs."""
    files = [each for each in _matching(str(config.image)) if not _is_written(each, config)]
    refuse(not files, f"image={config.image}: no picture there ({', '.join(FORMATS)})")
    return files


def _matching(pattern: str) -> list[Path]:
    is_one = os.path.isdir(pattern)
    is_run = is_one and (Path(pattern) / CHECKPOINT).exists()
    refuse(is_run, f"image={pattern}: is the directory of a run; run={pattern} restores from it")
    found = Path(pattern).iterdir() if is_one else map(Path, glob.glob(pattern, recursive=True))
    named = (each for each in found if each.suffix.lower() in FORMATS and not each.name.startswith("."))
    return sorted(each for each in named if each.is_file())


def _is_written(file: Path, config: Config) -> bool:
    """True if a run has written the file: below the folders that `image` names, in a run directory or in `output`."""
    parts = Path(os.path.abspath(str(config.image))).parts
    n_named = len(list(itertools.takewhile(lambda part: not glob.has_magic(part), parts)))
    folders = [each for each in Path(os.path.abspath(file)).parents if len(each.parts) > n_named]
    results = None if config.output is None else Path(os.path.abspath(config.output))
    return any(each == results or all((each / name).is_file() for name in (CONFIG, FINGERPRINT)) for each in folders)


def tasks_of(config: Config, files: list[Path], path: Path) -> list[Task]:
    names = _names(files)
    return [
        Task(name, _config_of(config, file, str(Path(str(config.output)) / name)), path / RUNS_DIR / name)
        for file, name in zip(files, names, strict=True)
    ]


def _names(files: list[Path]) -> list[str]:
    """Names for the results: those of the files, with those of their folders where two are the same."""
    names = [file.name for file in files]
    if len({*names}) == len(names):
        return names
    common = os.path.commonpath([file.parent for file in files])
    return ["_".join(file.relative_to(common).parts) for file in files]


def _config_of(config: Config, file: Path, output: str) -> Config:
    """The configuration of one picture; files beside it have its name, or are the same for all."""
    own = replace(config, image=str(file), output=output)
    for option in options_told("beside_image", True):
        given = getattr(config, option)
        if given is not None and os.path.isdir(given):
            beside = Path(given) / file.name
            if not beside.exists():
                raise UserError(f"{option}={given}: has no {file.name}")
            setattr(own, option, str(beside))
    return own
