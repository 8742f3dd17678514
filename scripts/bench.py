"""How fast training is: `make bench`, or `python -m scripts.bench [--quick] [--out outputs/bench]`.

Five settings, each in a process of its own: the paper's Table 1 and Table 2 (sigma=50), a linear model of 300 latents,
a deep one on 16x16 patches, and Table 2 with its states in a file. All patches of a noisy picture (house where it is
found, else camera) are held with their states; a stated subset of them is visited, first for some epochs, so that
states and weights are as sparse as in training, then several times against the clock. Seconds per epoch are scaled from
the subset to all patches.

"Dense" is a slow and obvious visit in plain torch: every old and new state through every layer, the gradient through
all S states by autograd; it is run beside the engine on the same data points. GFLOP/s count the multiplications a dense
evaluation of every state would need, so that skipping zeros shows as a share above what a GEMM alone could reach.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.visits import batches, dense_visit, end_epoch, engine_visit, make_training, phases, seconds_of
from tvae.core.fit import Fit
from tvae.data.atomic import write_atomically
from tvae.run.machine import machine

SETTINGS: dict[str, dict[str, Any]] = {
    "table 1": {"patch": 8, "latents": 64, "hidden": [64], "states": 200, "ea": (10, 9, 4), "noise": 25, "lr": 0.01},
    "table 2": {"patch": 12, "latents": 512, "hidden": [512], "states": 64, "ea": (5, 4, 1), "noise": 50, "lr": 0.005},
    "linear": {"patch": 16, "latents": 300, "hidden": [], "states": 64, "ea": (5, 4, 1), "noise": 25, "lr": 0.005},
    "deep 16x16": {
        "patch": 16, "latents": 300, "hidden": [300, 300], "states": 64, "ea": (5, 4, 1), "noise": 25, "lr": 0.005
    },
}  # fmt: skip
SETTINGS["table 2, states in a file"] = {**SETTINGS["table 2"], "memmap": True}
AUTHORS = {"table 1": 114.0, "table 2": 120.0}  # seconds an epoch of the authors' code on two cores


def gemm_peak() -> float:
    """GFLOP/s of a large float32 matrix product, the best of some."""
    a, b = torch.randn(2048, 1024), torch.randn(1024, 1024)
    times = []
    for _ in range(12):
        started = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - started)
    return 2 * 2048 * 1024 * 1024 / min(times) / 1e9


def measure(setting: dict[str, Any], n_points: int, n_warm: int, n_repeats: int, with_dense: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return measure_training(make_training(setting, Path(folder)), setting, n_points, n_warm, n_repeats, with_dense)


def measure_training(
    fit: Fit, setting: dict[str, Any], n_points: int, n_warm: int, n_repeats: int, with_dense: bool
) -> dict[str, Any]:
    visit, indices = engine_visit(fit), batches(fit, n_points)
    n_visited = sum(map(len, indices))
    for seed in range(n_warm):
        seconds_of(visit, indices, seed)
        end_epoch(fit)
    times = [seconds_of(visit, indices, n_warm + seed) for seed in range(n_repeats)]
    with phases(fit) as spent:
        whole = seconds_of(visit, indices, n_warm + n_repeats)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    n_evaluated = setting["states"] + math.prod(setting["ea"])
    scale = len(fit.points.own) / n_visited
    median = float(np.median(times))
    flops = 2 * n_evaluated * n_visited * fit.model.decoder.cost
    found = {
        "n_points": len(fit.points.own),
        "n_visited": n_visited,
        "seconds_per_epoch": median * scale,
        "seconds_per_epoch_min": min(times) * scale,
        "seconds_per_epoch_max": max(times) * scale,
        "states_per_second": n_evaluated * n_visited / median,
        "gflops": flops / median / 1e9,
        "gemm_peak": gemm_peak(),
        "phases": {name: seconds / whole for name, seconds in spent.items()},
        "memory_gb": memory,
    }
    found["phases"]["rest"] = 1 - sum(found["phases"].values())
    if with_dense:
        few = indices[: max(2, len(indices) // 20)]
        seconds_of(dense_visit(fit), few[:1], 98)  # the first one has more to do
        dense = seconds_of(dense_visit(fit), few, 99) * len(fit.points.own) / sum(map(len, few))
        found["seconds_per_epoch_dense"] = dense
    return found


def measure_in_process(name: str, options: list[str]) -> dict[str, Any]:
    """In a process of its own, so that memory is that of one setting."""
    command = [sys.executable, "-m", "scripts.bench", "--one", name, *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def table(found: dict[str, Any]) -> str:
    columns = ["setting", "patches (visited)", "s per epoch (min..max)", "authors' code", "dense", "states/s"]
    columns += ["GFLOP/s (GEMM peak)", "memory", "where the time goes"]
    rows = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, one in found["settings"].items():
        seconds = one["seconds_per_epoch"]

        def against(other: float | None, seconds: float = seconds) -> str:
            return "" if other is None else f"{other:.0f} s, {other / seconds:.1f}x"

        cells = [
            name,
            f"{one['n_points']} ({one['n_visited']})",
            f"{seconds:.1f} ({one['seconds_per_epoch_min']:.1f}..{one['seconds_per_epoch_max']:.1f})",
            against(AUTHORS.get(name.partition(",")[0])),
            against(one["seconds_per_epoch_dense"]),
            f"{one['states_per_second'] / 1e6:.2f} M",
            f"{one['gflops']:.0f} ({one['gemm_peak']:.0f})",
            f"{one['memory_gb']:.2f} GB",
            ", ".join(f"{phase} {share:.0%}" for phase, share in one["phases"].items()),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller subset and fewer repetitions")
    parser.add_argument("--out", default="outputs/bench", type=Path)
    parser.add_argument("--one", choices=SETTINGS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    n_points, n_warm, n_repeats = (960, 2, 3) if options.quick else (6400, 6, 5)
    if options.one:
        print(json.dumps(measure(SETTINGS[options.one], n_points, n_warm, n_repeats, with_dense=True)))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": machine(), "settings": {}}
    for name in SETTINGS:
        found["settings"][name] = measure_in_process(name, ["--quick"] if options.quick else [])
        print(f"{name}: {found['settings'][name]['seconds_per_epoch']:.2f} s per epoch", flush=True)
    write_atomically(options.out / "bench.json", (json.dumps(found, indent=2) + "\n").encode())
    write_atomically(options.out / "bench.md", table(found).encode())
    print(table(found) + f"written to {options.out}")


if __name__ == "__main__":
    main()
