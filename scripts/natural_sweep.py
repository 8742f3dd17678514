"""Runs on natural image patches that differ in the number of latents: time and ELBO against it, over seeds."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from scripts.natural_runs import COLUMNS, Run, as_words, known_columns, load_run, spread


def load_sweep(folder: Path) -> list[Run]:
    """From the folders h_NUMBER_SEED."""
    runs = [run for path in sorted(folder.glob("h_*")) if (run := load_run(path)) is not None]
    return sorted(runs, key=_n_latents)


def _n_latents(run: Run) -> int:
    return run.config.model.n_latents or 0


def judge_sweep(runs: list[Run]) -> dict[str, Any]:
    """Time (median over epochs but the first) and ELBO for each H, and the slope of log time over log H."""
    names, rows = known_columns(runs), []
    for n_latents, group in groupby(runs, key=_n_latents):
        of_seeds = list(group)
        seconds = [median(run.column("seconds")[1:] or run.column("seconds")) for run in of_seeds]
        finals = {name: spread([run.history[-1][name] for run in of_seeds]) for name in names}
        rows.append({"n_latents": n_latents, "seconds_per_epoch": spread(seconds), **finals})
    first = runs[0]
    return {
        "rows": rows,
        "exponent": _exponent(rows) if len(rows) > 1 else None,
        "n_patches": first.config.n_patches,
        "epochs": len(first.history),
    }


def _exponent(rows: list[dict[str, Any]]) -> float:
    seconds = [row["seconds_per_epoch"]["mean"] for row in rows]
    return float(np.polyfit(np.log([row["n_latents"] for row in rows]), np.log(seconds), 1)[0])


def draw_sweep(found: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = found["rows"]
    n_latents = np.array([row["n_latents"] for row in rows])
    _plot(left, rows, "seconds_per_epoch", "measured")
    seconds = [row["seconds_per_epoch"]["mean"] for row in rows]
    left.plot(n_latents, seconds[0] * n_latents / n_latents[0], "k:", label="linear in H")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_yticks(seconds, [f"{value:.1f}" for value in seconds])
    exponent = "" if found["exponent"] is None else f": grows as H to the power of {found['exponent']:.2f}"
    left.set_title(f"seconds per epoch{exponent}")
    for name, title in COLUMNS.items():
        if name in rows[0]:
            _plot(right, rows, name, title)
    right.set_title(f"ELBO after {found['epochs']} epochs, in nats per patch")
    for axes in (left, right):
        axes.set_xlabel("latents, H")
        axes.set_xticks(n_latents, [str(h) for h in n_latents])
        axes.minorticks_off()
        axes.legend()
    return figure


def _plot(axes: Any, rows: list[dict[str, Any]], name: str, label: str) -> None:
    """The mean over seeds, with its standard deviation where there are several."""
    values = [row[name] for row in rows]
    axes.errorbar(
        [row["n_latents"] for row in rows], [value["mean"] for value in values],
        [value["std"] or 0 for value in values], fmt="o-", capsize=3, label=label,
    )  # fmt: skip


def sweep_lines(found: dict[str, Any]) -> list[list[str]]:
    """The table, a list for each row."""
    names = [name for name in COLUMNS if name in found["rows"][0]]
    head = ["latents", "seconds per epoch", *(f"ELBO, {COLUMNS[name]}" for name in names), "seeds"]
    lines = [head, ["---"] * len(head)]
    for row in found["rows"]:
        cells = [as_words(row[name]) for name in ("seconds_per_epoch", *names)]
        lines.append([str(row["n_latents"]), *cells, str(len(row["elbo"]["values"]))])
    return lines
