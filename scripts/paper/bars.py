"""The paper's first experiment (Appendix B): judge the runs of `make bars` and draw its figures.

    python -m scripts.paper.bars [outputs/bars/runs] [outputs/bars]

Of the finished runs on `bars` and on `bars_correlated` found below the first folder, the one with the highest ELBO is
taken, as in the paper. Written are, for each of the two: the decoder's output for the one-hot states over epochs, the
ELBO of all runs beside the log-likelihood of the generating parameters, data beside samples from the trained model, for
the correlated bars the generating parameters and the log-likelihood of pairs of bars, inferred against true; and
`bars.json` with the figures.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from tvae.config.checks import read_config
from tvae.config.recipe import prepare
from tvae.data.dataset import DataConfig, Dataset
from tvae.data.sets.bars import SIMILAR, BarsConfig, bar_images, inhibited_pairs, match_bars
from tvae.errors import UserError
from tvae.inference.states import all_states
from tvae.inference.streams import generator
from tvae.io.atomic import write_atomically
from tvae.model.decoder import Mlp
from tvae.model.vae import Model, log_likelihood
from tvae.runs.callbacks.figures import as_grid, one_hot_outputs, save_figure
from tvae.runs.files import CONFIG, HISTORY, METRICS, TENSORBOARD_DIR
from tvae.runs.initialise import load_model
from tvae.runs.run_directory import read_metrics
from tvae.runs.setup import make_fit, start_config


@dataclass
class Run:
    directory: Path
    config: BarsConfig
    metrics: dict[str, Any]
    model: Model
    similarity: Tensor  # (n_bars,): cosine of each one-hot output with the bar it stands for


def load_runs(directory: Path) -> list[Run]:
    runs = []
    for path in sorted(directory.glob(f"*/{METRICS}")):
        metrics = read_metrics(path.parent)
        try:
            config = read_config(path.parent / CONFIG).dataset
        except UserError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        if isinstance(config, BarsConfig) and metrics and metrics["status"] == "finished":
            model = load_model(path.parent)[0].double()
            runs.append(Run(path.parent, config, metrics, model, match_bars(model, config.size)))
    return runs


def dataset_of(config: BarsConfig) -> Dataset:
    return config.make(DataConfig(dataset=config), None)


def fields_of_start(directory: Path) -> list[tuple[int, Tensor]]:
    """(epoch, what each latent adds (H, D)) of the start that a run took, by training all its starts again.

    Nothing if the run had a single start, whose epochs are its own.
    """
    config, dataset = prepare(read_config(directory / CONFIG))
    starts = []
    for number in range(config.n_starts if config.n_starts > 1 else 0):
        trial = make_fit(start_config(config, number), dataset)
        shown = [(0, one_hot_outputs(trial))]
        for epoch in trial.epochs():
            shown.append((epoch.epoch, one_hot_outputs(trial)))
        starts.append((epoch.elbo, shown))
    return max(starts, key=lambda start: start[0], default=(0, []))[1]


class Pairs(NamedTuple):
    """The noiseless pictures of two bars, the forbidden pairs first, and their log p(x)."""

    x: Tensor  # (P, D)
    inferred: Tensor  # (P,)
    true: Tensor  # (P,)
    n_forbidden: int


@torch.no_grad()
def pair_likelihoods(run: Run) -> Pairs:
    bars, size = bar_images(run.config.size), run.config.size
    forbidden = {tuple(sorted(pair)) for pair in inhibited_pairs(size)}
    pairs = sorted(combinations(range(2 * size), 2), key=lambda pair: pair not in forbidden)
    x = torch.stack([bars[a] + bars[b] for a, b in pairs])
    truth = dataset_of(run.config).truth
    assert truth is not None
    inferred, true = (log_likelihood(m, x, all_states(m.n_latents).double()) for m in (run.model, truth))
    return Pairs(x, inferred, true, len(forbidden))


def draw_fields(run: Run, n_rows: int = 10) -> Figure:
    """Fields over epochs, from the initialisation on; the epochs of the start that a run took come first."""
    shape = (run.config.size, run.config.size)
    pictures = [(epoch, as_grid(fields, shape)) for epoch, fields in fields_of_start(run.directory)]
    n_before = pictures[-1][0] if pictures else 0
    events = EventAccumulator(str(run.directory / TENSORBOARD_DIR), {"images": 0}).Reload().Images("decoder")
    for event in events:
        picture = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
        pictures.append((n_before + event.step, picture))
    chosen = sorted({round(i) for i in np.geomspace(1, len(pictures), n_rows)})
    rows = [(f"epoch {epoch}", picture) for epoch, picture in (pictures[i - 1] for i in chosen)]
    rows.append(("true", as_grid(bar_images(run.config.size), shape)))
    n_columns = (len(rows) + 1) // 2
    figure = Figure(figsize=(2 * n_columns, 4.8), layout="constrained")
    for place, (title, picture) in enumerate(rows):
        axes = figure.add_subplot(2, n_columns, place + 1)
        axes.imshow(picture)
        axes.set_title(title)
        axes.set_axis_off()
    figure.suptitle("what each latent adds to the decoder's output")
    return figure


def draw_elbos(runs: list[Run], best: Run) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    lowest = true = best.metrics["log_likelihood_true"]
    for run in runs:
        with open(run.directory / HISTORY) as file:
            rows = list(csv.DictReader(file))
        lowest = min(lowest, *(float(row["elbo"]) for row in rows))
        style = {"color": "C0", "linewidth": 2, "label": "best run", "zorder": 3} if run is best else {"color": "0.7"}
        axes.plot([int(row["epoch"]) for row in rows], [float(row["elbo"]) for row in rows], **style)
    axes.axhline(true, color="k", linestyle=":", label="log-likelihood of the generating parameters")
    axes.set_ylim(max(lowest - 1, true - 45), true + 2)  # a decoder at random may be far below
    axes.set_xlabel("epoch of the run, after its starts")
    axes.set_ylabel("ELBO in nats per data point")
    axes.legend(loc="lower right")
    return figure


@torch.no_grad()
def draw_samples(run: Run) -> Figure:
    shape = (run.config.size, run.config.size)
    data = dataset_of(run.config).source.known_values()[:25]
    samples = run.model.sample(25, generator(0, "samples"))
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    for axes, (title, x) in zip(
        figure.subplots(1, 2), (("data", data), ("samples from the model", samples)), strict=True
    ):
        axes.imshow(as_grid(x, shape))
        axes.set_title(title)
        axes.set_axis_off()
    return figure


def draw_pairs(run: Run) -> Figure:
    pairs = pair_likelihoods(run)
    n = pairs.n_forbidden
    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(pairs.true[n:], pairs.inferred[n:], "o", label="allowed pairs")
    axes.plot(pairs.true[:n], pairs.inferred[:n], "s", label="forbidden pairs")
    low, high = axes.get_xlim()
    axes.plot([low, high], [low, high], "k:", zorder=0)
    axes.set_xlabel("true log-likelihood in nats")
    axes.set_ylabel("inferred log-likelihood in nats")
    axes.legend()
    return figure


def draw_ratios(run: Run, n_shown: int = 8) -> Figure:
    """The paper's Figure 8: inferred over true log-likelihood, and below it each data point with the inferred one."""
    pairs, shape = pair_likelihoods(run), (run.config.size, run.config.size)
    figure = Figure(figsize=(1.3 * n_shown, 4), layout="constrained")
    grid = figure.add_gridspec(2, n_shown, height_ratios=[2, 1])
    axes = figure.add_subplot(grid[0, :])
    colours = ["C1" if place < pairs.n_forbidden else "C0" for place in range(n_shown)]
    axes.bar(range(n_shown), (pairs.inferred / pairs.true)[:n_shown].numpy(), color=colours)
    axes.axhline(1, color="k", linestyle=":")
    axes.set_xlim(-0.5, n_shown - 0.5)
    axes.set_xticks([])
    axes.set_ylabel("inferred / true")
    axes.set_title(f"log p(x) of two bars; the first {pairs.n_forbidden} pairs exclude each other")
    for place in range(n_shown):
        below = figure.add_subplot(grid[1, place])
        below.imshow(pairs.x[place].view(shape).numpy(), cmap="gray", vmin=0)
        below.set_xlabel(f"{pairs.inferred[place]:.1f}")
        below.set_xticks([])
        below.set_yticks([])
    return figure


@torch.no_grad()
def draw_truth(config: BarsConfig) -> Figure:
    """The left of the paper's Figure 9: the generating weights, W0 above the bars W1."""
    truth = dataset_of(config).truth
    assert truth is not None
    assert isinstance(truth.decoder, Mlp)
    first, last = truth.decoder.weights[0], truth.decoder.weights[-1]
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(first.numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
    left.set_title("W0: which bar suppresses which")
    right.imshow(as_grid(last.detach(), (config.size, config.size)))
    right.set_title("W1: the bars")
    right.set_axis_off()
    figure.suptitle(f"generating parameters; pi = {truth.pi[0]:g}, sigma2 = {config.sigma2:g}")
    return figure


def judge(runs: list[Run]) -> tuple[Run, dict[str, Any]]:
    """The run with the highest ELBO, and the figures about it and the others."""
    best = max(runs, key=lambda run: run.metrics["elbo"])
    figures = {
        "runs": len(runs),
        "runs_with_all_bars": sum(bool((run.similarity > SIMILAR).all()) for run in runs),
        "best": best.directory.name,
        "cosine_min": best.similarity.min().item(),
    }
    for name in ("elbo", "log_likelihood_true", "sigma", "sigma_true", "epochs", "seconds"):
        figures[name] = best.metrics[name]
    if best.config.correlated:
        pairs = pair_likelihoods(best)
        forbidden, allowed = pairs.inferred[: pairs.n_forbidden], pairs.inferred[pairs.n_forbidden :]
        figures["gap_allowed_forbidden"] = (allowed.min() - forbidden.max()).item()
    return best, figures


def as_markdown(summary: dict[str, dict[str, Any]]) -> str:
    names = ["runs with all bars", "best run's ELBO", "true log-likelihood", "sigma (true)", "epochs", "seconds a run"]
    lines = [["", *names], ["---"] * (len(names) + 1)]
    for name, found in summary.items():
        lines.append([
            name.replace("_", ", "), f"{found['runs_with_all_bars']} of {found['runs']}", f"{found['elbo']:.2f}",
            f"{found['log_likelihood_true']:.2f}", f"{found['sigma']:.4f} ({found['sigma_true']:g})",
            f"{found['epochs']}", f"{found['seconds']:.0f}",
        ])  # fmt: skip
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(source: str = "outputs/bars/runs", target: str = "outputs/bars") -> None:
    runs = load_runs(Path(source))
    if not runs:
        sys.exit(f"{source}: no finished runs on bars there; `make bars` makes them")
    out = Path(target)
    out.mkdir(parents=True, exist_ok=True)
    summary = {}
    for name, correlated in (("bars", False), ("bars_correlated", True)):
        chosen = [run for run in runs if run.config.correlated == correlated]
        if not chosen:
            continue
        best, found = judge(chosen)
        summary[name] = found
        drawn = {"fields": draw_fields(best), "elbo": draw_elbos(chosen, best), "samples": draw_samples(best)}
        if correlated:
            drawn |= {"pairs": draw_pairs(best), "ratios": draw_ratios(best), "truth": draw_truth(best.config)}
        for kind, figure in drawn.items():
            save_figure(out / f"{name}_{kind}.png", figure)
        print(f"{name}: {found['runs_with_all_bars']} of {found['runs']} runs found all bars; best: {found['best']}")
        print(f"  ELBO {found['elbo']:.3f}, log-likelihood of the truth {found['log_likelihood_true']:.3f}")
        print(f"  sigma {found['sigma']:.4f}, true {found['sigma_true']:.4f}; cosine >= {found['cosine_min']:.4f}")
        if correlated:
            print(f"  forbidden pairs are {found['gap_allowed_forbidden']:.1f} nats below the least likely allowed one")
    write_atomically(out / "bars.json", (json.dumps(summary, indent=2) + "\n").encode())
    write_atomically(out / "bars.md", as_markdown(summary).encode())
    print(f"figures: {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
