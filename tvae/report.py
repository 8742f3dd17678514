"""What a user sees: TensorBoard, history.csv, metrics.json and figures, all in the data's own units."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

import tvae
from tvae.checkpoint import write_atomically
from tvae.config import flat
from tvae.fit import Epoch, Fit

METRICS = ("psnr", "psnr_input", "ssim")  # null where no clean image is known
BETWEEN = (0.2, 0.35, 0.6)  # colour between the pictures of a grid


class Report:
    """Writes what a run shows to its directory; `history` holds a row for each epoch."""

    def __init__(self, directory: Path, fit: Fit, shape: tuple[int, ...], history: list[dict[str, Any]]):
        self.directory, self.fit, self.shape, self.history = directory, fit, shape, history
        self.facts: dict[str, Any] = {}  # what the data set knows: figures to compare with
        self.writer = SummaryWriter(str(directory / "tensorboard"), purge_step=fit.epoch + 1 if fit.epoch else None)

    def add_epoch(self, epoch: Epoch) -> None:
        self.history.append(asdict(epoch))
        for name, value in asdict(epoch).items():
            if name != "epoch":
                self.writer.add_scalar(name, value, epoch.epoch)
        for name, value in self.facts.items():
            self.writer.add_scalar(name, value, epoch.epoch)
        self.writer.add_histogram("pi", self.fit.model.pi.cpu(), epoch.epoch)
        if epoch.epoch == 1 or epoch.epoch % self.fit.config.picture_every == 0:
            self.writer.add_image(
                "decoder", as_grid(one_hot_outputs(self.fit), self.shape), epoch.epoch, dataformats="HWC"
            )

    def metrics(self, status: str) -> dict[str, Any]:
        last = self.history[-1] if self.history else {}
        seconds = sum(row["seconds"] for row in self.history)
        return {
            "status": status,
            "elbo": last.get("elbo"),
            "epochs": len(self.history),
            "seconds": seconds,
            "seconds_per_epoch": seconds / len(self.history) if self.history else None,
            "sigma": last.get("sigma"),
            **dict.fromkeys(METRICS),
            **self.facts,
            "seed": self.fit.config.seed,
            "device": str(self.fit.data.device),
            "version": tvae.__version__,
        }

    def write(self, status: str) -> dict[str, Any]:
        """metrics.json and history.csv as of now."""
        metrics = self.metrics(status)
        write_atomically(self.directory / "metrics.json", (json.dumps(metrics, indent=2) + "\n").encode())
        if self.history:
            table = io.StringIO()
            rows = csv.DictWriter(table, list(self.history[0]), lineterminator="\n")
            rows.writeheader()
            rows.writerows(self.history)
            write_atomically(self.directory / "history.csv", table.getvalue().encode())
        self.writer.flush()
        return metrics

    def finish(self) -> dict[str, Any]:
        """Figures, the entry for comparing runs of a sweep, and the metrics of a finished run."""
        save_figure(self.directory / "figures" / "decoder.png", draw_decoder(self.fit, self.shape))
        save_figure(self.directory / "figures" / "training.png", draw_training(self.history, self.facts))
        metrics = self.write("finished")
        numbers = {f"final/{k}": v for k, v in metrics.items() if isinstance(v, float) and math.isfinite(v)}
        options = {k: v if isinstance(v, (bool, int, float)) else str(v) for k, v in flat(self.fit.config).items()}
        self.writer.add_hparams(options, numbers, run_name=".")
        self.writer.close()
        return metrics


@torch.no_grad()
def one_hot_outputs(fit: Fit) -> torch.Tensor:
    """(H, D): what each latent alone adds to the output of the state with none, in the data's units."""
    model = fit.model
    z = torch.eye(model.n_latents, dtype=fit.dtype, device=fit.data.device)
    mu = model.decoder(z) - model.decoder(torch.zeros_like(z[:1]))
    return mu.mul(fit.units.std).cpu()


def as_grid(rows: torch.Tensor, shape: tuple[int, ...], columns: int | None = None) -> np.ndarray:
    """(H, D) -> one RGB picture in [0, 1] of all H, on a common grey scale around zero = middle grey, blue between."""
    height, width = shape[:2]
    pictures = rows.reshape(len(rows), height, width, -1).mean(-1).numpy()
    columns = columns or math.ceil(math.sqrt(len(rows)))
    n_rows = math.ceil(len(rows) / columns)
    scale = max(float(np.abs(pictures).max()), 1e-12)
    grid = np.empty((n_rows * (height + 1) + 1, columns * (width + 1) + 1, 3), dtype=np.float32)
    grid[:] = BETWEEN
    for i, picture in enumerate(pictures):
        top, left = (i // columns) * (height + 1) + 1, (i % columns) * (width + 1) + 1
        grid[top : top + height, left : left + width] = 0.5 + 0.5 * picture[..., None] / scale
    return grid


def draw_decoder(fit: Fit, shape: tuple[int, ...]) -> Figure:
    order = fit.model.pi.cpu().argsort(descending=True)
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(as_grid(one_hot_outputs(fit)[order], shape))
    axes.set_title("what each latent adds to the output, most used first")
    axes.set_axis_off()
    return figure


def draw_training(history: list[dict[str, Any]], facts: dict[str, float]) -> Figure:
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("elbo", "sigma"), strict=True):
        axes.plot([row["epoch"] for row in history], [row[name] for row in history])
        true = facts.get({"elbo": "log_likelihood_true", "sigma": "sigma_true"}[name])
        if true is not None:
            axes.axhline(true, color="k", linestyle=":", label="generating parameters")
            axes.legend()
        axes.set_xlabel("epoch")
        axes.set_title({"elbo": "ELBO in nats per data point", "sigma": "sigma"}[name])
    return figure


def save_figure(path: Path, figure: Figure) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
