"""Seconds of a whole restoration beside BM3D's (`make bench`).

    python -m scripts.bench.restoring [--side 256] [--rounds 3] [--efforts fast default best] [--out outputs/bench]

A piece of house (where it is not found, of camera) with noise of 25 grey levels, the same array for all. Everything
takes turns in one run: BM3D by a Python call, told the noise (package `bm3d`; without it there are no ratios); each
effort by a Python call on all threads and on one, the kernel being compiled; each effort as a command with the start of
Python, whose files are written; beside as many busy processes as there are cores all of that again; and the command
with a picture of 64x64, up to its first line and as a whole. Printed are medians over the rounds, the least and the
greatest; ratios are those of the same round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import tvae
from scripts.bench.training import Spread, busy_neighbour, by_turns, ratios, seconds
from scripts.paper.peers import bm3d
from tvae.config.placement import n_cores
from tvae.data.named import read_named
from tvae.errors import UserError
from tvae.io.atomic import write_atomically
from tvae.runs.machine import machine

SIGMA = 25
EFFORTS = ("fast", "default", "best")
BM3D = "BM3D"
BUSY = "beside busy processes: "
SMALL = 64  # pixels along a side
OF_SMALL = f"{SMALL}x{SMALL}, "


def noisy_picture(side: int) -> np.ndarray:
    """(side, side) uint8; larger than the picture itself, it is repeated."""
    try:
        clean = read_named("house", None).pixels[..., 0]
    except UserError:
        clean = read_named("camera", None).pixels[..., 0]
    clean = np.tile(clean, [-(-side // length) for length in clean.shape])[:side, :side]
    noisy = clean + SIGMA * np.random.default_rng(0).standard_normal(clean.shape)
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def variants(noisy: np.ndarray, efforts: list[str], folder: Path) -> dict[str, Callable[[], float]]:
    """Timed cases by name; each returns its seconds."""
    found: dict[str, Callable[[], float]] = {}
    try:
        bm3d(noisy[:32, :32].astype(float), SIGMA)
        found[BM3D] = partial(seconds, lambda: bm3d(noisy.astype(float), SIGMA))
    except ImportError:
        print("package bm3d is not installed: there is nothing to compare with")
    for effort in efforts:
        for n_threads in sorted({1, n_cores()}):
            call = partial(tvae.denoise, noisy, effort=effort, threads=n_threads)
            found[f"{effort}, call, {_threads(n_threads)}"] = partial(seconds, call)
        found[f"{effort}, command"] = partial(seconds, partial(_command, noisy, effort, folder))
    found |= {f"{BUSY}{name}": partial(_beside, work) for name, work in found.items()}
    small = noisy_picture(SMALL)
    found[f"{OF_SMALL}command, first line"] = partial(_first_line, small, folder)
    found[f"{OF_SMALL}command"] = partial(seconds, partial(_command, small, "default", folder))
    return found


def _threads(n: int) -> str:
    return f"{n} thread" if n == 1 else f"{n} threads"


def _words(noisy: np.ndarray, effort: str, folder: Path) -> list[str]:
    picture = folder / "noisy.png"
    Image.fromarray(noisy).save(picture)
    words = [f"image={picture}", f"effort={effort}", f"hydra.run.dir={folder / effort}", "restart=true"]
    return [sys.executable, "-m", "tvae.denoise", *words]


def _command(noisy: np.ndarray, effort: str, folder: Path) -> None:
    subprocess.run(_words(noisy, effort, folder), check=True, capture_output=True)


def _first_line(noisy: np.ndarray, folder: Path) -> float:
    """Seconds until the command says something; it is then waited for."""
    words, started = _words(noisy, "default", folder), time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()
        passed = time.perf_counter() - started
        process.stderr.read()
    return passed


def _beside(work: Callable[[], float]) -> float:
    with ExitStack() as stack:
        for _ in range(n_cores()):
            stack.enter_context(busy_neighbour())
        return work()


def table(found: dict[str, list[float]]) -> str:
    """Markdown: seconds, over BM3D's, and beside busy processes over quiet."""
    lines = ["| | seconds | over BM3D's | over quiet |", "|---|---|---|---|"]
    for name, values in found.items():
        is_small = name.startswith(OF_SMALL)  # another picture
        peer = None if is_small else found.get(f"{BUSY}{BM3D}" if name.startswith(BUSY) else BM3D)
        quiet = found.get(name.removeprefix(BUSY)) if name.startswith(BUSY) else None
        cells = [ratios(values, other).text() if other else "" for other in (peer, quiet)]
        lines.append(f"| {name} | {Spread.of(values).text(2)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.restoring")
    parser.add_argument("--side", type=int, default=256, help="pixels along a side of the picture")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--efforts", nargs="+", choices=EFFORTS, default=list(EFFORTS))
    parser.add_argument("--out", type=Path, default=Path("outputs/bench"))
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="tvae-bench-") as folder:
        timed = variants(noisy_picture(options.side), options.efforts, Path(folder))
        tvae.denoise(noisy_picture(64), effort="fast")  # compiles the kernel, if that is still to be done
        found = by_turns(timed, options.rounds)
    print(table(found))
    content: dict[str, Any] = {"side": options.side, "seconds": found, "machine": machine()}
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / "restoring.json", json.dumps(content, indent=2).encode())


if __name__ == "__main__":
    main()
