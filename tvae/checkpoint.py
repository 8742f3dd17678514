"""Checkpoints: written whole or not at all, checked when read, and never able to run code.

`checkpoint.pt` is an ordinary `torch.save` file of tensors and plain values. It is written under a temporary name,
flushed to the disk and renamed; the one before it stays as `checkpoint.previous.pt`. The zip format underneath carries
a checksum of every record, which torch itself does not look at; it is verified here before anything is used.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger(__name__)

NAME, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"


class DamagedCheckpoint(Exception):
    """A file that is not, or no longer, what was written."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, so that a reader sees the old file or the new one and nothing between."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save(directory: Path, content: dict[str, Any]) -> None:
    """Write `content` (tensors and plain values) as the newest checkpoint; the one before it is kept."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    newest = directory / NAME
    new = directory / f"{NAME}.new"
    write_atomically(new, buffer.getbuffer())
    if newest.exists():
        os.replace(newest, directory / PREVIOUS)
    os.replace(new, newest)


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint file, or `DamagedCheckpoint`."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
        if bad is not None:
            raise DamagedCheckpoint(f"{path}: damaged (checksum of {bad})")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DamagedCheckpoint(f"{path}: not a readable checkpoint ({reason})") from error
    if not isinstance(content, dict):
        raise DamagedCheckpoint(f"{path}: not a checkpoint of this program")
    return content


def load_newest(directory: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; None where there is none at all."""
    found = [directory / name for name in (NAME, PREVIOUS) if (directory / name).exists()]
    for path in found:
        try:
            return read(path)
        except DamagedCheckpoint as error:
            log.warning("%s; it is not used", error)
    if found:
        raise DamagedCheckpoint(f"{directory}: no checkpoint there is readable; restart=true starts over")
    return None
