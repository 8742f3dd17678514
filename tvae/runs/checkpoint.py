"""Checkpoints: the newest one of a run, and the one before it.

`checkpoint.pt` is a file as `sealed.py` writes them; the one before it stays as `checkpoint.previous.pt`. States of
many ranks, or many of one, are in files of their own, which each rank writes for itself; `checkpoint.pt` is written
last and lists them in the order of the data points, so that any number of ranks can read them.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tvae.io.atomic import sync_names
from tvae.io.sealed import DamagedCheckpoint, read, understood, write
from tvae.runs.distributed.ranks import LostRank, Ranks
from tvae.runs.files import CHECKPOINT, DAMAGED, NEW, PARTS, PREVIOUS

log = logging.getLogger(__name__)

HELD_BYTES = 1 << 28  # of states that one rank alone writes into the checkpoint itself


@dataclass(frozen=True)
class Part:
    """Some rows of the states, in a file or in the checkpoint itself."""

    name: str  # of the rows
    shape: tuple[int, ...]
    path: Path | None  # the file
    checksum: str
    content: dict[str, Tensor]  # if there is no file

    def load(self) -> Tensor:
        return self.content[self.name] if self.path is None else read(self.path, self.checksum)[self.name]


@dataclass(frozen=True)
class Saved:
    path: Path
    content: dict[str, Any]
    parts: list[Part]


def save(directory: Path, content: dict[str, Any], parts: Iterable[dict[str, Tensor]], ranks: Ranks) -> None:
    """Write `content` (tensors and plain values) as the newest checkpoint; the one before it is kept.

    `parts`: rows of this rank, each under the name of what they are rows of. To be called on all ranks; the content is
    the leader's.
    """
    listed: list[dict[str, Any]] = []
    try:
        _write_parts(directory, parts, ranks.is_alone, listed)
        every = [entry for entries in ranks.gather(listed) for entry in entries]
        if ranks.is_leader:
            _write_newest(directory, {**content, "parts": every})
        ranks.meet()
    except LostRank:
        raise  # the parts may be those of the newest checkpoint; if they are not, the next one removes them
    except Exception:  # of another rank perhaps, after the list of the parts was written
        for name in {entry["file"] for entry in listed} - _files_of(directory / CHECKPOINT) - {None}:
            (directory / name).unlink(missing_ok=True)
        raise


def _write_parts(
    directory: Path, parts: Iterable[dict[str, Tensor]], may_hold: bool, listed: list[dict[str, Any]]
) -> None:
    """Add to `listed` what a reader needs to know of each part; few rows need no files."""
    held: list[dict[str, Tensor]] = []
    n_bytes = 0
    for part in parts:
        held.append(part)
        n_bytes += sum(rows.nbytes for rows in part.values())
        if not may_hold or n_bytes > HELD_BYTES:
            listed += [_write_part(directory, part) for part in held]
            may_hold, held = False, []
    listed += [_entry(part, None, "") | {"content": part} for part in held]


def _write_part(directory: Path, part: dict[str, Tensor]) -> dict[str, Any]:
    file = PARTS.replace("*", secrets.token_hex(8))
    copy = {name: rows.clone() for name, rows in part.items()}  # of a slice torch would write all it is a slice of
    return _entry(part, file, write(directory / file, copy))


def _entry(part: dict[str, Tensor], file: str | None, checksum: str) -> dict[str, Any]:
    ((name, rows),) = part.items()
    return {"name": name, "shape": list(rows.shape), "file": file, "checksum": checksum, "content": {}}


def _write_newest(directory: Path, content: dict[str, Any]) -> None:
    newest, previous, new = directory / CHECKPOINT, directory / PREVIOUS, directory / NEW
    write(new, content)
    if newest.exists():  # a second name for the old one, so that there is a newest one at any time
        previous.unlink(missing_ok=True)
        try:
            os.link(newest, previous)
        except OSError:  # a file system without links
            os.replace(newest, previous)
    os.replace(new, newest)
    sync_names(directory)
    _remove_other_parts(directory, {entry["file"] for entry in content["parts"]})


def _remove_other_parts(directory: Path, newest: set[str | None]) -> None:
    """Remove parts that belong neither to the newest checkpoint nor to the previous one, as far as possible."""
    with suppress(OSError):
        others = [file for file in directory.glob(PARTS) if file.name not in newest]
        wanted = _files_of(directory / PREVIOUS) if others else set()
        for file in others:
            if file.name not in wanted:
                file.unlink(missing_ok=True)


def _files_of(path: Path) -> set[str | None]:
    try:
        return {None if part.path is None else part.path.name for part in _open(path).parts}
    except DamagedCheckpoint:
        return set()


def load_newest(directory: Path, ranks: Ranks) -> Saved | None:
    """The newest checkpoint that is whole; None if there is none at all. To be called on all ranks."""
    here = [name for name in (CHECKPOINT, PREVIOUS) if (directory / name).exists()]
    found = [directory / name for name in ranks.gather(here)[0]]  # what the leader sees
    for path in found:
        opened = _try_to_open(path, ranks)
        problems = [problem for problem in ranks.gather(opened if isinstance(opened, str) else None) if problem]
        if not problems and isinstance(opened, Saved):
            return opened
        if ranks.is_leader:
            log.warning("%s; it is not used", problems[0])
    if found:
        unreadable = DamagedCheckpoint(f"{directory}: no checkpoint there is readable; restart=true starts over")
        unreadable.is_shared = True
        raise unreadable
    return None


def reinstate(saved: Saved) -> None:
    """Make a checkpoint that was read the newest; a damaged newest one is put aside, so that it never replaces this."""
    directory = saved.path.parent
    if saved.path.name == PREVIOUS:
        if (directory / CHECKPOINT).exists():
            os.replace(directory / CHECKPOINT, directory / DAMAGED)
        os.replace(saved.path, directory / CHECKPOINT)
    _remove_other_parts(directory, {part.path.name for part in saved.parts if part.path is not None})


def _try_to_open(path: Path, ranks: Ranks) -> Saved | str:
    """A checkpoint, or what is wrong with it."""
    try:
        saved = _open(path)
        with understood(path):
            for part in saved.parts[ranks.rank :: ranks.size]:  # all of them are looked at, by some rank
                if part.load().shape != part.shape:
                    raise ValueError("other rows than listed")
    except DamagedCheckpoint as error:
        return str(error)
    return saved


def _open(path: Path) -> Saved:
    content = read(path)
    with understood(path):
        parts = [
            Part(
                entry["name"],
                tuple(entry["shape"]),
                path.parent / Path(entry["file"]).name if entry["file"] else None,
                entry["checksum"],
                entry["content"],
            )
            for entry in content.pop("parts")
        ]
    return Saved(path, content, parts)


def copy_rows(
    parts: Iterable[Part], name: str, out: Tensor, first: int, release: Callable[[], None] = lambda: None
) -> None:
    """Fill `out` with the rows of this name from number `first` on; `release`: called after each part."""
    parts, start, end = [part for part in parts if part.name == name], 0, first + len(out)
    n_rows = shape_of(parts, name)[:1]
    if n_rows < (end,):
        raise ValueError(f"{name}: {sum(n_rows)} rows, not the {end} there should be")
    for part in parts:
        stop = start + part.shape[0]
        low, high = max(start, first), min(stop, end)
        if low < high:
            out[low - first : high - first].copy_(part.load()[low - start : high - start])
            release()
        start = stop


def shape_of(parts: Iterable[Part], name: str) -> tuple[int, ...]:
    """The shape of all rows of this name together; () where there are none."""
    shapes = [part.shape for part in parts if part.name == name]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes else ()
