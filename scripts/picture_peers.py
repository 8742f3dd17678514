"""BM3D and biharmonic interpolation on the arrays that runs on the development set saw, each measured once.

Kept in a CSV file with a line for each picture, corruption, seed and system. BM3D (package `bm3d`, for non-commercial
use) runs twice: told the level of the noise, and with the level that `tvae.noise.level` finds in the picture.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from skimage.restoration import inpaint_biharmonic

from scripts.peers import bm3d
from scripts.picture_runs import Arrays, Case, Corruption, arrays_of
from tvae.io.atomic import write_atomically
from tvae.noise.level import estimate_noise
from tvae.restoration.metrics import psnr

COLUMNS = ("picture", "corruption", "level", "seed", "system", "psnr", "seconds")
NOT_INSTALLED = "BM3D cannot be imported (pip install '.[peers]'), so its columns hold only what was measured before."


class Measured(NamedTuple):
    psnr: float
    seconds: float


Found = dict[tuple[Case, str], Measured]  # by case and system


def bm3d_told(arrays: Arrays, level: float) -> np.ndarray:
    return bm3d(arrays.corrupted[..., 0], level)


def bm3d_estimated(arrays: Arrays, _: float) -> np.ndarray:
    return bm3d(arrays.corrupted[..., 0], estimate_noise(arrays.corrupted, None))


def biharmonic(arrays: Arrays, _: float) -> np.ndarray:
    assert arrays.missing is not None
    return 255 * inpaint_biharmonic(arrays.corrupted / 255, arrays.missing, channel_axis=-1)


# By kind of corruption; differences are to the first.
SYSTEMS: dict[str, dict[str, Callable[[Arrays, float], np.ndarray]]] = {
    "noise": {"BM3D, told": bm3d_told, "BM3D, estimated": bm3d_estimated},
    "missing": {"biharmonic": biharmonic},
}


def is_installed(kind: str) -> bool:
    if kind == "noise":
        try:
            import bm3d  # noqa: F401
        except Exception:  # its binaries may not suit the machine
            return False
    return True


def measure_peers(cases: Iterable[Case], clean_folder: Path, cache: Path) -> Found:
    """What is in the file `cache`, and in addition all that can be measured of `cases`."""
    found = read_measured(cache)
    can_run = {kind: is_installed(kind) for kind in SYSTEMS}
    for case in cases:
        kind, level = case.corruption
        systems = {name: run for name, run in SYSTEMS[kind].items() if can_run[kind] and (case, name) not in found}
        if not systems:
            continue
        arrays = arrays_of(case, clean_folder)
        for name, run in systems.items():
            started = time.perf_counter()
            try:
                restored = run(arrays, level)
            except Exception as error:  # of another system, which must not end ours
                print(f"left out: {name}: {type(error).__name__}: {error}")
                continue
            seconds = time.perf_counter() - started
            found[case, name] = Measured(psnr(arrays.clean, restored.reshape(arrays.clean.shape), 255.0), seconds)
            print(f"{case.picture} {case.corruption} seed={case.seed}  {name} {found[case, name].psnr:.2f}", flush=True)
        write_measured(cache, found)
    return found


def read_measured(path: Path) -> Found:
    """A line that cannot be read is measured anew."""
    found: Found = {}
    for line in csv.DictReader(path.read_text().splitlines()) if path.is_file() else ():
        try:
            corruption = Corruption(line["corruption"], float(line["level"]))
            case = Case(line["picture"], corruption, int(line["seed"]))
            found[case, line["system"]] = Measured(float(line["psnr"]), float(line["seconds"]))
        except (KeyError, TypeError, ValueError):
            continue
    return found


def write_measured(path: Path, found: Found) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for (case, system), measured in sorted(found.items()):
        writer.writerow([case.picture, *case.corruption, case.seed, system, *measured])
    write_atomically(path, text.getvalue().encode())
