"""Checkpoints: written whole or not at all, checked when read, and never able to run code.

`checkpoint.pt` is an ordinary `torch.save` file of tensors and plain values. It is written under a temporary name,
flushed to the disk and renamed; the one before it stays as `checkpoint.previous.pt`. torch does not notice a flipped
byte, so the SHA-256 of the file stands in the comment at the end of the zip archive that a `torch.save` file is; other
readers ignore it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

log = logging.getLogger(__name__)

NAME, PREVIOUS, NEW = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.new.pt"
COMMENT_LENGTH = 64


class DamagedCheckpoint(Exception):
    """A file that is not, or no longer, what was written."""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` at the end; a reader sees the old file or the new one and nothing between."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with open(temporary, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


def save(directory: Path, content: dict[str, Any]) -> None:
    """Write `content` (tensors and plain values) as the newest checkpoint; the one before it is kept."""
    newest, previous, new = directory / NAME, directory / PREVIOUS, directory / NEW
    with atomic_file(new) as file:
        torch.save(content, file)
        # A zip archive ends with the length of its comment, here none yet, and the comment.
        length = file.tell() - 2
        checksum = _checksum(file, length)
        file.seek(length)
        file.write(COMMENT_LENGTH.to_bytes(2, "little") + checksum)
    if newest.exists():  # a second name for the old one, so that there is a newest one at any time
        previous.unlink(missing_ok=True)
        try:
            os.link(newest, previous)
        except OSError:  # a file system without links
            os.replace(newest, previous)
    os.replace(new, newest)


def _checksum(file: BinaryIO, length: int) -> bytes:
    """SHA-256 of the first `length` bytes, in hexadecimal."""
    digest = hashlib.sha256()
    file.seek(0)
    while length > 0 and (block := file.read(min(length, 1 << 20))):
        digest.update(block)
        length -= len(block)
    return digest.hexdigest().encode()


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint file, its tensors mapped from the file, or `DamagedCheckpoint`."""
    try:
        with open(path, "rb") as file:
            length = file.seek(0, os.SEEK_END) - COMMENT_LENGTH - 2
            file.seek(max(0, length + 2))
            if file.read() != _checksum(file, length):
                raise DamagedCheckpoint(f"{path}: damaged, its checksum is wrong")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
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
