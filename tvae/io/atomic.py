"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tvae.errors import Failure, UserError, refuse

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(Failure):
    """Something could not be written."""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` at the end; a reader sees the old file or the new one and nothing between.

    Only a file is replaced: a folder or a device that has this name stays.
    """
    refuse(path.exists() and not path.is_file(), f"{path}: is no file, so it is not written over")
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "x+b") as file:  # a new one: never what a link of this name leads to
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_names(path.parent)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(
                f"{path}: cannot be written ({error.strerror}); what was there before is unchanged"
            ) from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(folder: Path, name: str, what: str) -> None:
    """Raise `UserError` unless a file of this name can be written there; tried, for access bits do not tell it all."""
    trial = folder / f".{name}.partial"
    try:
        trial.unlink(missing_ok=True)
        trial.open("xb").close()
        trial.unlink()
    except (OSError, ValueError) as error:
        raise UserError(f"{what}: cannot be written ({getattr(error, 'strerror', None) or error})") from None


def sync_names(directory: Path) -> None:
    """Let what was renamed in it survive a loss of power, where the system can."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomically(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)
