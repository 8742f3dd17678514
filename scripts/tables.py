"""The paper's tables beside ours: collects runs and peers from `outputs/` into Markdown, CSV and LaTeX.

    python -m scripts.tables TABLE [outputs]

A cell of ours is the mean over the finished runs below outputs/TABLE/quick (minutes a cell) or outputs/TABLE/paper (the
paper's parameters), plus or minus the standard deviation over seeds (their number in brackets). Rows are marked
`measured` (by runs of this program, or by scripts/peers.py on the same noisy arrays), `recorded` (by such runs, kept in
docs/paper) or `cited` (published.yaml); they never share a row. Runs that cannot be read are left out and named.
Written to outputs/tables/TABLE.md, .csv and .tex.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
from pathlib import Path
from typing import Any

from scripts.table_rows import Row, collect, published
from tvae.io.atomic import write_atomically

LEGEND = (
    "Mean ± standard deviation (number of runs). Measured: here, all systems on the same corrupted arrays; recorded: "
    "earlier, by the revision named; cited: as published. Minutes of a whole run, restoration included."
)


def header(columns: list[str]) -> list[str]:
    return ["", *(c.replace("dataset=", "").replace(",", ", ") for c in columns), "difference to the published one",
            "minutes of a run", "given beside the image", "origin", "note"]  # fmt: skip


def difference(row: Row, rows: list[Row], column: int) -> str:
    """To the published figure that a row does anew; empty where there is none."""
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
        time = "" if not minutes else f"{min(minutes):.1f} to {max(minutes):.1f}"
        shown = " / ".join(differences) if any(differences) else ""
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
    parser = argparse.ArgumentParser(prog="scripts.tables", description=__doc__.splitlines()[0])
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
