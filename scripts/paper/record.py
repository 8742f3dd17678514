"""Runs of the paper's tables: read from outputs, and kept in docs/paper if they have its parameters (`make record`).

    python -m scripts.paper.record [outputs]

Keeps metrics, history, restored picture and training curves of each finished run below outputs/TABLE/paper, so that
tables and reports show them on machines that have not run them. A recorded run is never changed. A folder is called
TABLE_COLUMN_VALUE_seed_NUMBER, followed by its variant if it differs from the experiment:
`inpainting_house_0.5_seed_0`, `table2_noise_50_seed_0_fitness`. Then docs/paper/curves.png is drawn, PSNR over epochs
beside the published value, and the table of all cells printed: mean and standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from tvae.config.checks import flat, read_config, resolve
from tvae.config.schema import FREE, Config, conf_dir, register
from tvae.errors import UserError
from tvae.io.atomic import write_atomically
from tvae.runs.callbacks.figures import save_figure
from tvae.runs.files import CONFIG, HISTORY, METRICS
from tvae.runs.run_directory import read_metrics

RECORDED = Path(__file__).parents[2] / "docs" / "paper"
PUBLISHED = Path(__file__).with_name("published.yaml")
TVAE = "TVAE (paper)"  # its row there
COLUMN = re.compile(r"noise=([1-9][\d.]*)|dataset=house,missing=([\d.]+)")
LOOKS = ("restore_every", "picture_every")  # what is shown while a run is trained
CURVES = "curves.png"
COLOURS = {None: "C0", "variance": "C1", "fitness": "0.6", "observed": "C2"}  # by variant
KEPT = (METRICS, HISTORY, "restored.png", "figures/training.png")
CELLS = {  # (table, column): title
    ("table1", "noise=15"): "Table 1, sigma=15",
    ("table1", "noise=25"): "Table 1, sigma=25",
    ("table1", "noise=50"): "Table 1, sigma=50",
    ("table2", "noise=50"): "Table 2, sigma=50",
    ("inpainting", "dataset=house,missing=0.5"): "Table 5, half missing",
}


def published() -> dict[str, Any]:
    """The published tables by name, with `columns` and `rows`."""
    return dict(OmegaConf.to_container(OmegaConf.load(PUBLISHED)))  # type: ignore[arg-type]


@dataclass
class Run:
    column: str  # which cells it belongs to
    n_threads: int | None  # None: all cores
    metrics: dict[str, Any]


def read_run(directory: Path) -> Run | None:
    """A finished run with a known clean image; None for another run, with a line on stderr if it is damaged."""
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


def differences(table: str, column: str, config: Config) -> dict[str, Any]:
    """Options of a run, by dotted name, whose values differ from the experiment for this column of the table."""
    register()
    cell = [word for word in column.split(",") if not word.startswith("dataset=")]
    with initialize_config_dir(conf_dir(), version_base="1.3"):
        words = [f"experiment={table}", *cell, f"corruption_seed={config.corruption_seed}"]
        experiment = flat(resolve(compose("config", words)))
    experiment |= {"dataset.train_stride": 1, "keep_known": experiment["noise"] is None}  # which a run fills in
    found = flat(config)
    return {name: found[name] for name in found if name not in (*FREE, *LOOKS) and found[name] != experiment[name]}


def recorded_runs() -> list[RecordedRun]:
    found = []
    for folder in sorted(RECORDED.glob("*/")):
        match, metrics = NAME.fullmatch(folder.name), read_metrics(folder)
        if match and metrics:
            table, kind, value, seed, variant = match.groups()
            column = f"noise={value}" if kind == "noise" else f"dataset={kind},missing={value}"
            found.append(RecordedRun(folder, table, column, int(seed), variant, metrics))
    return found


def record(outputs: Path) -> list[Path]:
    """Keep finished runs that are not there yet, and return their folders."""
    new = []
    for table in ("table1", "table2", "inpainting"):
        for path in sorted((outputs / table / "paper").glob(f"*/{METRICS}")):
            run = read_run(path.parent)
            if run is None or not (path.parent / HISTORY).is_file():
                continue
            try:
                folder = RECORDED / _name(table, run.column, read_config(path.parent / CONFIG))
            except ValueError as reason:
                print(f"left out: {path.parent}: {reason}")
                continue
            if not (folder / METRICS).is_file():
                _keep(path.parent, folder)
                new.append(folder)
    return new


def _name(table: str, column: str, config: Config) -> str:
    """The folder's name; raises `ValueError` for a run that is neither the experiment nor a variant of it."""
    match = COLUMN.fullmatch(column)
    if match is None:
        raise ValueError(f"the paper has no {column}")
    level, share = match.groups()
    name = f"{table}_{f'noise_{level}' if level else f'house_{share}'}_seed_{config.corruption_seed}"
    found = differences(table, column, config)
    variant = next((name for name, variant in VARIANTS.items() if variant.differences == found), None)
    if found and variant is None:
        raise ValueError(", ".join(f"{option}={value}" for option, value in found.items()) + ": not the paper's")
    return f"{name}_{variant}" if variant else name


def _keep(run: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in reversed(KEPT):  # metrics last: without them it does not count as recorded
        if (run / name).is_file():
            write_atomically(folder / Path(name).name, (run / name).read_bytes())


def by_cell(runs: list[RecordedRun]) -> Iterator[tuple[str, float, str | None, list[RecordedRun]]]:
    """Title, published PSNR, variant and runs by seed of each cell of the paper's tables, and of each variant of it."""
    for (table, column), title in CELLS.items():
        content = published()[table]
        (cited,) = (row["values"] for row in content["rows"] if row["name"] == TVAE)
        for variant in COLOURS:
            found = [run for run in runs if (run.table, run.column, run.variant) == (table, column, variant)]
            yield title, cited[content["columns"].index(column)], variant, sorted(found, key=lambda run: run.seed)


def as_markdown(runs: list[RecordedRun]) -> str:
    """A row for each cell and variant with runs."""
    lines = ["| PSNR in dB | paper | ours (seeds) | difference | hours of training |", "|---|---|---|---|---|"]
    for title, cited, variant, found in by_cell(runs):
        if found:
            values = [run.metrics["psnr"] for run in found]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            mean, seeds = statistics.mean(values), ", ".join(str(run.seed) for run in found)
            name = title + (f"; {VARIANTS[variant].title}" if variant else "")
            hours = dict.fromkeys(f"{pick(run.metrics['seconds'] for run in found) / 3600:.2f}" for pick in (min, max))
            figures = (f"{cited:.2f}", f"{mean:.2f}{spread} ({seeds})", f"{mean - cited:+.2f}", " to ".join(hours))
            lines.append(f"| {' | '.join((name, *figures))} |")
    return "\n".join(lines)


def draw_curves(runs: list[RecordedRun]) -> Figure:
    """A panel for each cell: PSNR over epochs, the mean over seeds with lowest and highest, and what the paper has."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    *panels, last = figure.subplots(2, 3).flat
    ends: dict[str, list[float]] = {}
    for title, cited, variant, found in by_cell(runs):
        axes = panels[[*CELLS.values()].index(title)]
        axes.set_title(title)
        axes.set_xlim(0, 510)
        if title not in ends:
            ends[title] = [cited]
            axes.axhline(cited, color="k", linestyle=":", label="the paper")
        epochs, low, mean, high = _over_seeds(found)
        label = VARIANTS[variant].title if variant else "the experiment as it stands"
        axes.plot(epochs, mean, COLOURS[variant], linewidth=1, label=label)
        axes.fill_between(epochs, low, high, color=COLOURS[variant], alpha=0.3, linewidth=0)
        ends[title] += [run.metrics["psnr"] for run in found]
        axes.set_ylim(min(ends[title]) - 1.5, max(ends[title]) + 0.5)
    last.set_axis_off()
    lines = panels[0].get_legend_handles_labels()
    last.legend(*lines, loc="center", frameon=False, title="mean over seeds, from the lowest to the highest")
    figure.supxlabel("epoch; the learning rate is lowest every 20 epochs")
    figure.supylabel("PSNR in dB")
    return figure


def _over_seeds(runs: list[RecordedRun]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Epochs that all runs have, with lowest, mean and highest PSNR."""
    curves = [dict(_psnr_over_epochs(run.folder)) for run in runs]
    epochs = sorted(set[int]().union(*curves).intersection(*curves))
    values = [[curve[epoch] for curve in curves] for epoch in epochs]
    return (
        epochs,
        [min(each) for each in values],
        [statistics.mean(each) for each in values],
        [max(each) for each in values],
    )


def _psnr_over_epochs(folder: Path) -> Iterator[tuple[int, float]]:
    for row in csv.DictReader((folder / HISTORY).read_text().splitlines()):
        if row["psnr"]:
            yield int(row["epoch"]), float(row["psnr"])


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.paper.record", description=__doc__.splitlines()[0])
    parser.add_argument("outputs", type=Path, nargs="?", default=Path("outputs"))
    for folder in record(parser.parse_args(words).outputs):
        print(f"recorded {folder}")
    runs = recorded_runs()
    if runs:
        save_figure(RECORDED / CURVES, draw_curves(runs))
        print(as_markdown(runs))
    print(f"{len(runs)} runs in {RECORDED}")


if __name__ == "__main__":
    main()
