"""Files: those that are read have an end, and those that are written are whole or not there at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tvae.errors import Failure, UserError, refuse

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

TEMPORARY = ".tvae-*.partial"  # names of files until they are whole; a random number in the place of the star
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
N_TRIES = 5  # to make a file that nobody else has


class DiskFull(Failure):
    """A file that could not be written."""


def check_regular(path: str | Path) -> None:
    """Raise `UserError` for what is there and is no file; what is not there is for the reader to tell.

    A pipe or a device would keep a command waiting, or fill the memory.
    """
    found = Path(path)
    try:
        is_other = found.exists() and not found.is_file()
        refuse("\0" in str(path), f"{path!r}: no file can have this name")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if is_other:
        kind = "a folder" if found.is_dir() else "a pipe or device"
        raise UserError(f"{str(path) or '(no name)'}: {kind}; must be a file")


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` at the end; a reader sees the old file or the new one and nothing between.

    Only a file is replaced: a folder or a device that has this name stays.
    """
    refuse(path.exists() and not path.is_file(), f"{path}: not a regular file, so it is not overwritten")
    temporary: Path | None = None
    try:
        file = new_file(path.parent)
        temporary = Path(file.name)
        with file:
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
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def new_file(folder: Path) -> BinaryIO:
    """A file to write and read that nobody else has: a name of its own, never what a link of that name leads to.

    It is locked until it is closed, where files can be locked, so that `remove_temporary` leaves it alone.
    """
    for n_left in reversed(range(N_TRIES)):
        with suppress(FileExistsError):
            file = open(folder / TEMPORARY.replace("*", secrets.token_hex(8)), "x+b")  # noqa: SIM115
            is_locked = _lock(file)
            if (is_locked or n_left == 0) and os.path.exists(file.name):  # else it was taken for one that was left over
                return file
            file.close()
            Path(file.name).unlink(missing_ok=True)
    raise FileExistsError(errno.EEXIST, "no name is free", str(folder))


def _lock(file: BinaryIO) -> bool:
    """Lock a file until it is closed; False: another process is writing it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def remove_temporary(folder: Path) -> None:
    """Remove what killed processes have left in a run directory, but not what others are writing there."""
    for path in folder.glob(TEMPORARY):
        if re.fullmatch(TEMPORARY.replace("*", "[0-9a-f]{16}"), path.name) and path.is_file() and not path.is_symlink():
            with suppress(FileNotFoundError), open(path, "rb") as file:
                if _lock(file):
                    path.unlink(missing_ok=True)


def check_writable(folder: Path, name: str, what: str) -> None:
    """Raise `UserError` unless a file of this name can be written there; tried, for access bits do not tell it all."""
    try:
        with suppress(FileNotFoundError):
            os.lstat(folder / name)  # a name that is too long is refused
        with new_file(folder) as trial:
            os.unlink(trial.name)
    except (OSError, ValueError) as error:
        raise UserError(f"{what}: cannot be written ({getattr(error, 'strerror', None) or error})") from None


def sync_names(directory: Path) -> None:
    """Flush the names in a directory, so that they survive a loss of power, where the system can."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomically(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)
