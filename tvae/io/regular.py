"""Files that are read have an end: a pipe or a device would keep a command waiting, or fill the memory."""

from __future__ import annotations

from pathlib import Path

from tvae.errors import UserError, refuse


def check_regular(path: str | Path) -> None:
    """Raise `UserError` for what is there and is no file; what is not there is for the reader to tell."""
    found = Path(path)
    try:
        is_other = found.exists() and not found.is_file()
        refuse("\0" in str(path), f"{path!r}: no file can have this name")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if is_other:
        kind = "a folder" if found.is_dir() else "a pipe or device"
        raise UserError(f"{str(path) or '(no name)'}: {kind}; must be a file")
