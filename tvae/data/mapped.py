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

from tvae.inference.states import put_rows
from tvae.io.atomic import DiskFull
from tvae.model.units import Units
from tvae.training.points import Batch, Reader, Source, StateSets, to_model

ROWS_BETWEEN = 256  # rows touched before pages are dropped: with a row the system maps what lies around it, up to 2 MB
ROWS_SEEN = 1 << 16  # data points that mean and variance are taken from


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


class Pages:
    """Counts the rows touched in a file, and drops what is in memory of it now and then."""

    def __init__(self, file: Mapped):
        self.file, self.n_touched = file, 0

    def take(self, index: Tensor) -> Tensor:
        """Rows by their numbers (B,)."""
        parts = []
        for part in index.split(ROWS_BETWEEN):
            parts.append(self.file.tensor.index_select(0, part))
            self.count(len(part))
        return torch.cat(parts)

    def count(self, n_rows: int) -> None:
        self.n_touched += n_rows
        if self.n_touched >= ROWS_BETWEEN:
            self.release()

    def release(self) -> None:
        self.n_touched = 0
        self.file.release()


class MappedSource(Source):
    """The rows of a file as data points, read as they are needed: more of them than fit into memory."""

    is_sampled = True

    def __init__(self, file: Mapped):
        self.file = file
        self.n_points, *sides = file.tensor.shape
        self.n_values = math.prod(sides)

    def known_values(self) -> Tensor:
        """Values of `ROWS_SEEN` data points spread over the file."""
        index = torch.linspace(0, self.n_points - 1, min(ROWS_SEEN, self.n_points), dtype=torch.float64).long()
        return Pages(self.file).take(index).flatten(1)

    def reader(self, part: range, units: Units, device: torch.device, dtype: torch.dtype) -> Reader:
        return MappedReader(self.file, part.start, units, device, dtype)


class MappedReader(Reader):
    def __init__(self, file: Mapped, first: int, units: Units, device: torch.device, dtype: torch.dtype):
        self.pages, self.first = Pages(file), first
        self.units, self.device, self.dtype = units, device, dtype

    def take(self, index: Tensor) -> Batch:
        rows = self.pages.take(index.cpu() + self.first).flatten(1).to(self.dtype)
        return to_model(rows, None, self.units, self.device, self.dtype), None


class MappedSets(StateSets):
    """Sets of states in a file."""

    def __init__(self, path: Path, shape: tuple[int, ...]):
        self.pages = Pages(create(path, shape))
        self.tensor = self.pages.file.tensor

    def take(self, index: Tensor) -> Tensor:
        return self.pages.take(index)

    def put(self, index: Tensor, packed: Tensor) -> None:
        for part, rows in zip(index.split(ROWS_BETWEEN), packed.split(ROWS_BETWEEN), strict=True):
            put_rows(self.tensor, part, rows)
            self.pages.count(len(part))

    def release(self) -> None:
        self.pages.release()


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
