"""Finished runs on natural image patches, as scripts/judge_natural.py judges them."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tvae.config.checks import read_config
from tvae.config.schema import Config
from tvae.runs.files import CONFIG, FINGERPRINT, HISTORY, METRICS
from tvae.runs.run_directory import read_metrics

COLUMNS = {"elbo": "training patches", "elbo_test": "held-out patches"}


def known_columns(runs: Iterable[Run]) -> dict[str, str]:
    """Those that all runs have: there may be no held-out patches."""
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
    """Of a `spread`."""
    return f"{found['mean']:.2f}" + ("" if found["std"] is None else f" ± {found['std']:.2f}")
