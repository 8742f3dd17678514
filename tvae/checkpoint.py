"""Checkpoints: written whole or not at all, checked when read, and never able to run code.

`checkpoint.pt` is an ordinary `torch.save` file of tensors and plain values. It is written under a temporary name,
flushed to the disk and renamed; the one before it stays as `checkpoint.previous.pt`. torch does not notice a flipped
byte, so the SHA-256 of the file stands in the comment at the end of the zip archive that a `torch.save` file is; other
readers ignore it.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger(__name__)

NAME, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
COMMENT_LENGTH = 64


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
    newest = directory / NAME
    new = directory / f"{NAME}.new"
    write_atomically(new, _with_checksum(content))
    if newest.exists():
        os.replace(newest, directory / PREVIOUS)
    os.replace(new, newest)


def _with_checksum(content: dict[str, Any]) -> bytes:
    """A `torch.save` file; a zip archive ends with the length of its comment (here none yet) and the comment."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    archive = buffer.getvalue()[:-2]
    return archive + COMMENT_LENGTH.to_bytes(2, "little") + hashlib.sha256(archive).hexdigest().encode()


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint file, or `DamagedCheckpoint`."""
    try:
        stored = path.read_bytes()
        archive, end = stored[: -COMMENT_LENGTH - 2], stored[-COMMENT_LENGTH:]
        if hashlib.sha256(archive).hexdigest().encode() != end:
            raise DamagedCheckpoint(f"{path}: damaged, its checksum is wrong")
        content = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError) as error:
        raise DamagedCheckpoint(f"{path}: not a readable checkpoint ({type(error).__name__})") from error
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
