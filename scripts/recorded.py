"""Runs with the paper's parameters that docs/paper keeps, for tables and reports on machines that have not run them.

A folder is called TABLE_COLUMN_VALUE_seed_NUMBER, followed by its variant if it differs from the experiment:
`inpainting_house_0.5_seed_0`, `table2_noise_50_seed_0_fitness`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvae.options.schema import Config
from tvae.run.run_directory import read_metrics

RECORDED = Path(__file__).parents[1] / "docs" / "paper"
NAME = re.compile(r"(table1|table2|inpainting)_(noise|house)_([\d.]+)_seed_(\d+)(?:_(variance|fitness))?")
COLUMN = re.compile(r"noise=([\d.]+)|dataset=house,missing=([\d.]+)")
EPOCHS = 500
SETTINGS = {  # (ea.selection, model.sigma2): the variant
    ("authors", 0.01): None,
    ("authors", None): "variance",
    ("fitness", None): "fitness",
}
VARIANTS = {
    "variance": "sigma2 from the data's variance",
    "fitness": "ea.selection=fitness, sigma2 from the data's variance",
}


@dataclass(frozen=True)
class RecordedRun:
    folder: Path
    table: str
    column: str  # as in published.yaml
    seed: int
    variant: str | None  # a key of VARIANTS; None: the experiment as it stands
    metrics: dict[str, Any]

    @property
    def revision(self) -> str:
        return str(self.metrics["machine"]["tvae"])


def recorded_name(table: str, column: str, config: Config) -> str | None:
    """The folder's name, or None for a run with another picture, selection, start or number of epochs."""
    match, setting = COLUMN.fullmatch(column), (config.ea.selection, config.model.sigma2)
    if match is None or setting not in SETTINGS or config.epochs != EPOCHS:
        return None
    level, share = match.groups()
    cell = f"noise_{level}" if level else f"house_{share}"
    variant = SETTINGS[setting]
    return f"{table}_{cell}_seed_{config.corruption_seed}" + (f"_{variant}" if variant else "")


def recorded_runs() -> list[RecordedRun]:
    found = []
    for folder in sorted(RECORDED.glob("*/")):
        match, metrics = NAME.fullmatch(folder.name), read_metrics(folder)
        if match and metrics:
            table, kind, value, seed, variant = match.groups()
            column = f"noise={value}" if kind == "noise" else f"dataset={kind},missing={value}"
            found.append(RecordedRun(folder, table, column, int(seed), variant, metrics))
    return found
