"""The paper's tables beside ours: collects runs and peers from `outputs/` into Markdown, CSV and LaTeX.

    python -m scripts.paper.tables TABLE [outputs]

A cell of ours is the mean over the finished runs below outputs/TABLE/quick (minutes a cell), outputs/TABLE/paper (the
paper's parameters), outputs/TABLE/linear or outputs/TABLE/slab (sparse coding by this program), plus or minus the
standard deviation over seeds (their number in brackets). Rows are marked `measured` (by runs of this program, or by
scripts/paper/peers.py on the same noisy arrays), `recorded` (by such runs, kept in docs/paper) or `cited`
(published.yaml); they never share a row. Unreadable runs are left out and named.
Written to outputs/tables/TABLE.md, .csv and .tex.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.paper.record import TVAE, VARIANTS, Run, published, read_run, recorded_runs
from tvae.io.atomic import write_atomically
from tvae.runs.files import METRICS

BUDGETS = ("quick", "paper", "linear", "slab")
NAMES = {
    "quick": "tvae, default recipe",
    "paper": "tvae, the paper's parameters",
    "linear": "var-BSC (our linear decoder)",
    "slab": "slab model, best settings, posterior mean alone",
}
NAMES_IN = {  # with the table's patches and latents, not those of the recipe
    ("table1", "quick"): "tvae, quick",
    ("table1", "slab"): "spike-and-slab, ours (linear, one direction a latent, global prior)",
}
REPRODUCES = {  # cited rows; ours: TVAE
    "linear": "var-BSC", "slab": "GSC", "BM3D": "BM3D", "dictionary (as KSVD)": "KSVD",
}  # fmt: skip
LEGEND = (
    "Mean ± standard deviation (number of runs). Measured: here, all systems on the same corrupted arrays; recorded: "
    "earlier, by the revision named; cited: as published. Minutes of a whole run, restoration included."
)


@dataclass
class Row:
    name: str
    origin: str  # measured, recorded or cited
    needs: str  # what it is given beside the image
    cells: list[list[float]]  # PSNR of every run, for each column
    minutes: list[list[float]] = field(default_factory=list)  # of the same runs
    note: str = ""  # epochs, or the source
    reproduces: str | None = None  # the cited row that it does anew
    spread: list[float] | None = None  # of a cited row, where it is published

    @classmethod
    def empty(cls, name: str, origin: str, needs: str, n: int, note: str = "", reproduces: str | None = None) -> Row:
        """A row of n columns without runs."""
        return cls(name, origin, needs, [[] for _ in range(n)], [[] for _ in range(n)], note, reproduces)

    def add(self, column: int, psnr: float, minutes: float) -> None:
        self.cells[column].append(psnr)
        self.minutes[column].append(minutes)

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


def runs_of(name: str, budget: str, outputs: Path) -> list[Run]:
    """The runs of a row."""
    table = "table2" if name == "table-n2v" else name

    def below(folder: str) -> list[Run]:
        found = (read_run(path.parent) for path in sorted((outputs / folder / budget).glob(f"*/{METRICS}")))
        return [run for run in found if run is not None]

    first = below("table1") if (table, budget) == ("table2", "paper") else []
    return below(table) + [run for run in first if table_of(run.column, name) == "table1"]


def table_of(column: str, name: str) -> str:
    """The table whose runs fill this column of a table: for sigma 15 and 25 the paper's Table 2 repeats its Table 1."""
    if name in ("table2", "table-n2v"):
        return "table2" if column == "noise=50" else "table1"
    return name


def minutes_of(metrics: dict[str, Any]) -> float:
    """Minutes of the whole run, or of its training alone if no more is known."""
    return float(metrics.get("seconds_total") or metrics["seconds"]) / 60


def own_row(name: str, budget: str, columns: list[str], outputs: Path) -> Row | None:
    runs = [run for run in runs_of(name, budget, outputs) if run.column in columns]
    if not runs:
        return None
    title = NAMES_IN.get((name, budget), NAMES[budget])
    row = Row.empty(title, "measured", "nothing", len(columns), reproduces=REPRODUCES.get(budget, TVAE))
    for run in runs:
        row.add(columns.index(run.column), run.metrics["psnr"], minutes_of(run.metrics))
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
    revisions: dict[str, set[str]] = {}
    for run in recorded_runs():
        if run.column not in columns or run.table != table_of(run.column, name):
            continue
        title = NAMES["paper"] + (f", {VARIANTS[run.variant].title}" if run.variant else "")
        row = rows.setdefault(title, Row.empty(title, "recorded", "nothing", len(columns), reproduces=TVAE))
        row.add(columns.index(run.column), run.metrics["psnr"], minutes_of(run.metrics))
        revisions.setdefault(title, set()).add(run.revision)
        row.note = f"{run.metrics['epochs']} epochs at revision {', '.join(sorted(revisions[title]))}"
    return list(rows.values())


def peer_rows(folder: Path, columns: list[str]) -> list[Row]:
    """Rows of other systems on the same arrays: scripts/paper/peers.py writes a file for each, named like runs."""
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
            new = Row.empty(name, "measured", found["needs"], len(columns), found["how"], REPRODUCES.get(name))
            rows.setdefault(name, new).add(columns.index(column), found["psnr"], found["seconds"] / 60)
    return sorted(rows.values(), key=lambda row: -(row.mean(0) or row.mean(len(columns) - 1) or 0))


def collect(name: str, outputs: Path) -> tuple[dict[str, Any], list[Row]]:
    table = published()[name]
    columns = table["columns"]
    own = [own_row(name, budget, columns, outputs) for budget in BUDGETS]
    peers = peer_rows(outputs / "peers", columns) if name != "table-n2v" else []
    measured = [row for row in own if row is not None]
    return table, measured + recorded_rows(name, columns) + peers + cited_rows(table)


def header(columns: list[str]) -> list[str]:
    return ["", *(c.replace("dataset=", "").replace(",", ", ") for c in columns), "difference to the published one",
            "minutes of a run", "given beside the image", "origin", "note"]  # fmt: skip


def difference(row: Row, rows: list[Row], column: int) -> str:
    """Difference to the published figure that a row reproduces, or an empty string where there is none."""
    cited = next((r for r in rows if r.origin == "cited" and r.name == row.reproduces), None)
    ours, theirs = row.mean(column), None if cited is None else cited.mean(column)
    return "" if ours is None or theirs is None else f"{ours - theirs:+.2f}"


def as_lines(table: dict[str, Any], rows: list[Row]) -> list[list[str]]:
    """The table as text, a list for each row."""
    lines = []
    for row in rows:
        columns = range(len(table["columns"]))
        differences = [difference(row, rows, c) for c in columns]
        minutes = [m for column in row.minutes for m in column]
        time = " to ".join(dict.fromkeys(f"{end(minutes):.1f}" for end in (min, max))) if minutes else ""
        shown = " / ".join(each or "-" for each in differences) if any(differences) else ""
        lines.append([row.name, *(row.shown(c) for c in columns), shown, time, row.needs, row.origin, row.note])
    return lines


def as_markdown(table: dict[str, Any], rows: list[Row]) -> str:
    names = header(table["columns"])
    lines = [f"PSNR in dB: {table['title']}. {LEGEND}", "", _row(names), _row(["---"] * len(names))]
    return "\n".join([*lines, *(_row(line) for line in as_lines(table, rows))]) + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def as_csv(table: dict[str, Any], rows: list[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["name", "origin", "column", "psnr_mean", "psnr_std", "n", "difference", "minutes_mean", "given", "note"]
    )
    for row in rows:
        for i, (column, values) in enumerate(zip(table["columns"], row.cells, strict=True)):
            if values:
                deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""
                minutes = f"{statistics.mean(row.minutes[i]):.2f}" if row.minutes else ""
                n_runs = "" if row.origin == "cited" else len(values)
                figures = [f"{statistics.mean(values):.4f}", deviation, n_runs, difference(row, rows, i), minutes]
                writer.writerow([row.name, row.origin, column, *figures, row.needs, row.note])
    return out.getvalue()


def as_latex(table: dict[str, Any], rows: list[Row]) -> str:
    titles = [c.replace("dataset=", "").replace("noise=", r"$\sigma$=").replace(",", ", ") for c in table["columns"]]
    names = [*titles, "difference", "minutes", "given", "origin", "note"]
    lines = [rf"\begin{{tabular}}{{l{'c' * len(titles)}cclll}}", f"% {LEGEND}", r"\toprule"]
    lines += [" & ".join(["", *names]) + r" \\", r"\midrule"]
    lines += [" & ".join(map(_escaped, line)) + r" \\" for line in as_lines(table, rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    for special in "&%_#$":
        text = text.replace(special, f"\\{special}")
    return text.replace("±", r"$\pm$")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.paper.tables", description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=list(published()))
    parser.add_argument("outputs", type=Path, nargs="?", default=Path("outputs"))
    options = parser.parse_args(words)
    name, outputs = options.table, options.outputs
    table, rows = collect(name, outputs)
    folder = outputs / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    markdown = as_markdown(table, rows)
    for ending, text in (("md", markdown), ("csv", as_csv(table, rows)), ("tex", as_latex(table, rows))):
        write_atomically(folder / f"{name}.{ending}", text.encode())
    print(markdown)
    print(f"written to {folder}/{name}.md, .csv and .tex")


if __name__ == "__main__":
    main()
