"""The record of a run: TensorBoard, history.csv, metrics.json, figures and pictures, in the data's own units."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import tvae
from tvae.config.checks import flat
from tvae.config.schema import Config
from tvae.data.dataset import Dataset
from tvae.io.atomic import write_atomically
from tvae.restoration.metrics import METRICS_OVER_TIME, UNKNOWN, quality
from tvae.restoration.posterior_mean import Restored
from tvae.runs.callbacks.figures import Results, as_grid, one_hot_outputs, write_figures
from tvae.runs.callbacks.output_pictures import as_shown, uncertainty_scale, write_pictures
from tvae.runs.files import FIGURE_DIR, HISTORY, METRICS, TENSORBOARD_DIR
from tvae.runs.machine import machine
from tvae.training.trainer import Epoch, Fit

log = logging.getLogger(__name__)

OF_WEIGHTS_AT_RANDOM = ("elbo", "elbo_test")  # in the first epoch; TensorBoard's axis would show nothing else


class Record:
    """Results of a run so far; nothing is written: for Python calls, and for ranks other than the leader."""

    def __init__(
        self, config: Config, fit: Fit, dataset: Dataset, history: list[dict[str, Any]], facts: dict[str, Any]
    ):
        """`history`: a row for each epoch; `facts`: what is known of the truth."""
        self.config, self.fit, self.dataset, self.history = config, fit, dataset, history
        self.facts: dict[str, Any] = {**UNKNOWN, **facts}
        self.restored: Restored | None = None
        self.started, self.seconds_before = time.monotonic(), sum(row["seconds"] for row in history)

    def add_epoch(self, epoch: Epoch, restored: Restored | None) -> dict[str, Any]:
        """A row of history, which is returned; `restored`: the picture as of now."""
        row: dict[str, Any] = asdict(epoch)
        if self.dataset.picture is not None:
            found = UNKNOWN if restored is None else quality(self.dataset.picture, restored)
            row |= {name: found[name] for name in METRICS_OVER_TIME}
        self.history.append(row)
        return row

    def add_bound(self, elbo: float, recovered: dict[str, int]) -> None:
        """The ELBO of the final parameters; that of history is an average over an epoch in which they changed.

        `recovered`: how much of the truth they hold.
        """
        self.facts |= {"elbo": elbo, **recovered}

    def add_restored(self, restored: Restored) -> None:
        """The final picture."""
        assert self.dataset.picture is not None
        self.restored = restored
        self.facts |= {**quality(self.dataset.picture, restored), "psnr_model": restored.psnr_model}
        self.facts["uncertainty_scale"] = uncertainty_scale(restored)
        self.facts["noise_level"] = restored.noise_level

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
            "seconds_total": self.seconds_total(),
            "sigma": last.get("sigma"),
            **self.facts,
            "noise_model": self._noise_model(),
            "seed": self.config.seed,
            "device": str(self.fit.device),
            "version": tvae.__version__,
            "machine": machine(),
        }

    def seconds_total(self) -> float:
        """Seconds of training and restoration, without work that an interruption has lost."""
        return self.seconds_before + time.monotonic() - self.started

    def _noise_model(self) -> dict[str, Any] | None:
        """The facts about the noise of the picture, if there is one."""
        picture = self.dataset.picture
        return None if picture is None or picture.noise_model is None else picture.noise_model.facts()

    def results(self) -> Results:
        return Results(self.fit, self.dataset, self.history, self.facts, self.restored)

    def write(self, status: str) -> dict[str, Any]:
        """The metrics as of now."""
        return self.metrics(status)

    def finish(self) -> dict[str, Any]:
        """The metrics of a finished run."""
        return self.write("finished")


class NoWriter:
    """A writer in place of TensorBoard's that writes nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _open_tensorboard(directory: Path, purge_step: int | None) -> Any:
    """TensorBoard's writer, which takes only names in UTF-8."""
    if str(directory) == _plain(directory):
        from torch.utils.tensorboard import SummaryWriter  # takes a while to import

        return SummaryWriter(str(directory), purge_step=purge_step)
    log.warning("%s: a name that is not UTF-8, so nothing is written for TensorBoard", _plain(directory))
    return NoWriter()


def _plain(value: object) -> str:
    """The value as text, with bytes that are no characters escaped."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


class WrittenRecord(Record):
    """A record that is kept in the run directory."""

    def __init__(
        self,
        directory: Path,
        config: Config,
        fit: Fit,
        dataset: Dataset,
        history: list[dict[str, Any]],
        facts: dict[str, Any],
    ):
        super().__init__(config, fit, dataset, history, facts)
        self.directory = directory
        self.purge_step = fit.epoch + 1 if fit.epoch else None

    @cached_property
    def writer(self) -> Any:
        """TensorBoard's, opened when something is first written."""
        writer = _open_tensorboard(self.directory / TENSORBOARD_DIR, self.purge_step)
        if self.dataset.picture is not None and self.purge_step is None:
            shown = as_shown(self.dataset.picture, self.dataset.picture.noisy)
            writer.add_image("input", shown, 0, dataformats="HWC")
        return writer

    def _show(self, name: str, pixels: np.ndarray, epoch: int) -> None:
        """A picture for TensorBoard."""
        assert self.dataset.picture is not None
        self.writer.add_image(name, as_shown(self.dataset.picture, pixels), epoch, dataformats="HWC")

    def add_epoch(self, epoch: Epoch, restored: Restored | None) -> dict[str, Any]:
        """Add scalars and, every so often, pictures to TensorBoard as well."""
        row = super().add_epoch(epoch, restored)
        known = {name: value for name, value in {**self.facts, **row}.items() if value is not None and name != "epoch"}
        if restored is not None and self.dataset.picture is not None:
            self._show("restored", restored.pixels, epoch.epoch)
        for name, value in known.items():
            if epoch.epoch > 1 or name not in OF_WEIGHTS_AT_RANDOM:
                self.writer.add_scalar(name, value, epoch.epoch)
        self.writer.add_histogram("pi", self.fit.model.pi.cpu(), epoch.epoch)
        if epoch.epoch == 1 or epoch.epoch % self.config.picture_every == 0:
            picture = as_grid(one_hot_outputs(self.fit), self.dataset.shape)
            self.writer.add_image("decoder", picture, epoch.epoch, dataformats="HWC")
        return row

    def write(self, status: str) -> dict[str, Any]:
        """Write metrics.json and history.csv as well."""
        metrics = self.metrics(status)
        write_json(self.directory / METRICS, metrics)
        if self.history:
            table = io.StringIO()
            rows = csv.DictWriter(table, list(self.history[0]), lineterminator="\n")
            rows.writeheader()
            rows.writerows(self.history)
            write_atomically(self.directory / HISTORY, table.getvalue().encode())
        self.writer.flush()
        return metrics

    def add_restored(self, restored: Restored) -> None:
        super().add_restored(restored)
        assert self.dataset.picture is not None
        self.facts["sha256"] = write_pictures(self.directory, self.dataset.picture, restored)
        self._show("restored, final", restored.pixels, self.fit.epoch)

    def finish(self) -> dict[str, Any]:
        """Write figures as well, and the entry for comparing runs of a sweep."""
        write_figures(self.directory / FIGURE_DIR, self.results())
        metrics = self.write("finished")
        numbers = {f"final/{k}": v for k, v in metrics.items() if isinstance(v, float) and math.isfinite(v)}
        options = {k: v if isinstance(v, (bool, int, float)) else _plain(v) for k, v in flat(self.config).items()}
        # TensorBoard takes the columns of its table from one of the runs, so that each names what any may have.
        names = dict.fromkeys([*(f"final/{name}" for name in METRICS_OVER_TIME), *numbers], 0.0)
        if not isinstance(self.writer, NoWriter):
            from torch.utils.tensorboard.summary import hparams

            for summary in hparams(options, names):
                self.writer.file_writer.add_summary(summary)
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, self.fit.epoch)
        self.writer.close()
        return metrics


class RestoredRecord(Record):
    """The record of an existing run, restored into another directory."""

    def __init__(
        self, directory: Path, config: Config, fit: Fit, dataset: Dataset, of_run: dict[str, Any], source: Path
    ):
        super().__init__(config, fit, dataset, [], {})
        self.directory, self.of_run, self.source = directory, of_run, source

    def metrics(self, status: str) -> dict[str, Any]:
        return {**self.of_run, **self.facts, "status": status, "run": str(self.source)}

    def finish(self) -> dict[str, Any]:
        assert self.dataset.picture is not None
        assert self.restored is not None
        self.facts["sha256"] = write_pictures(self.directory, self.dataset.picture, self.restored)
        write_figures(self.directory / FIGURE_DIR, self.results(), ["comparison.png", "noise.png"])
        metrics = self.metrics("finished")
        write_json(self.directory / METRICS, metrics)
        return metrics


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
