"""The paper's tables beside ours: collects runs and peers from `outputs/` into Markdown, CSV and LaTeX.

    python scripts/tables.py TABLE [outputs]

A cell of ours is the mean over the finished runs below outputs/TABLE/quick (the default recipe) or outputs/TABLE/paper
(the paper's parameters), plus or minus the standard deviation over seeds (their number in brackets). Rows are marked
`measured` (by runs of this program, or by scripts/peers.py on the same noisy arrays) or `cited` (published.yaml); the
two never share a row. Written to outputs/tables/TABLE.md, .csv and .tex.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tvae.checkpoint import write_atomically

PUBLISHED = Path(__file__).with_name("published.yaml")
REFERENCE = "TVAE (paper)"
BUDGETS = {
    "quick": "tvae, default recipe",
    "paper": "tvae, the paper's parameters",
    "linear": "var-BSC (our linear model, default recipe)",
}


@dataclass
class Row:
    name: str
    origin: str  # measured or cited
    needs: str  # what it is given beside the image
    cells: list[list[float]]  # PSNR of every run, for each column
    minutes: list[list[float]] = field(default_factory=list)
    note: str = ""  # epochs, or the source

    def shown(self, column: int) -> str:
        values = self.cells[column]
        if not values:
            return ""
        if self.origin == "cited":
            return f"{values[0]:.2f}"
        if len(values) == 1:
            return f"{values[0]:.2f} (1)"
        return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f} ({len(values)})"

    def mean(self, column: int) -> float | None:
        return statistics.mean(self.cells[column]) if self.cells[column] else None


def cited_rows(table: dict[str, Any]) -> list[Row]:
    return [
        Row(row["name"], "cited", row["needs"], [[] if v is None else [v] for v in row["values"]], note=row["source"])
        for row in table["rows"]
    ]


def column_of(directory: Path) -> str:
    """Which cells a run belongs to, by its configuration."""
    config = OmegaConf.load(directory / "config.yaml")
    if config.missing is not None:
        return f"dataset={config.dataset.name},missing={config.missing:g}"
    return f"noise={config.noise or 0:g}"


def runs_of(name: str, budget: str, outputs: Path) -> list[Path]:
    """The run directories of a row. For sigma 15 and 25 the paper's Table 2 repeats its Table 1."""
    table = "table2" if name == "table-n2v" else name
    found = [path.parent for path in (outputs / table / budget).glob("*/metrics.json")]
    if (table, budget) == ("table2", "paper"):
        first = [path.parent for path in (outputs / "table1" / budget).glob("*/metrics.json")]
        found += [directory for directory in first if column_of(directory) != "noise=50"]
    return sorted(found)


def own_row(directories: list[Path], name: str, columns: list[str]) -> Row | None:
    """Those of the runs that are finished."""
    row = Row(name, "measured", "nothing", [[] for _ in columns], [[] for _ in columns])
    epochs = set()
    for directory in directories:
        metrics = json.loads((directory / "metrics.json").read_text())
        column = column_of(directory)
        if metrics["status"] == "finished" and metrics["psnr"] is not None and column in columns:
            row.cells[columns.index(column)].append(metrics["psnr"])
            row.minutes[columns.index(column)].append(metrics["seconds"] / 60)
            epochs.add(metrics["epochs"])
    row.note = f"{min(epochs)} to {max(epochs)} epochs" if len(epochs) > 1 else f"{max(epochs, default=0)} epochs"
    return row if any(row.cells) else None


def peer_rows(folder: Path, columns: list[str]) -> list[Row]:
    """What scripts/peers.py found on the same arrays: a file for each, named as the runs are."""
    rows: dict[str, Row] = {}
    for path in sorted(folder.glob("*.json")):
        column = path.stem.rpartition(",seed=")[0]
        if column not in columns:
            continue
        for name, found in json.loads(path.read_text()).items():
            row = rows.setdefault(
                name, Row(name, "measured", found["needs"], [[] for _ in columns], [[] for _ in columns], found["how"])
            )
            row.cells[columns.index(column)].append(found["psnr"])
            row.minutes[columns.index(column)].append(found["seconds"] / 60)
    return sorted(rows.values(), key=lambda row: -(row.mean(0) or row.mean(len(columns) - 1) or 0))


def collect(name: str, outputs: Path) -> tuple[dict[str, Any], list[Row]]:
    published = OmegaConf.to_container(OmegaConf.load(PUBLISHED))
    assert isinstance(published, dict)
    if name not in published:
        sys.exit(f"{name or 'TABLE'}: no such table; there are {', '.join(map(str, published))}")
    table = published[name]
    columns = table["columns"]
    own = [own_row(runs_of(name, budget, outputs), title, columns) for budget, title in BUDGETS.items()]
    peers = peer_rows(outputs / "peers", columns) if name != "table-n2v" else []
    return table, [row for row in own if row is not None] + peers + cited_rows(table)


def header(columns: list[str]) -> list[str]:
    return ["", *(c.replace("dataset=", "").replace(",", ", ") for c in columns), "difference to the paper",
            "minutes of training", "given beside the image", "origin", "note"]  # fmt: skip


def as_lines(table: dict[str, Any], rows: list[Row]) -> list[list[str]]:
    """The table as text, a list for each row; differences only where both means are there."""
    reference = next(row for row in rows if row.name == REFERENCE)
    lines = []
    for row in rows:
        columns = range(len(table["columns"]))
        pairs = [(row.mean(c), reference.mean(c)) for c in columns]
        differences = ["" if a is None or b is None else f"{a - b:+.2f}" for a, b in pairs]
        minutes = [m for column in row.minutes for m in column]
        time = "" if not minutes else f"{min(minutes):.1f} to {max(minutes):.1f}"
        shown = " / ".join(differences) if row.origin == "measured" and any(differences) else ""
        lines.append([row.name, *(row.shown(c) for c in columns), shown, time, row.needs, row.origin, row.note])
    return lines


def as_markdown(table: dict[str, Any], rows: list[Row]) -> str:
    names = header(table["columns"])
    lines = [f"PSNR in dB: {table['title']}.", "", _row(names), _row(["---"] * len(names))]
    return "\n".join([*lines, *(_row(line) for line in as_lines(table, rows))]) + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def as_csv(table: dict[str, Any], rows: list[Row]) -> str:
    out = io.StringIO()
    reference = next(row for row in rows if row.name == REFERENCE)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["name", "origin", "column", "psnr_mean", "psnr_std", "n", "difference", "minutes_mean", "given", "note"]
    )
    for row in rows:
        for i, (column, values) in enumerate(zip(table["columns"], row.cells, strict=True)):
            if values:
                deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""
                minutes = f"{statistics.mean(row.minutes[i]):.2f}" if row.minutes else ""
                n_runs = len(values) if row.origin == "measured" else ""
                mean, published = statistics.mean(values), reference.mean(i)
                difference = "" if published is None else f"{mean - published:+.4f}"
                figures = [f"{mean:.4f}", deviation, n_runs, difference, minutes]
                writer.writerow([row.name, row.origin, column, *figures, row.needs, row.note])
    return out.getvalue()


def as_latex(table: dict[str, Any], rows: list[Row]) -> str:
    titles = [c.replace("dataset=", "").replace("noise=", r"$\sigma$=").replace(",", ", ") for c in table["columns"]]
    names = [*titles, "difference", "minutes", "given", "origin", "note"]
    lines = [rf"\begin{{tabular}}{{l{'c' * len(titles)}cclll}}", r"\toprule"]
    lines += [" & ".join(["", *names]) + r" \\", r"\midrule"]
    lines += [" & ".join(line).replace("±", r"$\pm$") + r" \\" for line in as_lines(table, rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def main(name: str = "", outputs: str = "outputs") -> None:
    table, rows = collect(name, Path(outputs))
    folder = Path(outputs) / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    markdown = as_markdown(table, rows)
    for ending, text in (("md", markdown), ("csv", as_csv(table, rows)), ("tex", as_latex(table, rows))):
        write_atomically(folder / f"{name}.{ending}", text.encode())
    print(markdown)
    print(f"written to {folder}/{name}.md, .csv and .tex")


if __name__ == "__main__":
    main(*sys.argv[1:])
