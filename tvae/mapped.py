"""Arrays in files, for data and states that do not fit into memory.

What is read or written through a mapping counts as resident until it is dropped, which the system does only when memory
is short. `Mapped.release` drops it at once: nothing is lost, for the file holds it, and the resident part stays small.
"""

from __future__ import annotations

import math
import mmap
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tvae.atomic import DiskFull
from tvae.states import put_rows

ROWS_BETWEEN = 256  # rows touched before pages are dropped: with a row the system maps what lies around it, up to 2 MB


class Mapped:
    """A file as a tensor."""

    def __init__(self, array: np.memmap):
        with warnings.catch_warnings():  # that what is only read must not be written to
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            self.tensor: Tensor = torch.from_numpy(array)
        self._map: mmap.mmap = array._mmap  # type: ignore[attr-defined]

    def release(self) -> None:
        """Drop what is in memory; where the system cannot, do nothing."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class Files:
    """The files that rows are read from and written to; drops what is in memory of them now and then. May be none."""

    def __init__(self, *files: Mapped | None):
        self._files = [file for file in files if file is not None]
        self._n_touched = 0  # rows since the last release

    def create(self, path: Path, shape: tuple[int, ...]) -> Tensor:
        """Another file, see `create`."""
        self._files.append(create(path, shape))
        return self._files[-1].tensor

    def take(self, tensor: Tensor, index: Tensor) -> Tensor:
        """tensor[index]"""
        if not self._files:
            return tensor.index_select(0, index)
        parts = []
        for part in index.split(ROWS_BETWEEN):
            parts.append(tensor.index_select(0, part))
            self._count(len(part))
        return torch.cat(parts)

    def put(self, states: Tensor, index: Tensor, packed: Tensor) -> None:
        """states[index] = packed"""
        n_at_once = ROWS_BETWEEN if self._files else max(1, len(index))
        for part, rows in zip(index.split(n_at_once), packed.split(n_at_once), strict=True):
            put_rows(states, part, rows)
            self._count(len(part))

    def _count(self, n_rows: int) -> None:
        self._n_touched += n_rows
        if self._n_touched >= ROWS_BETWEEN:
            self.release()

    def release(self) -> None:
        self._n_touched = 0
        for file in self._files:
            file.release()


def create(path: Path, shape: tuple[int, ...]) -> Mapped:
    """A new file of bytes in place of any of this name.

    Its space is taken at once: a full disk is an error here, while later it would end the process.
    """
    size = math.prod(shape)
    path.unlink(missing_ok=True)
    with open(path, "wb") as file:
        try:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise DiskFull(f"{path}: no room for {size / 2**30:.1f} GB of states ({error.strerror})") from error
    return Mapped(np.memmap(path, np.uint8, "r+", shape=shape))
