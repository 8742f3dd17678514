"""The paper's scalability experiment (section 4): judge the runs of `make natural` and draw its figures.

    python -m scripts.paper.natural [outputs/natural/quick]

From the folders linear_SEED, deep_SEED and continued_SEED: the ELBO over epochs of a linear decoder, and of a deep and
a linear one that both continue from its end, and what the deep one gains. From the folders h_NUMBER_SEED, runs that
differ in the number of latents: seconds per epoch and ELBO against it, with the exponent of the growth in time. What
has no finished run is left out. All figures are also in `natural.json`.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tvae.config.checks import read_config
from tvae.config.schema import Config
from tvae.io.atomic import write_atomically
from tvae.runs.callbacks.figures import save_figure
from tvae.runs.files import CONFIG, FINGERPRINT, HISTORY, METRICS
from tvae.runs.run_directory import read_metrics

COLUMNS = {"elbo": "training patches", "elbo_test": "held-out patches"}


def known_columns(runs: Iterable[Run]) -> dict[str, str]:
    """Metrics that all runs have: there may be no held-out patches."""
    return {name: title for name, title in COLUMNS.items() if all(run.history[-1][name] is not None for run in runs)}


@dataclass
class Run:
    name: str
    config: Config
    metrics: dict[str, Any]
    history: list[dict[str, Any]]  # a row for each epoch
    data: str  # a hash of what it was trained on
    begun: float  # when, in seconds
    ended: float

    def column(self, name: str) -> list[float]:
        return [row[name] for row in self.history]


def load_run(directory: Path) -> Run | None:
    """A finished run, or None."""
    metrics = read_metrics(directory)
    if metrics is None or metrics.get("status") != "finished":
        return None
    with open(directory / HISTORY) as file:
        history = [
            {name: float(value) if value else None for name, value in row.items()} for row in csv.DictReader(file)
        ]
    return Run(
        directory.name,
        read_config(directory / CONFIG),
        metrics,
        history,
        (directory / FINGERPRINT).read_text(),
        (directory / FINGERPRINT).stat().st_mtime,
        (directory / METRICS).stat().st_mtime,
    )


def spread(values: list[float]) -> dict[str, Any]:
    return {"mean": mean(values), "std": stdev(values) if len(values) > 1 else None, "values": values}


def as_words(found: dict[str, Any]) -> str:
    """A `spread` as text."""
    return f"{found['mean']:.2f}" + ("" if found["std"] is None else f" ± {found['std']:.2f}")


def load_sweep(folder: Path) -> list[Run]:
    """Runs by number of latents, from the folders h_NUMBER_SEED."""
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


def load_triples(folder: Path) -> list[tuple[Run, Run, Run]]:
    """(linear, deep, continued) of each seed that has all three, with equal data and equally many epochs after it."""
    triples: list[tuple[Run, Run, Run]] = []
    for path in sorted(folder.glob("linear_*")):
        seed = path.name.removeprefix("linear_")
        linear, deep, continued = (load_run(folder / f"{kind}_{seed}") for kind in ("linear", "deep", "continued"))
        if linear is None or deep is None or continued is None:
            continue
        if len(deep.history) != len(continued.history):
            sys.exit(f"{deep.name} and {continued.name} differ in epochs, so their ELBOs cannot be compared")
        if len({linear.data, deep.data, continued.data}) > 1:
            sys.exit(f"{linear.name}, {deep.name} and {continued.name} were trained on different data")
        for run in (deep, continued):
            if Path(run.config.init_from or "").name != linear.name or run.begun < linear.ended:
                sys.exit(
                    f"{run.name} did not start from {linear.name} as it is now; remove it and `make natural` again"
                )
        triples.append((linear, deep, continued))
    return triples


def judge(triples: list[tuple[Run, Run, Run]]) -> dict[str, Any]:
    """Final ELBOs and gains in nats per patch, over seeds."""
    linear, deep, _ = triples[0]
    found: dict[str, Any] = {
        "n_patches": linear.config.n_patches,
        "epochs": [len(linear.history), len(deep.history)],
        "seconds": spread([sum(run.metrics["seconds"] for run in triple) for triple in triples]),
    }
    for name in known_columns(run for triple in triples for run in triple):
        finals = {kind: [triple[i].history[-1][name] for triple in triples] for i, kind in ((1, "deep"), (2, "linear"))}
        gains = [a - b for a, b in zip(finals["deep"], finals["linear"], strict=True)]
        found[name] = {"deep": spread(finals["deep"]), "linear": spread(finals["linear"]), "gain": spread(gains)}
    return found


def draw_gain(triples: list[tuple[Run, Run, Run]], found: dict[str, Any]) -> Figure:
    """The paper's figure: a common start, then apart."""
    columns = {name: title for name, title in COLUMNS.items() if name in found}
    figure = Figure(figsize=(5.5 * len(columns), 4.5), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns.items(), strict=True):
        highest, lowest = [], []
        for linear, deep, continued in triples:
            start = len(linear.history)
            first = linear is triples[0][0]
            for run, offset, colour, label in (
                (linear, 0, "0.4", "linear, common start"),
                (continued, start, "C0", "linear, continued"),
                (deep, start, "C1", "deep, from the same point"),
            ):
                epochs = [row["epoch"] + offset for row in run.history]
                values = run.column(name)
                axes.plot(epochs, values, color=colour, label=label if first else None, linewidth=1.2)
                highest.append(max(values))
                lowest.append(values[len(values) // 4])
            axes.axvline(start, color="0.8", linewidth=0.8, zorder=0)
        margin = 0.1 * (max(highest) - min(lowest))
        axes.set_ylim(min(lowest) - margin, max(highest) + margin)
        gain = found[name]["gain"]
        of_seeds = "" if gain["std"] is None else f" ± {gain['std']:.2f}"
        axes.set_title(f"{title}: gain {gain['mean']:.2f}{of_seeds} nats")
        axes.set_xlabel("epoch")
        axes.set_ylabel("ELBO in nats per patch")
        axes.legend(loc="lower right")
    return figure


def main(folder: str = "outputs/natural/quick") -> None:
    out = Path(folder)
    triples, sweep = load_triples(out), load_sweep(out)
    summary = {}
    if triples:
        summary["gain"] = found = judge(triples)
        save_figure(out / "natural_elbo.png", draw_gain(triples, found))
        for name in known_columns(run for triple in triples for run in triple):
            gain, linear, title = found[name]["gain"], found[name]["linear"], COLUMNS[name]
            print(
                f"{title}: deep is above linear by {as_words(gain)}; linear ends at {as_words(linear)} nats per patch"
            )
        print(f"fields, pi and activity: {out}/deep_*/figures and {out}/continued_*/figures")
    if sweep:
        summary["sweep"] = found = judge_sweep(sweep)
        save_figure(out / "natural_h.png", draw_sweep(found))
        for row in found["rows"]:
            told = ", ".join(f"{title} {as_words(row[name])}" for name, title in COLUMNS.items() if name in row)
            print(f"H={row['n_latents']}: {as_words(row['seconds_per_epoch'])} s an epoch; ELBO on {told}")
    if not summary:
        sys.exit(f"{out}: no finished runs on natural images there; `make natural` makes them")
    write_atomically(out / "natural.json", (json.dumps(summary, indent=2) + "\n").encode())
    write_atomically(out / "natural.md", as_markdown(summary).encode())
    print(f"figures: {out}")


def as_markdown(summary: dict[str, Any]) -> str:
    lines = []
    if "gain" in summary:
        found = summary["gain"]
        lines.append(["nats per patch", "linear, continued", "deep", "gain", "seeds", "epochs", "minutes a seed"])
        lines.append(["---"] * len(lines[0]))
        epochs = " + ".join(map(str, found["epochs"]))
        minutes = f"{found['seconds']['mean'] / 60:.1f}"
        for name in (name for name in COLUMNS if name in found):
            words = [as_words(found[name][kind]) for kind in ("linear", "deep", "gain")]
            lines.append([COLUMNS[name], *words, str(len(found["seconds"]["values"])), epochs, minutes])
        lines.append([])
    if "sweep" in summary:
        lines += sweep_lines(summary["sweep"])
    return "".join(f"| {' | '.join(line)} |\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
