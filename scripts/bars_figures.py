"""Figures of runs on bars: those of the paper's Appendix B."""

from __future__ import annotations

import csv
import io

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from scripts.bars_runs import Run, dataset_of, fields_of_start, pair_likelihoods
from tvae.data.sets.bars import BarsConfig, bar_images
from tvae.inference.streams import generator
from tvae.model.decoder import Mlp
from tvae.runs.callbacks.figures import as_grid
from tvae.runs.files import HISTORY, TENSORBOARD_DIR


def draw_fields_over_epochs(run: Run, n_rows: int = 10) -> Figure:
    """From the initialisation on; the epochs of the start that a run took come first."""
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
