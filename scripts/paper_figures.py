"""The paper's figures that show data, in its order and under its numbers, what it says of each beside what we found.

Figures 1, 2, 5 and 6 are drawings of the method.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.html_pictures import picture
from scripts.recorded import VARIANTS, recorded_runs
from tvae.runs.run_directory import read_metrics

# pictures of `make bars` and `make natural` that have their place here
SHOWN = (
    "natural_elbo.png", "bars_fields.png", "bars_correlated_ratios.png", "bars_correlated_truth.png",
    "bars_correlated_elbo.png", "bars_correlated_samples.png",
)  # fmt: skip
KINDS = {"quick": "default recipe", "paper": "the paper's parameters"}


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
    for run in recorded_runs():
        if (run.table, run.column) == (table, column):
            by = f", {VARIANTS[run.variant].title}" if run.variant else ""
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
    """Whether a run of this name belongs to the column; numbers may be written 50 or 50.0."""
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
