"""Files that are read have an end: a pipe or a device would keep a command waiting, or fill the memory."""

from __future__ import annotations

from pathlib import Path

from tvae.core.errors import UserError


def check_regular(path: str | Path) -> None:
    """Raise `UserError` for what is there and is no file; what is not there is for the reader to tell."""
    found = Path(path)
    try:
        is_other = found.exists() and not found.is_file()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except ValueError as error:  # a name that no file can have
        raise UserError(f"{path!r}: {error}") from error
    if is_other:
        kind = "a folder" if found.is_dir() else "a pipe or device"
        raise UserError(f"{str(path) or '(no name)'}: {kind}, where a file is wanted")
