"""Arrays in files, for data and states that do not fit into memory.

What is read or written through a mapping counts as resident until it is dropped, which the system does only when memory
is short. `Mapped.release` drops it at once: nothing is lost, for the file holds it, and the resident part stays small.
"""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tvae.checkpoint import DiskFull

ROWS_BETWEEN = 256  # rows touched before pages are dropped: with a row the system maps what lies around it, up to 2 MB


class Mapped:
    """A file as a tensor."""

    def __init__(self, array: np.memmap):
        self.tensor: Tensor = torch.from_numpy(array)
        self._map: mmap.mmap = array._mmap  # type: ignore[attr-defined]

    def release(self) -> None:
        """Drop what is in memory; where the system cannot, do nothing."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


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
