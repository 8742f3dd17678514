"""One HTML page of everything found below `outputs/`: tables, pictures, curves, and what they were made with.

    python -m scripts.html_page [outputs]

The page, outputs/report.html, holds its images and its style itself and needs no network.
"""

from __future__ import annotations

import argparse
import html
import sys
import time
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

from scripts import recorded, tables
from scripts.html_pictures import picture
from scripts.paper_figures import SHOWN, paper_figures
from scripts.record import CURVES
from scripts.table_rows import collect
from tvae.errors import UserError
from tvae.io.atomic import write_atomically
from tvae.runs.callbacks.progress import as_time
from tvae.runs.files import METRICS
from tvae.runs.run_directory import read_metrics

TABLES = {
    "table1": "Table 1",
    "table2": "Table 2",
    "table-n2v": "Table 4: beside noise2void",
    "inpainting": "Table 5: inpainting",
}
FIGURES = {  # experiments with figures and tables of their own
    "bars": "Bars (Appendix B)",
    "natural/quick": "Natural image patches",
    "natural/paper": "Natural image patches, the paper's epochs",
    "bench": "Speed",
    "runtime": "Growth of the time",
    "scaling": "Many processes",
}
NO_RESULTS = ("chaos",)

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8884; }
h3 { overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.6rem; text-align: left; border-bottom: 1px solid #8883; white-space: nowrap; }
th:first-child, td:first-child { white-space: normal; min-width: 8rem; }
tr.measured { background: #2a72 ; }
tr.recorded { background: #27a2 ; }
tr.cited { opacity: 0.8; font-style: italic; }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(15rem, 100%), 1fr)); }
.figures { grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); }
figure { margin: 0; }
.pictures figure { max-width: 24rem; }
figure:has(img[alt="training"]) { grid-column: 1 / -1; max-width: 56rem; }
img { width: 100%; height: auto; display: block; }
figcaption { font-size: 0.85rem; }
li { font-size: 0.9rem; overflow-wrap: anywhere; }
"""


def table(name: str, outputs: Path) -> str:
    """A table of the paper, the origin of rows told by colour, style and word; nothing if none is ours."""
    content, rows = collect(name, outputs)
    if all(row.origin == "cited" for row in rows):
        return ""
    head = "".join(f"<th>{html.escape(word)}</th>" for word in tables.header(content["columns"]))
    body = ""
    for row, line in zip(rows, tables.as_lines(content, rows), strict=True):
        body += f'<tr class="{row.origin}">' + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>\n"
    title = html.escape(f"PSNR in dB: {content['title']}. {tables.LEGEND}")
    return f'<p>{title}</p>\n<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def written_tables(path: Path) -> str:
    """The tables of a Markdown file, the first row of each being its head."""
    rows = [
        line.strip("|").split("|") if line.startswith("|") else []
        for line in path.read_text().splitlines()
        if not line.replace(" ", "").startswith("|--")
    ]
    tables = []
    for is_table, lines in groupby(rows, key=bool):
        if is_table:
            body = ""
            for line in lines:
                kind = "td" if body else "th"
                cells = "".join(f"<{kind}>{html.escape(cell.strip())}</{kind}>" for cell in line)
                body += f"<tr>{cells}</tr>\n"
            tables.append(f'<div class="wide"><table>{body}</table></div>')
    return "".join(tables)


def runs_below(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Finished runs in order of their names, but for those of searches and the like."""
    found = [(path.parent, read_metrics(path.parent)) for path in sorted(folder.glob(f"**/{METRICS}"))]
    return [
        (path, metrics)
        for path, metrics in found
        if metrics and metrics.get("status") == "finished"
        if path.parent.name not in ("trials", *NO_RESULTS)
    ]


def restored(path: Path, metrics: dict[str, Any], outputs: Path) -> str:
    """Input, restored image, uncertainty and training curves of a run."""
    in_db = {name: "" if metrics.get(name) is None else f", {metrics[name]:.2f} dB" for name in ("psnr_input", "psnr")}
    parts = [
        picture(path / file, caption)
        for file, caption in (
            ("input.png", "input" + in_db["psnr_input"]),
            ("restored.png", "restored" + in_db["psnr"]),
            ("uncertainty.png", "uncertainty"),
            ("figures/training.png", "training"),
        )
        if (path / file).is_file()
    ]
    title = html.escape(str(path.relative_to(outputs)))
    took = as_time(metrics.get("seconds_total") or metrics["seconds"])
    facts = f"{metrics['epochs']} epochs, {took}, ELBO {metrics['elbo']:.2f}"
    return f'<h3>{title}</h3>\n<p>{facts}</p>\n<div class="grid">{"".join(parts)}</div>'


def made_with(outputs: Path) -> list[str]:
    """The machines and versions of all runs, the most frequent first, with how many runs each has."""
    found = Counter(
        "; ".join(f"{name} {value}" for name, value in metrics["machine"].items())
        for _, metrics in runs_below(outputs)
        if "machine" in metrics
    )
    return [f"{count} runs: {text}" for text, count in found.most_common()]


def build(outputs: Path) -> str:
    """The whole page."""
    figures = "".join(paper_figures(outputs))
    sections = [("The paper's figures", figures)] if figures else []
    for name, title in TABLES.items():
        content = table(name, outputs)
        if content:
            first = [run for run in runs_below(outputs / name) if run[0].name.endswith("seed=0")]
            sections.append((title, content + "".join(restored(*run, outputs) for run in first)))
    if (recorded.RECORDED / CURVES).is_file():
        shown = picture(recorded.RECORDED / CURVES, "PSNR over epochs, every recorded run")
        sections.append(("The paper's parameters, 500 epochs", shown))
    if (outputs / "tables" / "pictures.md").is_file():
        curve = outputs / "tables" / "pictures.png"
        shown = picture(curve, "PSNR against seconds") if curve.is_file() else ""
        sections.append(("Development set", shown + written_tables(outputs / "tables" / "pictures.md")))
    for name, title in FIGURES.items():
        found = [path for path in sorted((outputs / name).glob("*.png")) if path.name not in SHOWN]
        shown = "".join(picture(path, path.stem.replace("_", " ")) for path in found)
        fields = sorted((outputs / name).glob("*_0/figures/decoder.png"))  # of the runs with seed 0
        shown += "".join(picture(path, f"fields, {path.parts[-3]}") for path in fields)
        written = "".join(written_tables(path) for path in sorted((outputs / name).glob("*.md")))
        if shown or written:
            sections.append((title, f'{written}<div class="grid figures">{shown}</div>'))
    for study in sorted(outputs.glob("**/study.db")):
        shown = "".join(picture(path, path.stem) for path in sorted((study.parent / "figures").glob("*.png")))
        if shown:
            title = f"Search: {study.parent.relative_to(outputs)}"
            sections.append((title, f'<div class="grid">{shown}</div>'))
    others = [
        run
        for run in runs_below(outputs)
        if run[0].relative_to(outputs).parts[0] not in (*TABLES, "pictures") and (run[0] / "restored.png").is_file()
    ]
    if others:
        sections.append(("Other restored images", "".join(restored(*run, outputs) for run in others)))
    if not sections:
        raise UserError(f"{outputs}: no results there; `make table1` or any other experiment makes some")
    machines = "".join(f"<li>{html.escape(text)}</li>" for text in made_with(outputs))
    body = "".join(f"<h2>{html.escape(title)}</h2>\n{content}\n" for title, content in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>tvae: results</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body><h1>tvae: results</h1>\n"
        f"<p>Made {time.strftime('%Y-%m-%d %H:%M %Z')} from runs on:</p>\n<ul>{machines}</ul>\n"
        "<p>Green rows were measured here, by this program or on the same arrays; blue rows earlier, by this program "
        "with the paper's parameters, at the revision named; rows in italics are cited.</p>\n"
        f"{body}</body></html>\n"
    )


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.html_page", description=__doc__.splitlines()[0])
    parser.add_argument("outputs", type=Path, nargs="?", default=Path("outputs"))
    outputs = parser.parse_args(words).outputs
    path = outputs / "report.html"
    try:
        page = build(outputs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    write_atomically(path, page.encode())
    print(f"written to {path}, {len(page) // 1024} KB")


if __name__ == "__main__":
    main()
