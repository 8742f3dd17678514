"""The rows of the paper's tables: from our finished runs, here or recorded, from scripts/peers.py, and as published."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from scripts.recorded import VARIANTS, recorded_runs
from tvae.config.checks import read_config
from tvae.errors import UserError
from tvae.runs.files import CONFIG, METRICS
from tvae.runs.run_directory import read_metrics

PUBLISHED = Path(__file__).with_name("published.yaml")
BUDGETS = ("quick", "paper", "linear")
NAMES = {
    "quick": "tvae, default recipe",
    "paper": "tvae, the paper's parameters",
    "linear": "var-BSC (our linear decoder)",
}
NAMES_IN = {("table1", "quick"): "tvae, quick"}  # with the table's patches and latents, not those of the recipe
REPRODUCES = {"linear": "var-BSC", "BM3D": "BM3D", "dictionary (as KSVD)": "KSVD"}  # cited rows; ours: TVAE
TVAE = "TVAE (paper)"


@dataclass
class Row:
    name: str
    origin: str  # measured, recorded or cited
    needs: str  # what it is given beside the image
    cells: list[list[float]]  # PSNR of every run, for each column
    minutes: list[list[float]] = field(default_factory=list)
    note: str = ""  # epochs, or the source
    reproduces: str | None = None  # the cited row that it does anew
    spread: list[float] | None = None  # of a cited row, where it is published

    def shown(self, column: int) -> str:
        values = self.cells[column]
        if not values:
            return ""
        if self.origin == "cited":
            return f"{values[0]:.2f}" + (f" ± {self.spread[column]:.2f}" if self.spread else "")
        if len(values) == 1:
            return f"{values[0]:.2f} (1)"
        return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f} ({len(values)})"

    def mean(self, column: int) -> float | None:
        return statistics.mean(self.cells[column]) if self.cells[column] else None


def cited_rows(table: dict[str, Any]) -> list[Row]:
    return [
        Row(
            row["name"], "cited", row["needs"], [[] if v is None else [v] for v in row["values"]], note=row["source"],
            spread=row.get("spread"),
        )
        for row in table["rows"]
    ]  # fmt: skip


@dataclass
class Run:
    column: str  # which cells it belongs to
    n_threads: int | None  # None: all cores
    metrics: dict[str, Any]


def read_run(directory: Path) -> Run | None:
    """A finished run with a known clean image; nothing if it is none, and a line if it is damaged."""
    metrics = read_metrics(directory)
    try:
        config = read_config(directory / CONFIG)
    except UserError as error:
        print(f"left out: {error}", file=sys.stderr)
        return None
    if metrics is None:
        print(f"left out: {directory / METRICS}: cannot be read", file=sys.stderr)
        return None
    if metrics.get("status") != "finished" or metrics.get("psnr") is None:
        return None
    if config.missing is not None:
        column = f"dataset={config.dataset.name},missing={config.missing:g}"
        by_channel = f",missing_per={config.missing_per}" if config.missing_per == "channel" else ""
        return Run(column + by_channel, config.threads, metrics)
    if config.dataset.name != "house":
        print(f"left out: {directory}: of {config.dataset.name}, not of house", file=sys.stderr)
        return None
    return Run(f"noise={config.noise or 0:g}", config.threads, metrics)


def runs_of(name: str, budget: str, outputs: Path) -> list[Run]:
    """The runs of a row."""
    table = "table2" if name == "table-n2v" else name

    def below(folder: str) -> list[Run]:
        found = (read_run(path.parent) for path in sorted((outputs / folder / budget).glob(f"*/{METRICS}")))
        return [run for run in found if run is not None]

    first = below("table1") if (table, budget) == ("table2", "paper") else []
    return below(table) + [run for run in first if table_of(run.column, name) == "table1"]


def table_of(column: str, name: str) -> str:
    """Whose runs fill this column of a table: for sigma 15 and 25 the paper's Table 2 repeats its Table 1."""
    if name in ("table2", "table-n2v"):
        return "table2" if column == "noise=50" else "table1"
    return name


def minutes_of(metrics: dict[str, Any]) -> float:
    """Of the whole run, restoration included; of training alone where no more is known."""
    return float(metrics.get("seconds_total") or metrics["seconds"]) / 60


def own_row(name: str, budget: str, columns: list[str], outputs: Path) -> Row | None:
    runs = [run for run in runs_of(name, budget, outputs) if run.column in columns]
    if not runs:
        return None
    title = NAMES_IN.get((name, budget), NAMES[budget])
    reproduces = REPRODUCES.get(budget, TVAE)
    row = Row(title, "measured", "nothing", [[] for _ in columns], [[] for _ in columns], reproduces=reproduces)
    for run in runs:
        row.cells[columns.index(run.column)].append(run.metrics["psnr"])
        row.minutes[columns.index(run.column)].append(minutes_of(run.metrics))
    epochs = {run.metrics["epochs"] for run in runs}
    threads = sorted({"all cores" if run.n_threads is None else f"{run.n_threads} thread(s)" for run in runs})
    between = f"{min(epochs)} to {max(epochs)}" if len(epochs) > 1 else f"{max(epochs)}"
    row.note = f"{between} epochs, {' or '.join(threads)} a run"
    if budget == "paper" and any("castle" in run.column for run in runs):
        row.note += "; castle with those of the published program"
    return row


def recorded_rows(name: str, columns: list[str]) -> list[Row]:
    """Runs with the paper's parameters in docs/paper, a row for each variant."""
    rows: dict[str, Row] = {}
    facts: dict[str, set[str]] = {}
    for run in recorded_runs():
        if run.column not in columns or run.table != table_of(run.column, name):
            continue
        title = NAMES["paper"] + (f", {VARIANTS[run.variant].title}" if run.variant else "")
        empty: tuple[list[list[float]], list[list[float]]] = ([[] for _ in columns], [[] for _ in columns])
        row = rows.setdefault(title, Row(title, "recorded", "nothing", *empty, reproduces=TVAE))
        row.cells[columns.index(run.column)].append(run.metrics["psnr"])
        row.minutes[columns.index(run.column)].append(minutes_of(run.metrics))
        facts.setdefault(title, set()).add(f"{run.metrics['epochs']} epochs at revision {run.revision}")
        row.note = "; ".join(sorted(facts[title]))
    return list(rows.values())


def peer_rows(folder: Path, columns: list[str]) -> list[Row]:
    """What scripts/peers.py found on the same arrays: a file for each, named as the runs are."""
    rows: dict[str, Row] = {}
    for path in sorted(folder.glob("*.json")):
        column = path.stem.rpartition(",seed=")[0]
        if column not in columns:
            continue
        try:
            peers = json.loads(path.read_text())
        except ValueError:
            print(f"left out: {path}: cannot be read", file=sys.stderr)
            continue
        for name, found in peers.items():
            empty: tuple[list[list[float]], list[list[float]]] = ([[] for _ in columns], [[] for _ in columns])
            new = Row(name, "measured", found["needs"], *empty, found["how"], REPRODUCES.get(name))
            row = rows.setdefault(name, new)
            row.cells[columns.index(column)].append(found["psnr"])
            row.minutes[columns.index(column)].append(found["seconds"] / 60)
    return sorted(rows.values(), key=lambda row: -(row.mean(0) or row.mean(len(columns) - 1) or 0))


def published() -> dict[str, Any]:
    content = OmegaConf.to_container(OmegaConf.load(PUBLISHED))
    assert isinstance(content, dict)
    return {str(name): table for name, table in content.items()}


def collect(name: str, outputs: Path) -> tuple[dict[str, Any], list[Row]]:
    table = published()[name]
    columns = table["columns"]
    own = [own_row(name, budget, columns, outputs) for budget in BUDGETS]
    peers = peer_rows(outputs / "peers", columns) if name != "table-n2v" else []
    measured = [row for row in own if row is not None]
    return table, measured + recorded_rows(name, columns) + peers + cited_rows(table)
