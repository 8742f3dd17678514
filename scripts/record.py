"""Keep finished runs with the paper's parameters in docs/paper: `make record`, or `python -m scripts.record [outputs]`.

Of each finished run below outputs/TABLE/paper: metrics, history, the restored picture and the curves of its training.
What has been recorded stays as it is. Then docs/paper/curves.png is drawn: PSNR over epochs beside the published value.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts import recorded
from scripts.recorded import VARIANTS, RecordedRun, cell_name, differences, recorded_runs, variant_of
from scripts.table_rows import TVAE, published, read_run
from tvae.config.checks import read_config
from tvae.config.schema import Config
from tvae.io.atomic import write_atomically
from tvae.runs.callbacks.figures import save_figure
from tvae.runs.files import CONFIG, HISTORY, METRICS

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


def record(outputs: Path) -> list[Path]:
    """The folders that are new."""
    new = []
    for table in ("table1", "table2", "inpainting"):
        for path in sorted((outputs / table / "paper").glob(f"*/{METRICS}")):
            run = read_run(path.parent)
            if run is None or not (path.parent / HISTORY).is_file():
                continue
            try:
                folder = recorded.RECORDED / _name(table, run.column, read_config(path.parent / CONFIG))
            except ValueError as reason:
                print(f"left out: {path.parent}: {reason}")
                continue
            if not (folder / METRICS).is_file():
                _keep(path.parent, folder)
                new.append(folder)
    return new


def _name(table: str, column: str, config: Config) -> str:
    """The folder's name; raises `ValueError` for a run that is neither the experiment nor a variant of it."""
    name = cell_name(table, column, config.corruption_seed)
    if name is None:
        raise ValueError(f"the paper has no {column}")
    found = differences(table, column, config)
    variant = variant_of(found)
    if found and variant is None:
        raise ValueError(", ".join(f"{option}={value}" for option, value in found.items()) + ": not the paper's")
    return f"{name}_{variant}" if variant else name


def _keep(run: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in reversed(KEPT):  # metrics last: without them it does not count as recorded
        if (run / name).is_file():
            write_atomically(folder / Path(name).name, (run / name).read_bytes())


def draw_curves(runs: list[RecordedRun]) -> Figure:
    """A panel for each cell: every run's PSNR over epochs, and what the paper has."""
    figure = Figure(figsize=(13, 7), layout="constrained")
    panels = figure.subplots(2, 3).flat
    for axes, (cell, title) in zip(panels, CELLS.items(), strict=False):
        _draw_cell(axes, *cell, runs)
        axes.set_title(title)
    last = figure.axes[-1]
    last.set_axis_off()
    last.legend(*figure.axes[0].get_legend_handles_labels(), loc="center", frameon=False)
    figure.supxlabel("epoch; the learning rate is lowest every 20 epochs")
    figure.supylabel("PSNR in dB")
    return figure


def _draw_cell(axes: Axes, table: str, column: str, runs: list[RecordedRun]) -> None:
    content = published()[table]
    (cited,) = (row["values"] for row in content["rows"] if row["name"] == TVAE)
    value = cited[content["columns"].index(column)]
    axes.axhline(value, color="k", linestyle=":", label="the paper")
    for variant, colour in COLOURS.items():
        axes.plot([], [], colour, label=VARIANTS[variant].title if variant else "the experiment as it stands")
    ends = [value]
    for run in runs:
        if (run.table, run.column) == (table, column):
            epochs, values = _psnr_over_epochs(run.folder)
            axes.plot(epochs, values, COLOURS[run.variant], linewidth=1)
            ends += values[-1:]
    axes.set_xlim(0, 510)
    axes.set_ylim(min(ends) - 1.5, max(ends) + 0.5)


def _psnr_over_epochs(folder: Path) -> tuple[list[int], list[float]]:
    with open(folder / HISTORY) as file:
        rows = [row for row in csv.DictReader(file) if row["psnr"]]
    return [int(row["epoch"]) for row in rows], [float(row["psnr"]) for row in rows]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.record", description=__doc__.splitlines()[0])
    parser.add_argument("outputs", type=Path, nargs="?", default=Path("outputs"))
    for folder in record(parser.parse_args(words).outputs):
        print(f"recorded {folder}")
    runs = recorded_runs()
    if runs:
        save_figure(recorded.RECORDED / CURVES, draw_curves(runs))
    print(f"{len(runs)} runs in {recorded.RECORDED}")


if __name__ == "__main__":
    main()
