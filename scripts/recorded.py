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

from tvae.options.checks import flat, resolve
from tvae.options.schema import FREE, Config, conf_dir, register
from tvae.run.run_directory import read_metrics

RECORDED = Path(__file__).parents[1] / "docs" / "paper"
COLUMN = re.compile(r"noise=([\d.]+)|dataset=house,missing=([\d.]+)")
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


def recorded_name(table: str, column: str, config: Config) -> str | None:
    """The folder's name, or None for a run that is neither the experiment nor a variant of it."""
    match = COLUMN.fullmatch(column)
    if match is None:
        return None
    level, share = match.groups()
    cell = f"noise_{level}" if level else f"house_{share}"
    name = f"{table}_{cell}_seed_{config.corruption_seed}"
    found = differences(table, config)
    if not found:
        return name
    return next((f"{name}_{key}" for key, variant in VARIANTS.items() if variant.differences == found), None)


def differences(table: str, config: Config) -> dict[str, Any]:
    """Options whose values are others than the experiment sets, but for those that it leaves open (null)."""
    register()
    varied = ("noise", "corruption_seed") if config.missing is None else ("missing", "corruption_seed")
    overrides = [f"experiment={table}", *(f"{name}={getattr(config, name)}" for name in varied)]
    with initialize_config_dir(conf_dir(), version_base="1.3"):
        experiment = flat(resolve(compose("config", overrides)))
    return {
        name: value
        for name, value in flat(config).items()
        if name not in (*FREE, *LOOKS) and experiment[name] is not None and value != experiment[name]
    }


def recorded_runs() -> list[RecordedRun]:
    found = []
    for folder in sorted(RECORDED.glob("*/")):
        match, metrics = NAME.fullmatch(folder.name), read_metrics(folder)
        if match and metrics:
            table, kind, value, seed, variant = match.groups()
            column = f"noise={value}" if kind == "noise" else f"dataset={kind},missing={value}"
            found.append(RecordedRun(folder, table, column, int(seed), variant, metrics))
    return found
