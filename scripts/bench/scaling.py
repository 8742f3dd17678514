"""Two processes against one, and what that says of many: `make scaling`, or `python -m scripts.bench.scaling`.

Measured: seconds per epoch of one process and of two, one thread each, by turns, for two decoders and three global
minibatches; and of one process the part of a step that does not depend on the size of the minibatch. Calculated from
that, with the assumptions below: time per epoch and traffic of 1, 10 and 100 nodes for 10^7 and 10^8 patches.

A step of B data points on K ranks takes

    T = c B' / p + f + a + 2 (K - 1) / K G / w + 2 (K - 1) l

c: seconds of a core for a data point; p: cores of a rank times how well they are used; f: the fixed part (Adam,
Python); a: what two processes need more for a small minibatch than that explains, mostly to be woken (nothing for
K=1); G: bytes of the gradient, w: bytes a second and l: seconds of delay of the network (a ring); B': data points of
the rank that has most of a minibatch, which is drawn from all data: B/K + sqrt(2 B/K log K). c, f and a are measured,
with the larger decoder, whose gradient is also G; p, w and l are assumed.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.fuzz import chaos
from tvae.data.named import camera
from tvae.data.patches import extract
from tvae.data.picture import add_noise
from tvae.io.atomic import write_atomically
from tvae.runs.machine import machine

DECODERS = {"64-64-64": (64, 8), "512-512-144": (512, 12)}  # latents, as many hidden units, and the side of a patch
BATCHES = {32: 2000, 1024: 8192, 4096: 8192}  # size of a minibatch: number of patches, from noisy `camera`
N_EPOCHS = 4  # the first of them does not count
CORES, USED = 16, 0.7  # assumed: of a node, which is a rank; and how well more than one of them are used
BYTES_PER_SECOND, DELAY = 1.25e9, 50e-6  # assumed: 10 Gbit/s Ethernet
PATCHES = (10**7, 10**8)
NODES = (1, 10, 100)
SIZES, BATCH_PER_NODE = (512, 512, 144), 1024  # of the larger decoder; data points of a node in a minibatch


def seconds_per_epoch(options: list[str], n_ranks: int, folder: Path, name: str) -> list[float]:
    """Seconds of all epochs but the first."""
    where = folder / name
    log = folder / f"{name}.log"
    codes = chaos.wait(chaos.start("train", [*options, "threads=1", f"hydra.run.dir={where}"], log, n_ranks), 3600)
    if any(codes):
        raise SystemExit(f"{name} ended with {codes}:\n{log.read_text()}")
    with open(where / "history.csv") as file:
        return [float(row["seconds"]) for row in csv.DictReader(file)][1:]


def measure(n_repeats: int, folder: Path) -> list[dict[str, Any]]:
    found = []
    noisy = torch.from_numpy(add_noise(camera().pixels, 25.0, 0))
    for decoder, (n_latents, side) in DECODERS.items():
        patches = extract(noisy, side, 1).float().numpy()
        for batch, n_wanted in BATCHES.items():
            chosen = np.random.default_rng(0).permutation(len(patches))[:n_wanted]
            np.save(folder / "patches.npy", patches[chosen])
            options = ["dataset=array", f"dataset.file={folder / 'patches.npy'}", f"model.n_latents={n_latents}",
                       f"batch_size={batch}", f"epochs={N_EPOCHS}"]  # fmt: skip
            times: dict[int, list[float]] = {1: [], 2: []}
            for i in range(n_repeats):
                for n_ranks, seconds in times.items():
                    name = f"{decoder}_{batch}_{n_ranks}_{i}"
                    seconds.append(statistics.median(seconds_per_epoch(options, n_ranks, folder, name)))
            ratios = [one / two for one, two in zip(times[1], times[2], strict=True)]
            found.append({
                "decoder": decoder, "batch": batch, "n_points": len(chosen), "one": times[1], "two": times[2],
                "ratios": ratios,
            })  # fmt: skip
            shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{decoder}, minibatches of {batch}: {shown} times as fast", flush=True)
    return found


def table(found: list[dict[str, Any]]) -> str:
    lines = [
        "| decoder | minibatch | patches | one process, s per epoch | two processes | ratio, median (min..max) |",
        "|---|---|---|---|---|---|",
    ]
    for row in found:
        one, two, ratio = (statistics.median(row[name]) for name in ("one", "two", "ratios"))
        spread = f"{min(row['ratios']):.2f}..{max(row['ratios']):.2f}"
        what = f"| {row['decoder']} | {row['batch']} | {row['n_points']} "
        lines.append(f"{what}| {one:.2f} | {two:.2f} | {ratio:.2f} ({spread}) |")
    return "\n".join(lines) + "\n"


def costs(found: list[dict[str, Any]]) -> tuple[float, float, float]:
    """(c, f, a) of the larger decoder, by its smallest and its largest minibatch."""
    rows = [row for row in found if row["decoder"] == list(DECODERS)[-1]]

    def step(row: dict[str, Any], which: str) -> float:
        return statistics.median(row[which]) * row["batch"] / row["n_points"]

    small, large = rows[0], rows[-1]
    per_point = (step(large, "one") - step(small, "one")) / (large["batch"] - small["batch"])
    fixed = max(0.0, step(small, "one") - per_point * small["batch"])
    # By the small minibatch alone: a data point may take less in it than in a large one, which leaves the caches.
    share = most_of(small["batch"] / 2, 2) / small["batch"]
    waiting = step(small, "two") - share * (step(small, "one") - fixed) - fixed
    return per_point, fixed, max(0.0, waiting)


def most_of(share: float, nodes: int) -> float:
    """Data points of the node that has most, of a minibatch with so many for each."""
    return share + math.sqrt(2 * share * math.log(nodes))


def calculate(per_point: float, fixed: float, waiting: float) -> list[dict[str, float]]:
    n_bytes = 4 * sum(a * b + b for a, b in pairwise(SIZES))
    rows = []
    for n_patches in PATCHES:
        for nodes in NODES:
            traffic = 2 * (nodes - 1) / nodes * n_bytes
            network = traffic / BYTES_PER_SECOND + 2 * (nodes - 1) * DELAY + (waiting if nodes > 1 else 0)
            step = per_point * most_of(BATCH_PER_NODE, nodes) / (CORES * USED) + fixed + network
            n_steps = n_patches / (BATCH_PER_NODE * nodes)
            rows.append({
                "patches": n_patches, "nodes": nodes, "ms_per_step": 1000 * step, "network_share": network / step,
                "hours_per_epoch": n_steps * step / 3600, "gb_per_epoch_and_node": traffic * n_steps / 1e9,
            })  # fmt: skip
    return rows


def calculated_table(rows: list[dict[str, float]]) -> str:
    lines = [
        "| patches | nodes | step | of it to meet and exchange | epoch | traffic of a node in an epoch |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| 10^{math.log10(row['patches']):.0f} | {row['nodes']} | {row['ms_per_step']:.0f} ms "
            f"| {row['network_share']:.0%} | {60 * row['hours_per_epoch']:.1f} min "
            f"| {row['gb_per_epoch_and_node']:.1f} GB |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("outputs/scaling"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.repeats, Path(folder))
    per_point, fixed, waiting = costs(found)
    rows = calculate(per_point, fixed, waiting)
    content = {"machine": machine(), "measured": found, "calculated": rows, "seconds_of_a_core_per_point": per_point,
               "fixed_seconds_per_step": fixed, "waiting_seconds_per_step": waiting}  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    text = f"{table(found)}\n{1e3 * per_point:.3f} ms of a core for a data point, {1e3 * fixed:.2f} ms for a step, "
    text += f"{1e3 * waiting:.2f} ms for two processes to meet\n\n"
    text += calculated_table(rows)
    write_atomically(options.out / "scaling.json", (json.dumps(content, indent=2) + "\n").encode())
    write_atomically(options.out / "scaling.md", text.encode())
    print(text + f"written to {options.out}")


if __name__ == "__main__":
    main()
