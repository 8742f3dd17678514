"""Figures of a run: what the latents stand for, how training went, and the image before and after."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tvae.data.dataset import Dataset
from tvae.inference.posterior import significant_states
from tvae.io.atomic import write_atomically
from tvae.io.image_file import stretched, visible
from tvae.model.packed import unpack
from tvae.noise.model import NoiseModel
from tvae.restoration.posterior_mean import Restored, first_page
from tvae.training.trainer import Fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 2000  # pixels, at most, along a side of what is compared; larger pictures are thinned out
BETWEEN = (0.2, 0.35, 0.6)  # colour between the pictures of a grid
TITLES = {"elbo": "ELBO in nats per data point", "sigma": "sigma", "psnr": "PSNR in dB"}
CURVES = {  # for each axis: column of the history and its label
    "elbo": {"elbo": "training data", "elbo_test": "held-out data"},
    "sigma": {"sigma": "learned"},
    "psnr": {"psnr": "restored"},
}
TRUE = {"elbo": "log_likelihood_true", "sigma": "sigma_true", "psnr": "psnr_input"}


@dataclass(frozen=True, eq=False)
class Results:
    """Results of a run, for its figures."""

    fit: Fit
    dataset: Dataset
    history: list[dict[str, Any]]  # a row for each epoch
    facts: dict[str, Any]  # known beside the history: the truth, quality
    restored: Restored | None = None


def canvas(width: float, height: float) -> Figure:
    """An empty figure of this size in inches. Matplotlib is imported for the first: it takes a third of a second."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@torch.no_grad()
def one_hot_outputs(fit: Fit) -> torch.Tensor:
    """(H, D): what each latent alone adds to the output of the state with none, in the data's units."""
    model = fit.model
    z = torch.eye(model.n_latents, dtype=model.pi.dtype, device=fit.device)
    mu = model.decoder(z) - model.decoder(torch.zeros_like(z[:1]))
    return mu.mul(fit.units.std).cpu()


def as_grid(rows: torch.Tensor, shape: tuple[int, ...], own_scale: bool = False) -> np.ndarray:
    """(H, D) -> one RGB picture in [0, 1] of all H, zero middle grey, on one scale or each on its own."""
    height, width = shape[:2]
    pictures = visible(rows.reshape(len(rows), height, width, -1).numpy())
    columns = math.ceil(math.sqrt(len(rows)))
    n_rows = math.ceil(len(rows) / columns)
    sizes = np.abs(pictures).max((1, 2, 3), keepdims=True)
    pictures = pictures / np.maximum(sizes if own_scale else sizes.max(), 1e-12)
    grid = np.empty((n_rows * (height + 1) + 1, columns * (width + 1) + 1, 3), dtype=np.float32)
    grid[:] = BETWEEN
    for i, picture in enumerate(pictures):
        top, left = (i // columns) * (height + 1) + 1, (i % columns) * (width + 1) + 1
        grid[top : top + height, left : left + width] = 0.5 + 0.5 * picture
    return grid


def draw_decoder(results: Results) -> Figure:
    """Draw the fields, most used first; those of whitened data also without the whitening."""
    fit, dataset = results.fit, results.dataset
    order = fit.model.pi.cpu().argsort(descending=True)
    fields = one_hot_outputs(fit)[order]
    whitening = dataset.whitening
    panels = [("what each latent adds to the output, most used first", fields)]
    if whitening is not None:
        panels.append(("the same without the whitening", torch.from_numpy(whitening.colour(fields.numpy()))))
    figure = canvas(6 * len(panels), 6.4)
    for axes, (title, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.imshow(as_grid(rows, dataset.shape, own_scale=whitening is not None), interpolation="nearest")
        axes.set_title(title)
        axes.set_axis_off()
    return figure


@torch.no_grad()
def draw_latents(results: Results) -> Figure:
    """Draw `pi`, sorted, and the number of latents that are on under q, over (at most 4096) data points."""
    fit = results.fit
    index = torch.arange(min(len(fit.points.own), 4096), device=fit.device)
    x, observed = fit.points.rows(index)
    packed, number = fit.points.sets.take(index), index + fit.points.own.start
    step = fit.backend.e_step(fit.model, fit.config.ea, x, packed, None, observed, number)
    rows = significant_states(step, 1e-3)
    n_on = unpack(rows.packed, fit.model.n_latents).sum(1)
    figure = canvas(8, 3.5)
    left, right = figure.subplots(1, 2)
    left.semilogy(fit.model.pi.sort(descending=True).values.cpu())
    left.set_title("pi, sorted")
    left.set_xlabel("latent")
    right.hist(n_on.cpu(), np.arange(int(n_on.max()) + 2) - 0.5, weights=rows.weight.cpu() / len(index))
    right.set_title("share of data points by latents that are on")
    right.set_xlabel("latents that are on")
    return figure


def draw_training(results: Results) -> Figure:
    """Draw ELBO, sigma and PSNR over epochs, with the truth where it is known."""
    history, facts = results.history, results.facts
    names = [name for name in CURVES if any(row.get(name) is not None for row in history)]
    figure = canvas(4 * len(names), 3.5)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for column, label in CURVES[name].items():
            known = [(row["epoch"], row[column]) for row in history if row.get(column) is not None]
            if known:
                axes.plot(*zip(*known, strict=True), marker="." if name == "psnr" else "", label=label)
        truth = facts.get(TRUE[name])
        if truth is not None:
            label = f"noisy image, {truth:.2f} dB" if name == "psnr" else "true"
            axes.axhline(truth, color="k", linestyle=":", label=label)
        if len(axes.lines) > 1:
            axes.legend()
        references = [] if truth is None or name == "psnr" else [truth]  # the noisy image may be 15 dB below
        axes.set_ylim(shown_range(history, CURVES[name], references))
        axes.ticklabel_format(useOffset=False)
        axes.set_xlabel("epoch")
        axes.set_title(TITLES[name])
    return figure


def shown_range(
    history: list[dict[str, Any]], columns: Iterable[str], references: Iterable[float] = ()
) -> tuple[float, float]:
    """Limits of an axis: they hold the references, and all epochs but the first tenth.

    Weights at random may lie far from all that follows: the ELBO of Table 1 begins at -3e7 and goes on at -363.
    """
    known = [[row[column] for column in columns if row.get(column) is not None] for row in history]
    later = [value for values in known[max(1, len(known) // 10) :] for value in values]
    shown = [*(later or itertools.chain(*known)), *references]
    margin = 0.1 * (max(shown) - min(shown) or 1)
    return min(shown) - margin, max(shown) + margin


def draw_comparison(results: Results) -> Figure | None:
    """Draw input, restored, uncertainty and difference (to the clean image where it is known, else to the input)."""
    picture, restored, quality = results.dataset.picture, results.restored, results.facts
    if picture is None or restored is None:
        return None
    step = math.ceil(max(picture.page_height, picture.noisy.shape[1]) / SHOWN)
    picture, restored = first_page(picture, restored, step)
    on_screen = stretched(picture.image)
    low, high = on_screen.low, on_screen.low + on_screen.peak
    reference = picture.noisy if picture.clean is None else picture.clean
    difference = np.abs(restored.pixels - reference)
    if picture.clean is None and picture.known is not None:
        difference = np.where(picture.known, difference, 0)

    def in_db(name: str) -> str:
        value = quality.get(name)
        return "" if value is None else f"\nPSNR {value:.2f} dB"

    other = "input" if picture.clean is None else "clean"
    panels = [
        ("input" + in_db("psnr_input"), picture.noisy, low, high, "gray"),
        ("restored" + in_db("psnr"), restored.pixels, low, high, "gray"),
        ("uncertainty", restored.uncertainty, 0, restored.uncertainty.max() or 1, "magma"),
        (f"difference to {other}", difference, 0, difference.max() or 1, "magma"),
    ]
    height, width = picture.noisy.shape[:2]
    figure = canvas(16, 4 * height / width + 0.8)
    for axes, (title, pixels, bottom, top, colours) in zip(figure.subplots(1, 4), panels, strict=True):
        is_map = colours == "magma"
        shown = pixels.mean(-1) if is_map or pixels.shape[-1] < 3 else (visible(pixels - low) / (high - low)).clip(0, 1)
        shown_as = axes.imshow(shown, cmap=colours, vmin=bottom, vmax=top, interpolation="nearest")
        if is_map:
            figure.colorbar(shown_as, ax=axes, shrink=0.8)
        axes.set_title(title)
        axes.set_axis_off()
    return figure


def draw_noise(results: Results) -> Figure | None:
    """Draw the noise model of the picture, if there is one."""
    picture = results.dataset.picture
    return None if picture is None or picture.noise_model is None else draw_noise_model(picture.noise_model)


def draw_noise_model(model: NoiseModel) -> Figure:
    """Variance against brightness, correlation between neighbours, and the bounds of the candidates."""
    table = model.covariance.table.diagonal().mean(-1)  # over channels
    line, correlation = model.line, table / table[0, 0]
    figure = canvas(12, 3.5)
    left, right, last = figure.subplots(1, 3)
    left.plot(line.mean, line.variance, "o", label="flattest blocks")
    ends = np.array([line.mean.min(), line.mean.max()])
    left.plot(ends, line.gain * ends + line.offset, label=f"{line.gain:.3g} x {line.offset:+.3g}")
    left.set_ylim(bottom=0)
    left.set_xlabel("brightness")
    left.set_title("variance of the noise")
    left.legend()
    lags = np.arange(len(correlation))
    right.plot(lags, correlation[0], marker="o", label="across")
    right.plot(lags, correlation[:, 0], marker="o", label="down")
    right.axhline(0, color="k", linewidth=0.5)
    right.set_xticks(lags)
    right.set_xlabel("pixels apart")
    right.set_title(f"correlation: {model.kind.replace('_', '-')}")
    right.legend()
    white = model.bounds["white"]
    last.barh(list(model.bounds), [nats - white for nats in model.bounds.values()])
    last.axvline(0, color="k", linewidth=0.5)
    last.set_xlabel("nats per value above white noise")
    last.set_title("bounds")
    return figure


# File name -> what it shows; None: there is nothing to show.
FIGURES: dict[str, Callable[[Results], Figure | None]] = {
    "decoder.png": draw_decoder,
    "latents.png": draw_latents,
    "training.png": draw_training,
    "comparison.png": draw_comparison,
    "noise.png": draw_noise,
}


def write_figures(folder: Path, results: Results, names: Iterable[str] = tuple(FIGURES)) -> None:
    for name in names:
        figure = FIGURES[name](results)
        if figure is not None:
            save_figure(folder / name, figure)


def save_figure(path: Path, figure: Figure) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
