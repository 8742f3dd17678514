"""Finished runs on the development set, and other systems on the arrays that they saw.

A run is read from its config.yaml, metrics.json and uncertainty.tiff. BM3D (package `bm3d`, for non-commercial use;
told the level of the noise, and with the level that `tvae.noise.level` estimates) and biharmonic interpolation are
measured once and kept in a CSV file, a line for each picture, corruption, seed and system.
"""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from skimage.restoration import inpaint_biharmonic

from scripts.paper.peers import bm3d
from scripts.pictures.development_set import HALF_OF
from tvae.config.checks import read_config
from tvae.config.schema import Config
from tvae.data.picture import add_noise, drop_pixels
from tvae.errors import UserError, refuse
from tvae.io.atomic import write_atomically
from tvae.io.image_file import read_image
from tvae.noise.level import estimate_noise
from tvae.restoration.metrics import psnr
from tvae.runs.files import CONFIG, FINGERPRINT, METRICS, TENSORBOARD_DIR
from tvae.runs.run_directory import read_metrics

N_PARTS = 8  # of the pixels, from the lowest to the highest stated uncertainty
N_DEVIATIONS = 2  # within which errors are counted as covered
COLUMNS = ("picture", "corruption", "level", "seed", "system", "psnr", "seconds")
NOT_INSTALLED = "BM3D cannot be imported (pip install '.[peers]'), so its columns hold only what was measured before."


class Corruption(NamedTuple):
    kind: str  # noise or missing
    level: float  # grey levels, or share of the pixels

    def __str__(self) -> str:
        return f"{self.kind}={self.level:g}"


class Case(NamedTuple):
    """A corrupted picture that our runs and other systems restore."""

    picture: str
    corruption: Corruption
    seed: int


class Arrays(NamedTuple):
    clean: np.ndarray  # (H, W, 1 or 3) float64
    corrupted: np.ndarray  # (H, W, 1 or 3) float64; 0 where missing
    missing: np.ndarray | None  # (H, W) bool


class Calibration(NamedTuple):
    """Errors beside the stated deviations."""

    ratios: tuple[float, ...]  # RMSE over stated, for each part of the pixels
    coverage: float  # share of the errors within two deviations


@dataclass(frozen=True)
class PictureRun:
    directory: Path
    case: Case
    effort: str
    psnr: float
    seconds: float
    is_whole: bool  # the seconds are those of the whole run, not of its training alone
    n_threads: int | None  # None: all cores
    calibration: Calibration
    made_by: str  # version and revision of this program


def arrays_of(case: Case, clean_folder: Path) -> Arrays:
    """The arrays that a run of this case sees, to the last bit."""
    clean = read_image(clean_folder / f"{case.picture}.png").pixels
    if case.corruption.kind == "noise":
        return Arrays(clean, add_noise(clean, case.corruption.level, case.seed), None)
    missing = drop_pixels(clean.shape, case.corruption.level, case.seed)
    return Arrays(clean, np.where(missing[..., None], 0, clean), missing)


def calibrate(error: np.ndarray, stated: np.ndarray) -> Calibration:
    """Compare errors with stated deviations (both one value a pixel), in parts of equal size ordered by the latter."""
    parts = np.array_split(np.argsort(stated, kind="stable"), N_PARTS)
    squares = [(float(np.mean(error[part] ** 2)), float(np.mean(stated[part] ** 2))) for part in parts]
    ratios = tuple(math.sqrt(found / told) if told > 0 else math.inf for found, told in squares)
    return Calibration(ratios, float(np.mean(np.abs(error) <= N_DEVIATIONS * stated)))


def collect_runs(folder: Path) -> list[PictureRun]:
    """All finished runs below `folder`/runs on pictures of `folder`/clean; other directories there are named."""
    found: dict[tuple[Case, str], PictureRun] = {}
    for path in sorted((folder / "runs").glob(f"**/{METRICS}")):
        try:
            run = read_run(path.parent, folder / "clean")
            if run is not None:
                first = found.setdefault((run.case, run.effort), run)
                refuse(first is not run, f"{run.directory}: the same as {first.directory}")
        except UserError as error:
            print(f"left out: {error}", file=sys.stderr)
    return list(found.values())


def read_run(directory: Path, clean_folder: Path) -> PictureRun | None:
    """A finished run; `UserError` if it is none of the development set's, or damaged."""
    metrics, config = read_metrics(directory), read_config(directory / CONFIG)
    if metrics is None:
        raise UserError(f"{directory / METRICS}: cannot be read")
    if metrics.get("status") != "finished":
        return None
    case = case_of(config, directory)
    arrays = arrays_of(case, clean_folder)
    seconds = seconds_of_all(directory, metrics["seconds"])
    return PictureRun(
        directory,
        case,
        config.effort,
        metrics["psnr"],
        metrics["seconds"] if seconds is None else seconds,
        seconds is not None,
        config.threads,
        stated_and_found(directory, arrays),
        metrics.get("machine", {}).get("tvae", "unknown"),
    )


def case_of(config: Config, directory: Path) -> Case:
    picture = Path(config.image or "").stem
    refuse(picture not in HALF_OF, f"{directory}: not of a picture of the development set")
    refuse((config.noise is None) == (config.missing is None), f"{directory}: neither of noise nor of missing pixels")
    kind, level = ("missing", config.missing) if config.noise is None else ("noise", config.noise)
    assert level is not None
    return Case(picture, Corruption(kind, level), config.corruption_seed)


def stated_and_found(directory: Path, arrays: Arrays) -> Calibration:
    """Calibration over the estimated pixels; the restored picture is rounded to 8 bit."""
    seen, restored, stated = (
        read_image(directory / name).pixels for name in ("input.png", "restored.png", "uncertainty.tiff")
    )
    # Rounded, too. What differs by more was made from another picture, or by another generator.
    is_same = seen.shape == arrays.clean.shape and np.abs(seen - arrays.corrupted.clip(0, 255)).max() < 1
    refuse(not is_same, f"{directory}: not of the picture that is in the development set now")
    error = restored - arrays.clean
    is_estimated = np.ones(error.shape, dtype=bool) if arrays.missing is None else arrays.missing[..., None]
    return calibrate(error[is_estimated], stated[is_estimated])


def seconds_of_all(directory: Path, of_training: float) -> float | None:
    """Seconds from the first file of a run to its last; None if it was interrupted, or if its files were copied."""
    # events.out.tfevents.TIME.HOST.PROCESS.NUMBER: a run that was interrupted has those of several processes
    events = (directory / TENSORBOARD_DIR).glob("events.out.tfevents.*")
    processes = {path.name.split(".")[-2] for path in events}
    if len(processes) != 1 or not (directory / FINGERPRINT).is_file():
        return None
    seconds = (directory / METRICS).stat().st_mtime - (directory / FINGERPRINT).stat().st_mtime
    return seconds if seconds >= of_training else None


class Measured(NamedTuple):
    psnr: float
    seconds: float


Found = dict[tuple[Case, str], Measured]  # by case and system


def biharmonic(arrays: Arrays, _: float) -> np.ndarray:
    assert arrays.missing is not None
    return 255 * inpaint_biharmonic(arrays.corrupted / 255, arrays.missing, channel_axis=-1)


# By kind of corruption; differences are to the first.
SYSTEMS: dict[str, dict[str, Callable[[Arrays, float], np.ndarray]]] = {
    "noise": {
        "BM3D, told": lambda arrays, level: bm3d(arrays.corrupted, level),
        "BM3D, estimated": lambda arrays, _: bm3d(arrays.corrupted, estimate_noise(arrays.corrupted, None)),
    },
    "missing": {"biharmonic": biharmonic},
}
GREY_ONLY = ("BM3D, estimated",)  # in colour it takes long, and its estimate is hardly another one


def is_installed(kind: str) -> bool:
    if kind == "noise":
        try:
            import bm3d  # noqa: F401
        except Exception:  # its binaries may not suit the machine
            return False
    return True


def measure_peers(cases: Iterable[Case], clean_folder: Path, cache: Path) -> Found:
    """Read the file `cache`, and measure whatever is missing there for `cases`."""
    found = read_measured(cache)
    can_run = {kind: is_installed(kind) for kind in SYSTEMS}
    for case in cases:
        kind, level = case.corruption
        is_colour = HALF_OF[case.picture].startswith("colour")
        systems = {
            name: run
            for name, run in SYSTEMS[kind].items()
            if can_run[kind] and (case, name) not in found and not (is_colour and name in GREY_ONLY)
        }
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
    """Read a CSV file; lines that cannot be read are skipped, and so measured anew."""
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
