"""Runs with the paper's parameters that docs/paper keeps, for tables and reports on machines that have not run them.

A folder is called TABLE_COLUMN_VALUE_seed_NUMBER, followed by its variant if it differs from the experiment:
`inpainting_house_0.5_seed_0`, `table2_noise_50_seed_0_fitness`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir

from tvae.config.checks import flat, resolve
from tvae.config.schema import FREE, Config, conf_dir, register
from tvae.runs.run_directory import read_metrics

RECORDED = Path(__file__).parents[1] / "docs" / "paper"
COLUMN = re.compile(r"noise=([1-9][\d.]*)|dataset=house,missing=([\d.]+)")
LOOKS = ("restore_every", "picture_every")  # what is shown while a run is trained


class Variant(NamedTuple):
    title: str
    differences: dict[str, Any]  # from the experiment as it stands


VARIANTS = {
    "variance": Variant("sigma2 from the data's variance", {"model.sigma2": None}),
    "fitness": Variant(
        "ea.selection=fitness, sigma2 from the data's variance", {"ea.selection": "fitness", "model.sigma2": None}
    ),
    "observed": Variant("sigma2 of observed values alone", {"model.counts_imputed": False}),
}
NAME = re.compile(rf"(table1|table2|inpainting)_(noise|house)_([\d.]+)_seed_(\d+)(?:_({'|'.join(VARIANTS)}))?")


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


def cell_name(table: str, column: str, seed: int) -> str | None:
    """The folder's name without its variant, or None for a cell that the paper does not have."""
    match = COLUMN.fullmatch(column)
    if match is None:
        return None
    level, share = match.groups()
    return f"{table}_{f'noise_{level}' if level else f'house_{share}'}_seed_{seed}"


def differences(table: str, column: str, config: Config) -> dict[str, Any]:
    """The values of a run's options that are not those of the experiment for this column of the table."""
    register()
    cell = [word for word in column.split(",") if not word.startswith("dataset=")]
    with initialize_config_dir(conf_dir(), version_base="1.3"):
        words = [f"experiment={table}", *cell, f"corruption_seed={config.corruption_seed}"]
        experiment = flat(resolve(compose("config", words)))
    experiment |= {"dataset.train_stride": 1, "keep_known": experiment["noise"] is None}  # which a run fills in
    found = flat(config)
    return {name: found[name] for name in found if name not in (*FREE, *LOOKS) and found[name] != experiment[name]}


def variant_of(found: dict[str, Any]) -> str | None:
    """Which variant differs from its experiment in just this; None: there is none."""
    return next((name for name, variant in VARIANTS.items() if variant.differences == found), None)


def recorded_runs() -> list[RecordedRun]:
    found = []
    for folder in sorted(RECORDED.glob("*/")):
        match, metrics = NAME.fullmatch(folder.name), read_metrics(folder)
        if match and metrics:
            table, kind, value, seed, variant = match.groups()
            column = f"noise={value}" if kind == "noise" else f"dataset={kind},missing={value}"
            found.append(RecordedRun(folder, table, column, int(seed), variant, metrics))
    return found
