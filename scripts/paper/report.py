"""One HTML page of everything found below `outputs/`: tables, pictures, curves, and what they were made with.

    python -m scripts.paper.report [outputs]

The page, outputs/report.html, holds its images and its style itself and needs no network. It begins with the paper's
figures that show data, in its order and under its numbers, beside what it says of each; Figures 1, 2, 5 and 6 are
drawings of the method.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from scripts.paper import record, tables
from tvae.errors import UserError
from tvae.io.atomic import write_atomically
from tvae.runs.files import METRICS
from tvae.runs.log_lines import as_time
from tvae.runs.run_directory import read_metrics

WIDTH_MAX = 1200  # pixels of an image in the page
# pictures of `make bars` and `make natural` that have their place here
SHOWN = (
    "natural_elbo.png", "bars_fields.png", "bars_correlated_ratios.png", "bars_correlated_truth.png",
    "bars_correlated_elbo.png", "bars_correlated_samples.png",
)  # fmt: skip
KINDS = {"quick": "default recipe", "paper": "the paper's parameters"}
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
    "amortised": "Evolution beside encoder networks",
    "bench": "Speed",
    "runtime": "Growth of the time",
    "scaling": "Many processes",
}
NO_RESULTS = ("chaos",)
NUMBERS = re.compile(r"[-+±\d.,/()% ]+(?:to [\d.]+)?")

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto; padding: 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8884; }
h3 { overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.5rem; text-align: left; vertical-align: top; border-bottom: 1px solid #8883; }
td { min-width: 4.5rem; }
td.number { white-space: nowrap; min-width: 0; }
th:first-child, td:first-child { min-width: 7.5rem; }
td:last-child:not(.number) { min-width: 9rem; }
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


def picture(path: Path, caption: str) -> str:
    """An image inside the page, made smaller if it is wide."""
    try:
        with Image.open(path) as image:
            shown = image.convert("RGB") if image.mode not in ("L", "RGB") else image.copy()
            if image.mode.startswith("I"):  # 16 bit
                shown = Image.fromarray((np.asarray(image, dtype=np.float64) / 257).astype(np.uint8))
    except OSError:
        return f"<p>{html.escape(f'{path}: cannot be read')}</p>"
    shown.thumbnail((WIDTH_MAX, 10 * WIDTH_MAX))
    buffer = io.BytesIO()
    shown.save(buffer, format="PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    text = html.escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'


def paper_figures(outputs: Path) -> Iterator[str]:
    """HTML of each figure that there is something for."""
    yield from _natural(outputs)
    yield from _image(outputs, 4, "house denoised, sigma=50", "30.03 dB, the best of its runs", "table2", "noise=50")
    yield from _bars(outputs / "bars")
    yield from _image(
        outputs, 10, "house inpainted, half of its pixels missing", "38.56 dB (its Table 5)", "inpainting",
        "dataset=house,missing=0.5",
    )  # fmt: skip


def _figure(number: int, title: str, paper: str, ours: str, pictures: list[str], kind: str = "figures") -> str:
    head = html.escape(f"Figure {number}: {title}")
    said = f"<p>Paper: {html.escape(paper)}.<br>Ours: {html.escape(ours)}.</p>"
    return f'<h3>{head}</h3>\n{said}\n<div class="grid {kind}">{"".join(pictures)}</div>\n'


def _natural(outputs: Path) -> Iterator[str]:
    for budget in ("paper", "quick"):
        folder = outputs / "natural" / budget
        found = _read(folder / "natural.json").get("gain")
        if found and (folder / "natural_elbo.png").is_file():
            gains = {name: found[name]["gain"] for name in ("elbo", "elbo_test") if name in found}
            words = [f"{g['mean']:.2f}" + ("" if g["std"] is None else f" ± {g['std']:.2f}") for g in gains.values()]
            ours = " nats per patch, on held-out patches ".join(words) + f" nats, {found['n_patches']} patches"
            shown = [picture(folder / "natural_elbo.png", "ELBO over epochs, linear and deep")]
            title = "ELBO gain of a deep over a linear decoder, 16x16 image patches"
            yield _figure(3, title, "a gain, whose size it shows in a plot only", ours, shown)
            return


def _image(outputs: Path, number: int, title: str, paper: str, table: str, column: str) -> Iterator[str]:
    """The best run of each kind, as the paper shows its best."""
    runs = [
        (f"{name}, {path.name}", path, metrics)
        for budget, name in KINDS.items()
        for path, metrics in _best(outputs / table / budget, column)
    ]
    for run in record.recorded_runs():
        if (run.table, run.column) == (table, column):
            by = f", {record.VARIANTS[run.variant].title}" if run.variant else ""
            runs.append((f"{KINDS['paper']}{by}, recorded", run.folder, run.metrics))
    shown, said = [], []
    for name, path, metrics in runs:
        said.append(f"{metrics['psnr']:.2f} dB ({name}, {metrics['epochs']} epochs)")
        for file, what in (("input.png", "psnr_input"), ("restored.png", "psnr")):
            if (path / file).is_file():
                in_db = "" if metrics[what] is None else f": {metrics[what]:.2f} dB"  # holes have no PSNR
                shown.append(picture(path / file, f"{name}, {Path(file).stem}{in_db}"))
    if runs:
        yield _figure(number, title, paper, "; ".join(said), shown, "pictures")


def _best(folder: Path, column: str) -> list[tuple[Path, dict[str, Any]]]:
    """The finished run with the highest PSNR among those of this column, if there is one."""
    found = [(path, read_metrics(path)) for path in sorted(folder.glob("*seed=*")) if _is_of(path.name, column)]
    finished = [(path, m) for path, m in found if m and m.get("status") == "finished" and m.get("psnr") is not None]
    return sorted(finished, key=lambda run: -run[1]["psnr"])[:1]


def _is_of(name: str, column: str) -> bool:
    """True if a run of this name belongs to the column; numbers may be written 50 or 50.0."""
    words = dict(word.split("=", 1) for word in name.split(",") if "=" in word)
    wanted = dict(word.split("=", 1) for word in column.split(","))
    return "missing_per" not in words and all(
        key in words and words[key].removesuffix(".0") == value for key, value in wanted.items()
    )


def _bars(folder: Path) -> Iterator[str]:
    found = _read(folder / "bars.json")
    if (folder / "bars_fields.png").is_file() and "bars" in found:
        bars = found["bars"]
        ours = f"all bars in {bars['runs_with_all_bars']} of {bars['runs']} runs, {_best_elbo(bars)}"
        shown = [picture(folder / "bars_fields.png", "what each latent adds, over epochs")]
        yield _figure(7, "bars over training epochs", "all parameters recovered by the best of ten runs", ours, shown)
    if "bars_correlated" not in found:
        return
    bars = found["bars_correlated"]
    if (folder / "bars_correlated_ratios.png").is_file():
        ours = f"forbidden pairs {bars['gap_allowed_forbidden']:.1f} nats below the least likely allowed pair"
        shown = [picture(folder / "bars_correlated_ratios.png", "inferred over true log-likelihood")]
        yield _figure(8, "correlated bars, log-likelihood of pairs", "forbidden pairs far less likely", ours, shown)
    parts = {"truth": "generating parameters", "elbo": "ELBO of all runs", "samples": "data and samples"}
    names = [(folder / f"bars_correlated_{name}.png", caption) for name, caption in parts.items()]
    shown = [picture(path, caption) for path, caption in names if path.is_file()]
    if shown:
        title = "correlated bars: generating parameters, ELBO over epochs, data and samples"
        ours = f"all bars in {bars['runs_with_all_bars']} of {bars['runs']} runs, {_best_elbo(bars)}"
        yield _figure(9, title, "the best of ten runs is shown, pi = 2/8, sigma2 = 0.01", ours, shown)


def _best_elbo(found: dict[str, Any]) -> str:
    return f"the best with an ELBO of {found['elbo']:.2f} nats (true log-likelihood {found['log_likelihood_true']:.2f})"


def _read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text()) if path.is_file() else {}
    assert isinstance(content, dict)
    return content


def table(name: str, outputs: Path) -> str:
    """A table of the paper, the origin of rows told by colour, style and word; nothing if none is ours."""
    content, rows = tables.collect(name, outputs)
    if all(row.origin == "cited" for row in rows):
        return ""
    head = "".join(f"<th>{html.escape(word)}</th>" for word in tables.header(content["columns"]))
    body = ""
    for row, line in zip(rows, tables.as_lines(content, rows), strict=True):
        body += f'<tr class="{row.origin}">' + "".join(map(_cell, line)) + "</tr>\n"
    title = html.escape(f"PSNR in dB: {content['title']}. {tables.LEGEND}")
    return f'<p>{title}</p>\n<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _cell(text: str) -> str:
    """A cell of a table; words may be broken into lines, numbers not, and where there is nothing stands a dash."""
    text = text or "-"
    kind = ' class="number"' if NUMBERS.fullmatch(text) else ""
    return f"<td{kind}>{html.escape(text)}</td>"


def written_tables(path: Path) -> str:
    """The tables of a Markdown file, the first row of each being its head."""
    rows = [
        line.strip("|").split("|") if line.startswith("|") else []
        for line in path.read_text().splitlines()
        if not line.replace(" ", "").startswith("|--")
    ]
    found = []
    for is_table, lines in groupby(rows, key=bool):
        if is_table:
            body = ""
            for line in lines:
                words = [cell.strip() for cell in line]
                heads = (f"<th>{html.escape(word)}</th>" for word in words)
                body += f"<tr>{''.join(map(_cell, words) if body else heads)}</tr>\n"
            found.append(f'<div class="wide"><table>{body}</table></div>')
    return "".join(found)


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
    if (record.RECORDED / record.CURVES).is_file():
        shown = picture(record.RECORDED / record.CURVES, "PSNR over epochs, every recorded run")
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
    machines = "".join(f"<li>{html.escape(text)}</li>" for text in made_with(outputs)) or "<li>none here</li>"
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
    parser = argparse.ArgumentParser(prog="scripts.paper.report", description=__doc__.splitlines()[0])
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
