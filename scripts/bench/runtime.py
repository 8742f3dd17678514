"""Growth of the time of an epoch with N, D, H and S (`make runtime`).

    python -m scripts.bench.runtime [--quick] [--out outputs/runtime]

Patches of a noisy picture, a decoder of one hidden layer. One of N (data points), D (values of each), H (latents, and
as many hidden units) and S (states of each data point) is varied at a time; after two epochs, so that states are as in
training, three epochs are timed, and that three times. The same for the paper's setting (its Table 2 at sigma=50) with
the two sizes of sets whose times it names. Written: the medians with their spread, the exponent of a power law through
them, what the paper says, and a figure.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scripts.bench.training import SETTINGS, measure
from tvae.io.atomic import write_atomically
from tvae.runs.callbacks.figures import save_figure
from tvae.runs.machine import machine

BASE: dict[str, Any] = {**SETTINGS["table 1"], "states": 64, "ea": (5, 4, 1)}
SWEEPS: dict[str, tuple[str, str, list[int]]] = {  # what is varied, its name in a setting, the values
    "S": ("states of a data point", "states", [64, 128, 256, 512, 1024]),
    "H": ("latents", "latents", [64, 128, 256, 512]),
    "N": ("data points", "points", [4000, 8000, 16000, 32000]),
    "D": ("values of a data point", "patch", [6, 8, 12, 16]),
}
N_ROUNDS = 3
SAID = {"S": "less than linear", "H": "linear", "N": "linear", "D": "linear"}  # by the paper, Appendix B
CITED = {64: 49, 128: 75}  # states: seconds an epoch on an NVIDIA Titan Xp, as published


def sweep(name: str, n_points: int) -> dict[str, Any]:
    """Seconds per epoch for each value, and the exponent of a power law through them.

    The values take turns, so that a machine that is slower for a while is so for all of them.
    """
    _, option, values = SWEEPS[name]
    settings = [{"points": n_points, **BASE, option: value} for value in values]
    if option == "latents":
        settings = [{**setting, "hidden": [setting["latents"]]} for setting in settings]
    return in_turns(settings, [value**2 for value in values] if name == "D" else values, 10**9)


def at_papers_setting(n_visited: int) -> dict[str, Any]:
    """With the sizes of sets whose times the paper names: so many data points are visited, and scaled to all."""
    return in_turns([{**SETTINGS["table 2"], "states": states} for states in CITED], list(CITED), n_visited)


def in_turns(settings: list[dict[str, Any]], values: list[int], n_visited: int) -> dict[str, Any]:
    timings: list[list[float]] = [[] for _ in settings]
    for _ in range(N_ROUNDS):
        for setting, times in zip(settings, timings, strict=True):
            times.append(measure(setting, n_visited, 2, 3, with_others=False)["seconds_per_epoch"].middle)
    seconds = [median(times) for times in timings]
    return {
        "values": values,
        "seconds": seconds,
        "spread": [[min(times), max(times)] for times in timings],
        "exponent": float(np.polyfit(np.log(values), np.log(seconds), 1)[0]),
    }


def draw(found: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    for axes, (name, line) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        first, seconds = line["seconds"][0], np.array(line["seconds"])
        spread = np.abs(np.array(line["spread"]).T - seconds)
        axes.errorbar(line["values"], seconds, spread, fmt="o-", capsize=3, label="measured, min to max")
        axes.plot(line["values"], [first * v / line["values"][0] for v in line["values"]], "k:", label="linear")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(line["values"], line["values"])
        axes.minorticks_off()
        axes.set_xlabel(f"{name}: {SWEEPS[name][0]}")
        axes.set_title(f"exponent {line['exponent']:.2f}")
        axes.legend(fontsize="small")
    figure.supylabel("seconds per epoch")
    return figure


def table(found: dict[str, Any]) -> str:
    lines = ["| varied | seconds per epoch (min..max) | exponent | the paper says |", "|---|---|---|---|"]
    for name, line in found.items():
        cells = ", ".join(f"{value}: {time}" for value, time in _times(line))
        lines.append(f"| {name}, {SWEEPS[name][0]} | {cells} | {line['exponent']:.2f} | {SAID[name]} |")
    return "\n".join(lines) + "\n"


def papers_table(found: dict[str, Any]) -> str:
    growth = [found["seconds"][1] / found["seconds"][0], CITED[128] / CITED[64]]
    lines = [
        "| Table 2's setting, sigma=50 | measured here: seconds per epoch (min..max) | cited: on an NVIDIA Titan Xp |",
        "|---|---|---|",
        *(f"| {value} states | {time} | *{CITED[value]} s* |" for value, time in _times(found)),
        f"| twice the states | {growth[0]:.2f} times the time | *{growth[1]:.2f} times* |",
    ]
    return "\n".join(lines) + "\n"


def _times(line: dict[str, Any]) -> list[tuple[int, str]]:
    rows = zip(line["values"], line["seconds"], line["spread"], strict=True)
    return [(value, f"{s:.2f} ({low:.2f}..{high:.2f})") for value, s, (low, high) in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer data points")
    parser.add_argument("--out", default="outputs/runtime", type=Path)
    options = parser.parse_args()
    n_points = 1000 if options.quick else 8000
    options.out.mkdir(parents=True, exist_ok=True)
    papers = at_papers_setting(n_points)
    print(papers_table(papers), flush=True)
    found = {}
    for name in SWEEPS:
        found[name] = sweep(name, n_points)
        print(f"{name}: exponent {found[name]['exponent']:.2f}", flush=True)
    content = {"machine": machine(), "n_points": n_points, "paper": papers, "sweeps": found}
    write_atomically(options.out / "runtime.json", (json.dumps(content, indent=2) + "\n").encode())
    write_atomically(options.out / "runtime.md", f"{papers_table(papers)}\n{table(found)}".encode())
    save_figure(options.out / "runtime.png", draw(found))
    print(table(found) + f"written to {options.out}")


if __name__ == "__main__":
    main()
