"""Speed of training (`make bench`).

    python -m scripts.bench.training [--quick] [--only NAME ...] [--out outputs/bench]

Settings, each in a process of its own: the paper's Table 1 and Table 2 (sigma=50), the model that pictures get by
default, a linear model of 300 latents, a deep one on 16x16 patches, and Table 2 with its states in a file. All patches
of a noisy picture (house where it is found, else camera) are held with their states; a stated subset is visited, first
for some epochs, so that states and weights are as in training, then against the clock. Four things take turns on
the same data points: training on all cores, on one thread, on all cores beside a process that keeps one of them busy,
and a dense visit. Where `TVO_PATH` names a checkout of the authors' package, its training is the fifth
(`scripts.bench.authors`). Every ratio is the median of the rounds' quotients, with the least and the greatest; nothing
is compared with a figure from another run or machine.

Beside that stands how many operations the torch backend would dispatch in a visit (`scripts.bench.dispatches`).

"Dense" is a slow and obvious visit in plain torch on all cores: every old and new state through every layer, the
gradient through all S states by autograd. Seconds per epoch are scaled from the subset to all patches. GFLOP/s count
the multiplications a dense evaluation of every state would need, so that skipping zeros shows as a share above what a
GEMM alone could reach.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from scripts.bench.authors import authors_epoch, authors_path
from scripts.bench.dispatches import count_dispatches
from scripts.bench.visits import (
    BATCH,
    batches,
    dense_visit,
    end_epoch,
    make_training,
    phases,
    seconds_of,
    training_seconds,
)
from tvae.config.placement import n_cores
from tvae.errors import UserError
from tvae.io.atomic import write_atomically
from tvae.runs.machine import machine
from tvae.training.trainer import Fit

SETTINGS: dict[str, dict[str, Any]] = {
    "table 1": {"patch": 8, "latents": 64, "hidden": [64], "states": 200, "ea": (10, 9, 4), "noise": 25, "lr": 0.01},
    "table 2": {"patch": 12, "latents": 512, "hidden": [512], "states": 64, "ea": (5, 4, 1), "noise": 50, "lr": 0.005},
    "default": {"patch": 10, "latents": 256, "hidden": [256], "states": 64, "ea": (5, 4, 1), "noise": 25, "lr": 0.005},
    "linear": {"patch": 16, "latents": 300, "hidden": [], "states": 64, "ea": (5, 4, 1), "noise": 25, "lr": 0.005},
    "deep 16x16": {
        "patch": 16, "latents": 300, "hidden": [300, 300], "states": 64, "ea": (5, 4, 1), "noise": 25, "lr": 0.005
    },
}  # fmt: skip
SETTINGS["table 2, states in a file"] = {**SETTINGS["table 2"], "memmap": True}
SLOW_SHARE = 10  # one in so many minibatches is visited by what is slow, too
COLUMNS = {
    "seconds_per_epoch": "s per epoch",
    "authors": "authors' code takes",
    "dense": "dense takes",
    "one_thread": "one thread takes",
    "neighbour": "beside a busy process",
}


class Spread(NamedTuple):
    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    def text(self, digits: int = 1) -> str:
        return f"{self.middle:.{digits}f} ({self.low:.{digits}f}..{self.high:.{digits}f})"


def by_turns(variants: dict[str, Callable[[], float]], n_rounds: int) -> dict[str, list[float]]:
    """Values of each variant by round; a machine that is slower for a while is so for all of them."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(n_rounds):
        for name, variant in variants.items():
            found[name].append(variant())
    return found


def ratios(above: list[float], below: list[float]) -> Spread:
    """Quotients of the same round."""
    return Spread.of([a / b for a, b in zip(above, below, strict=True)])


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Within, another process takes all the time it can get of one core."""
    process = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it is at work now
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def gemm_peak() -> float:
    """GFLOP/s of a large float32 matrix product, the best of some."""
    a, b = torch.randn(2048, 1024), torch.randn(1024, 1024)
    return 2 * 2048 * 1024 * 1024 / min(seconds(lambda: a @ b) for _ in range(12)) / 1e9


def measure(setting: dict[str, Any], n_points: int, n_warm: int, n_rounds: int, with_others: bool) -> dict[str, Any]:
    """`with_others`: what training is compared with takes turns with it."""
    with tempfile.TemporaryDirectory() as folder:
        fit = make_training(setting, Path(folder))
        found = measure_training(fit, setting, n_points, n_warm, n_rounds, with_others)
    return {**found, "dispatches": count_dispatches(setting)}


def measure_training(
    fit: Fit, setting: dict[str, Any], n_points: int, n_warm: int, n_rounds: int, with_others: bool
) -> dict[str, Any]:
    indices, n_threads = batches(fit, n_points), n_cores()
    n_visited = sum(map(len, indices))
    for _ in range(n_warm):
        train(fit, indices, n_threads)
        end_epoch(fit)
    with phases(fit) as spent:
        whole = train(fit, indices, n_threads)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    turns = {"all": lambda: train(fit, indices, n_threads)}
    if with_others:
        turns |= others(fit, indices, n_threads) | authors(fit, setting, indices, n_threads, n_warm)
    times = by_turns(turns, n_rounds)
    scale, n_evaluated = len(fit.points.own) / n_visited, setting["states"] + math.prod(setting["ea"])
    per_second = n_evaluated * n_visited / Spread.of(times["all"]).middle
    shares = {name: spent_here / whole for name, spent_here in spent.items()}
    return {
        "n_points": len(fit.points.own),
        "n_visited": n_visited,
        "n_threads": n_threads,
        "seconds_per_epoch": Spread.of([scale * each for each in times["all"]]),
        "seconds_of_others": {
            name: Spread.of([scale * each for each in times[name]]) for name in turns if name != "all"
        },
        **{name: ratios(times[name], times["all"]) for name in times if name != "all"},
        "states_per_second": per_second,
        "gflops": 2e-9 * fit.model.decoder.cost * per_second,
        "gemm_peak": gemm_peak(),
        "phases": {**shares, "rest": 1 - sum(shares.values())},
        "memory_gb": memory,
    }


def train(fit: Fit, indices: list[torch.Tensor], n_threads: int) -> float:
    """Seconds of visits as training does them, on so many threads."""
    torch.set_num_threads(n_threads)
    return training_seconds(fit, indices, seed=fit.schedule.last_epoch)  # another one every time


def others(fit: Fit, indices: list[torch.Tensor], n_threads: int) -> dict[str, Callable[[], float]]:
    """Variants that take turns with training on all cores: each returns seconds for as many data points."""
    few, factor = share(indices)

    def beside_a_neighbour() -> float:
        with busy_neighbour():
            return train(fit, indices, n_threads)

    def dense() -> float:
        torch.set_num_threads(n_threads)
        seconds_of(dense_visit(fit), few[:1], 98)  # the first one has more to do
        return seconds_of(dense_visit(fit), few, 99) * factor

    return {"one_thread": lambda: train(fit, indices, 1), "neighbour": beside_a_neighbour, "dense": dense}


def authors(
    fit: Fit, setting: dict[str, Any], indices: list[torch.Tensor], n_threads: int, n_warm: int
) -> dict[str, Callable[[], float]]:
    """Training by the authors' package where there is one, after as many epochs as ours."""
    if (path := authors_path()) is None:
        return {}
    few, factor = share(indices)
    torch.set_num_threads(n_threads)
    epoch = authors_epoch(path, setting, fit.points.rows(torch.cat(few))[0], BATCH)
    for _ in range(n_warm):
        epoch()

    def timed() -> float:
        torch.set_num_threads(n_threads)
        return seconds(epoch) * factor

    return {"authors": timed}


def share(indices: list[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    """Minibatches spread over an epoch, for slow systems, and the ratio of all data points to theirs."""
    few = indices[:: max(1, min(SLOW_SHARE, len(indices) // 2))]
    return few, sum(map(len, indices)) / sum(map(len, few))


def measure_in_process(name: str, options: list[str]) -> dict[str, Any]:
    """Measure in a process of its own, so that memory is that of one setting."""
    command = [sys.executable, "-m", "scripts.bench.training", "--one", name, *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def table(found: dict[str, Any]) -> str:
    compared = {key: title for key, title in COLUMNS.items() if all(key in one for one in found["settings"].values())}
    columns = ["setting", "patches (visited)", *compared.values(), "states/s", "GFLOP/s (GEMM peak)", "memory"]
    columns += ["where the time goes", "operations of a visit in torch"]
    rows = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, one in found["settings"].items():
        cells = [
            name,
            f"{one['n_points']} ({one['n_visited']})",
            *(Spread(*one[key]).text() + ("" if key == "seconds_per_epoch" else " x") for key in compared),
            f"{one['states_per_second'] / 1e6:.2f} M",
            f"{one['gflops']:.0f} ({one['gemm_peak']:.0f})",
            f"{one['memory_gb']:.2f} GB",
            ", ".join(f"{phase} {share:.0%}" for phase, share in one["phases"].items()),
            str(one["dispatches"]),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller subset and fewer rounds")
    parser.add_argument("--only", choices=SETTINGS, nargs="+", default=list(SETTINGS), help="these settings")
    parser.add_argument("--out", default="outputs/bench", type=Path)
    parser.add_argument("--one", choices=SETTINGS, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    n_points, n_warm, n_rounds = (960, 2, 3) if options.quick else (6400, 6, 7)
    if options.one:
        print(json.dumps(measure(SETTINGS[options.one], n_points, n_warm, n_rounds, with_others=True)))
        return
    try:
        authors_path()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": machine(), "settings": {}}
    for name in options.only:
        found["settings"][name] = one = measure_in_process(name, ["--quick"] if options.quick else [])
        print(f"{name}: {Spread(*one['seconds_per_epoch']).text(2)} s per epoch", flush=True)
    write_atomically(options.out / "bench.json", (json.dumps(found, indent=2) + "\n").encode())
    write_atomically(options.out / "bench.md", table(found).encode())
    print(table(found) + f"written to {options.out}")


if __name__ == "__main__":
    main()
