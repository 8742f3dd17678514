"""What a user sees: TensorBoard, history.csv, metrics.json, figures and pictures, all in the data's own units."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter

import tvae
from tvae.atomic import write_atomically
from tvae.check import flat
from tvae.datasets import Dataset, Picture
from tvae.device import machine
from tvae.figures import (
    as_grid,
    draw_comparison,
    draw_decoder,
    draw_latents,
    draw_training,
    one_hot_outputs,
    save_figure,
)
from tvae.fit import Epoch, Fit
from tvae.images import to_output, to_png, write_image, write_tiff
from tvae.restore import Restored, quality, restore


class Report:
    """Writes what a run shows to its directory; `history` holds a row for each epoch."""

    def __init__(self, directory: Path, fit: Fit, dataset: Dataset, history: list[dict[str, Any]]):
        self.directory, self.fit, self.dataset, self.history = directory, fit, dataset, history
        self.facts: dict[str, Any] = dict.fromkeys(("psnr", "psnr_input", "ssim"))  # beside what an epoch reports
        self.writer = SummaryWriter(str(directory / "tensorboard"), purge_step=fit.epoch + 1 if fit.epoch else None)

    def add_epoch(self, epoch: Epoch, quality: dict[str, float | None]) -> None:
        """A row of history, of TensorBoard scalars and, every so often, of pictures; `quality`: of a restored image."""
        row = {**asdict(epoch), **quality}
        self.history.append(row)
        known = {name: value for name, value in {**self.facts, **row}.items() if value is not None and name != "epoch"}
        for name, value in known.items():
            self.writer.add_scalar(name, value, epoch.epoch)
        self.writer.add_histogram("pi", self.fit.model.pi.cpu(), epoch.epoch)
        if epoch.epoch == 1 or epoch.epoch % self.fit.config.picture_every == 0:
            picture = as_grid(one_hot_outputs(self.fit), self.dataset.shape)
            self.writer.add_image("decoder", picture, epoch.epoch, dataformats="HWC")

    def add_picture(self, array: np.ndarray) -> None:
        """The restored image as of now, (H, W) or (H, W, C) of 8 or 16 bit."""
        shown = (array[..., None] if array.ndim == 2 else array[..., :3]) / np.iinfo(array.dtype).max
        self.writer.add_image("restored", shown, self.fit.epoch, dataformats="HWC")

    def metrics(self, status: str) -> dict[str, Any]:
        last = self.history[-1] if self.history else {}
        seconds = sum(row["seconds"] for row in self.history)
        return {
            "status": status,
            "elbo": last.get("elbo"),
            "elbo_test": last.get("elbo_test"),
            "epochs": len(self.history),
            "seconds": seconds,
            "seconds_per_epoch": seconds / len(self.history) if self.history else None,
            "sigma": last.get("sigma"),
            **self.facts,
            "seed": self.fit.config.seed,
            "device": str(self.fit.device),
            "version": tvae.__version__,
            "machine": machine(),
        }

    def write(self, status: str) -> dict[str, Any]:
        """metrics.json and history.csv as of now."""
        metrics = self.metrics(status)
        write_json(self.directory / "metrics.json", metrics)
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
        figures = self.directory / "figures"
        save_figure(figures / "decoder.png", draw_decoder(self.fit, self.dataset))
        save_figure(figures / "latents.png", draw_latents(self.fit))
        save_figure(figures / "training.png", draw_training(self.history, self.facts))
        metrics = self.write("finished")
        numbers = {f"final/{k}": v for k, v in metrics.items() if isinstance(v, float) and math.isfinite(v)}
        options = {k: v if isinstance(v, (bool, int, float)) else str(v) for k, v in flat(self.fit.config).items()}
        self.writer.add_hparams(options, numbers, run_name=".")
        self.writer.close()
        return metrics


class Unwritten(Report):
    """Of ranks other than the leader: holds what a report holds, and writes nothing."""

    def __init__(self, fit: Fit, history: list[dict[str, Any]]):
        self.fit, self.history, self.facts = fit, history, dict.fromkeys(("psnr", "psnr_input", "ssim"))

    def add_epoch(self, epoch: Epoch, quality: dict[str, float | None]) -> None:
        self.history.append({**asdict(epoch), **quality})

    def add_picture(self, array: np.ndarray) -> None:
        pass

    def write(self, status: str) -> dict[str, Any]:
        return self.metrics(status)

    def finish(self) -> dict[str, Any]:
        return self.metrics("finished")


def restore_to(path: Path, fit: Fit, dataset: Dataset, keep_observed: bool) -> dict[str, Any]:
    """Restore the image, write it to the run directory, and return what is to be said about it."""
    picture = dataset.picture
    assert picture is not None
    restored = restore(fit, picture, keep_observed, fit.config.restore_rounds)
    found = quality(restored, picture)
    scale = fit.ranks.lead(lambda: write_restored(path, picture, restored, found))
    return {**found, "uncertainty_scale": scale}


def write_restored(path: Path, picture: Picture, restored: Restored, found: dict[str, float | None]) -> float:
    """All pictures of a restored image; returns what white stands for in that of the uncertainty."""
    write_image(path / "input.png", to_png(picture.noisy, picture.image))
    write_image(path / "restored.png", to_png(restored.pixels, picture.image))
    if picture.image.dtype.kind == "f":
        write_image(path / "restored.tiff", to_output(restored.pixels, picture.image))
    scale = write_uncertainty(path, restored)
    save_figure(path / "figures" / "comparison.png", draw_comparison(picture, restored, found))
    return scale


def write_uncertainty(path: Path, restored: Restored) -> float:
    """The uncertainty as float TIFF and as a grey picture whose white is the returned value."""
    shown = restored.uncertainty.mean(-1)
    scale = float(shown.max()) or 1.0
    write_tiff(path / "uncertainty.tiff", restored.uncertainty)
    write_image(path / "uncertainty.png", (255 * shown / scale).round().astype("uint8"))
    return scale


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
