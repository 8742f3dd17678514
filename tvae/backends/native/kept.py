"""Compiled kernels in a folder, each under a name with the hash of its content: what is damaged is not loaded.

Standard library alone, as `build`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def whole(folder: Path, key: str) -> Iterator[Path]:
    """Kernels that were kept under this key and are as they were."""
    for path in sorted(folder.glob(f"kernel-{key}-*")):
        if _is_whole(path):
            yield path


def keep(made: Path, folder: Path, key: str) -> Path:
    """Move a new kernel into the folder, in one step; damaged ones of this key are removed."""
    path = folder / name(key, made.read_bytes(), made.suffix)
    os.replace(made, path)
    for other in folder.glob(f"kernel-{key}-*"):
        if not _is_whole(other):
            with suppress(OSError):
                other.unlink()
    return path


def name(key: str, content: bytes, suffix: str) -> str:
    return f"kernel-{key}-{hashlib.sha256(content).hexdigest()[:32]}{suffix}"


def _is_whole(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:32] == path.stem.rpartition("-")[2]
    except OSError:
        return False
