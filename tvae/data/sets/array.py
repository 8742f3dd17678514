"""Data points in a NumPy file, read as they are needed: more of them than fit into memory.

`dataset=array dataset.file=FILE.npy`: (N, D), or (N, height, width) or (N, height, width, channels) for pictures, of
real numbers or integers. Mean, variance and the run's fingerprint are taken from a sample, `mapped.ROWS_SEEN` of them.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tvae.data.dataset import DataConfig, DataConfigT, Dataset, DatasetConfig, with_paper_model
from tvae.data.mapped import Mapped, MappedSource
from tvae.errors import UserError
from tvae.fields import fill, option
from tvae.io.atomic import check_regular

TYPES = ("float16", "float32", "float64", "uint8", "int16", "int32")


@dataclass
class ArrayConfig(DatasetConfig):
    names = ("array",)
    schema = "array"

    name: str = option("array", "a NumPy file", choices=names)
    file: Optional[str] = option(
        None, "the file, .npy: (N, D), (N, height, width) or (N, height, width, channels)", is_path=True
    )

    def complete(self, config: DataConfigT, opened: Any) -> DataConfigT:
        completed = with_paper_model(config, config.model.n_latents or 300, impute=True)
        return replace(completed, lr=fill(config.lr, max=0.002), epochs=config.epochs or 100)

    def make(self, config: DataConfig, opened: Any) -> Dataset:
        if self.file is None:
            raise UserError("dataset.file: no value was given; dataset=array needs it")
        array = open_array(Path(self.file))
        _, *sides = array.shape
        n_values = math.prod(sides)
        root = math.isqrt(n_values)
        shape = tuple(sides) if len(sides) > 1 else (root, root) if root**2 == n_values else (1, n_values)
        source = MappedSource(Mapped(array))
        made_of = hashlib.sha256(f"{array.shape} {array.dtype}".encode())
        made_of.update(source.known_values().numpy().data)
        return Dataset(source, shape, made_of=made_of.hexdigest())


def open_array(path: Path) -> np.memmap:
    """The file as an array; nothing is read yet, and nothing can be written."""
    check_regular(path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # any other mode counts against the memory there is
    except (ValueError, EOFError) as error:
        raise UserError(f"{path}: not a NumPy file of numbers ({error})") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    problem = (
        "holds several arrays; must be a .npy file of one" if not isinstance(array, np.memmap)
        else f"is of type {array.dtype}; must be {', '.join(TYPES)}" if str(array.dtype) not in TYPES
        else f"has the shape {array.shape}; must be (N, D), (N, height, width) or (N, height, width, channels)"
        if not 2 <= array.ndim <= 4 or 0 in array.shape
        else "is stored column by column; save it with numpy.ascontiguousarray" if not array.flags.c_contiguous
        else None
    )  # fmt: skip
    if problem:
        raise UserError(f"{path}: {problem}")
    return array
