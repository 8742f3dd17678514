"""Files of tensors and plain values that are written whole, checked when read, and never able to run code.

They are ordinary `torch.save` files, written under a temporary name, flushed to the disk and renamed. torch does not
notice a flipped byte, so the SHA-256 of the file stands in the comment at the end of the zip archive that such a file
is; other readers ignore it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from tvae.errors import Failure
from tvae.io.atomic import atomic_file

COMMENT_LENGTH = 64


class DamagedCheckpoint(Failure):
    """A file that is not, or no longer, what was written."""


def write(path: Path, content: dict[str, Any]) -> str:
    """A `torch.save` file with its checksum, which is returned."""
    with atomic_file(path) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch's word for whatever its file could not do
            cause = error.__cause__ or error.__context__
            raise cause if isinstance(cause, OSError) else error from None
        # A zip archive ends with the length of its comment, here none yet, and the comment.
        length = file.tell() - 2
        checksum = _checksum(file, length)
        file.seek(length)
        file.write(COMMENT_LENGTH.to_bytes(2, "little") + checksum)
    return checksum.decode()


def read(path: Path, checksum: str = "") -> dict[str, Any]:
    """The content of a checkpoint file, its tensors mapped from the file, or `DamagedCheckpoint`.

    `checksum`: the one it must have, where it is known.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("no file")
        with open(path, "rb") as file:
            length = file.seek(0, os.SEEK_END) - COMMENT_LENGTH - 2
            file.seek(max(0, length + 2))
            found = file.read()
            if found != _checksum(file, length) or checksum not in ("", found.decode()):
                raise DamagedCheckpoint(f"{path}: damaged, its checksum is wrong")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (MemoryError, DamagedCheckpoint):
        raise
    except Exception as error:  # a file can be crafted to raise nearly anything
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise  # it may be readable the next time
        raise DamagedCheckpoint(f"{path}: not a readable checkpoint ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise DamagedCheckpoint(f"{path}: not a checkpoint of this program")
    return content


@contextmanager
def understood(where: Path) -> Iterator[None]:
    """Turn errors about missing or unsuitable content of a checkpoint from `where` into `DamagedCheckpoint`."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise DamagedCheckpoint(f"{where}: not a checkpoint of this program ({reason})") from error


def _checksum(file: BinaryIO, length: int) -> bytes:
    """SHA-256 of the first `length` bytes, in hexadecimal."""
    digest = hashlib.sha256()
    file.seek(0)
    while length > 0 and (block := file.read(min(length, 1 << 20))):
        digest.update(block)
        length -= len(block)
    return digest.hexdigest().encode()
