"""How fast training is: `make bench`, or `python scripts/bench.py [--quick] [--out outputs/bench]`.

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
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tvae import fit as fit_module
from tvae.atomic import write_atomically
from tvae.config import Config, EaConfig, ImageConfig, LrConfig, ModelConfig, StatesConfig, UserError
from tvae.datasets import Dataset, images
from tvae.device import machine
from tvae.evolution import draw_flips, flip, select_parents
from tvae.fit import Fit
from tvae.states import codes, keep_best, pack, unpack
from tvae.streams import Stream

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
BATCH = 32


def make_training(setting: dict[str, Any], folder: Path) -> Fit:
    n_parents, n_children, n_generations = setting["ea"]
    config = Config(
        dataset=ImageConfig(name="house", standardise=True, patch_size=setting["patch"], train_stride=1),
        model=ModelConfig(n_latents=setting["latents"], hidden=setting["hidden"], sigma2=None),
        states=StatesConfig(n_states=setting["states"], memmap=setting.get("memmap", False)),
        ea=EaConfig(n_parents=n_parents, n_children=n_children, n_generations=n_generations),
        lr=LrConfig(kind="cyclic", max=setting["lr"]),
        noise=setting["noise"],
        epochs=1,
        batch_size=BATCH,
    )
    try:
        dataset = images.make(config)
    except UserError:
        config.dataset.name = "camera"
        dataset = images.make(config)
    if "points" in setting:
        dataset = Dataset(dataset.data[: setting["points"]], dataset.shape)
    return Fit(config, dataset, torch.device("cpu"), folder)


def batches(fit: Fit, n_points: int) -> list[torch.Tensor]:
    order = torch.randperm(len(fit.points.own), generator=torch.Generator().manual_seed(0))[:n_points]
    return list(order.split(BATCH))


def visit_all(visit: Callable[[torch.Tensor, int], None], indices: list[torch.Tensor], seed: int) -> float:
    started = time.perf_counter()
    for index in indices:
        visit(index, seed)
    return time.perf_counter() - started


@contextmanager
def phases(fit: Fit) -> Any:
    """Within, the time spent in the parts of a visit is added up."""
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                spent[name] += time.perf_counter() - started

        return wrapper

    originals = {name: getattr(fit_module, name) for name in ("e_step", "weighty_states", "set_gradient")}
    fit_module.e_step = timed("E-step", originals["e_step"])
    fit_module.weighty_states = timed("weights", originals["weighty_states"])
    fit_module.set_gradient = timed("gradient", originals["set_gradient"])
    add, step = fit.totals.add, fit.optimiser.step
    fit.totals.add = timed("sums", add)  # type: ignore[method-assign]
    fit.optimiser.step = timed("Adam", step)  # type: ignore[method-assign]
    try:
        yield spent
    finally:
        for name, function in originals.items():
            setattr(fit_module, name, function)
        fit.totals.add, fit.optimiser.step = add, step  # type: ignore[method-assign]


def dense_visit(fit: Fit) -> Callable[[torch.Tensor, int], None]:
    """The same visit, slow and obvious."""
    model, ea = fit.model, fit.config.ea

    def visit(index: torch.Tensor, seed: int) -> None:
        x, rng = fit.points.data[index], Stream(seed, index)
        z = unpack(fit.points.states[index], model.n_latents)
        n_states = z.shape[1]
        with torch.no_grad():
            pools, values = [z], [model.log_joint(x, z)]
            for _ in range(ea.n_generations):
                place = select_parents(values[-1], ea.n_parents, ea.selection, rng)
                parents = pools[-1].gather(1, place[..., None].expand(-1, -1, z.shape[2]))
                flips = draw_flips(z.shape[2], ea.n_parents, ea.n_children, ea.n_flips, rng)
                pools.append(flip(parents.repeat_interleave(ea.n_children, 1), flips.flatten(1, 2)))
                values.append(model.log_joint(x, pools[-1]))
            every, value = torch.cat(pools, 1), torch.cat(values, 1)
            kept = keep_best(value, codes(pack(every), z.shape[2]), n_states)
            z = every.gather(1, kept[..., None].expand(-1, -1, z.shape[2]))
            weights = value.gather(1, kept).softmax(1)
            fit.points.states[index] = pack(z)
        fit.optimiser.zero_grad()
        error = (model.decoder(z) - x[:, None]).square().sum(-1)
        ((weights * error).sum() / (2 * model.sigma2 * len(x))).backward()
        fit.optimiser.step()

    return visit


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
    indices = batches(fit, n_points)
    n_visited = sum(map(len, indices))
    for seed in range(n_warm):
        visit_all(fit.visit, indices, seed)
        fit_module.update_prior_and_noise(fit.model, fit.totals)
        fit.totals = fit._new_totals()
    times = [visit_all(fit.visit, indices, n_warm + seed) for seed in range(n_repeats)]
    with phases(fit) as spent:
        whole = visit_all(fit.visit, indices, n_warm + n_repeats)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sizes = fit.model.decoder.sizes
    n_evaluated = setting["states"] + math.prod(setting["ea"])
    scale = len(fit.points.own) / n_visited
    median = float(np.median(times))
    flops = 2 * n_evaluated * n_visited * sum(a * b for a, b in pairwise(sizes))
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
        visit_all(dense_visit(fit), few[:1], 98)  # the first one has more to do
        dense = visit_all(dense_visit(fit), few, 99) * len(fit.points.own) / sum(map(len, few))
        found["seconds_per_epoch_dense"] = dense
    return found


def measure_in_process(name: str, options: list[str]) -> dict[str, Any]:
    """In a process of its own, so that memory is that of one setting."""
    command = [sys.executable, __file__, "--one", name, *options]
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
