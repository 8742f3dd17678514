"""Log lines of a run: where they go, and the lines before and after the work.

The opening line tells picture, model, and the time and memory that are forecast; the closing one what was found.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tvae.config.placement import rank_here
from tvae.config.schema import Config
from tvae.data.dataset import Dataset
from tvae.data.picture import Picture, in_units, size_of
from tvae.data.sets.image import ImageConfig
from tvae.restoration.cost import ENDING, seconds_by_states, slowness, stages, training_seconds
from tvae.restoration.memory import bytes_needed
from tvae.restoration.posterior_mean import Restored
from tvae.training.trainer import Fit

own = logging.getLogger("tvae")
log = logging.getLogger("tvae.train")


def log_to_terminal(prefix: str = "") -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(prefix.replace("%", "%%") + "%(message)s"))
    own.handlers[:] = [handler]
    own.setLevel(logging.WARNING if rank_here() else logging.INFO)


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append log lines to a file as well."""
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    own.addHandler(handler)
    try:
        yield
    finally:
        own.removeHandler(handler)
        handler.close()


def opening(config: Config, fit: Fit, dataset: Dataset) -> str:
    """The opening line. The time of a resumed run is that of what is left."""
    picture, options = dataset.picture, config.dataset
    if picture is None or not isinstance(options, ImageConfig):
        what = f"{options.name}: {fit.points.n_points} data points of {dataset.source.n_values} values"
        patches = ""
        seconds = training_seconds(fit)
    else:
        noise = in_units(picture.noise, picture.image)
        what = f"{config.image or options.name}: {_shown(picture)}, noise about {noise}"
        patches = f"patches of {options.patch_size}x{options.patch_size}, "
        seconds = training_seconds(fit) + _restoration_seconds(config, fit, picture)
    epochs = f"{fit.n_epochs} epochs" if fit.epoch == 0 else f"{fit.n_epochs - fit.epoch} of {fit.n_epochs} epochs left"
    model = f"{patches}{fit.model.n_latents} latents, {epochs}"
    memory = bytes_needed(config, dataset, has_states=True) / 2**30
    return f"{what}; {model}; about {as_time(seconds)} and {memory:.1f} GB of memory"


def _shown(picture: Picture) -> str:
    missing = 0.0 if picture.missing is None else 100 * float(picture.missing.mean())
    colours = " grey" if picture.noisy.shape[2] == 1 else ""
    return f"{size_of(picture.image)}{colours}, {missing:.3g} % missing"


def _restoration_seconds(config: Config, fit: Fit, picture: Picture) -> float:
    """Seconds of restoring the picture during training and at the end."""
    is_looked_at = picture.clean is not None or config.task == "train"
    n_looks = math.ceil((fit.n_epochs - fit.epoch) / config.restore_every) if is_looked_at else 0
    return (
        n_looks * seconds_by_states(config, fit, picture)
        + sum(stages(config, fit, picture).values())
        + slowness() * ENDING
    )


def tell_noise(config: Config, picture: Picture | None) -> None:
    """Log the noise model of a picture, once the run has been accepted."""
    if picture is None:
        return
    if picture.noise_model is not None:
        log.info("noise: %s", picture.noise_model)
        outliers = picture.noise_model.outliers
        if outliers is not None and config.outliers != "fill":
            n_outliers = outliers.any(-1).sum()
            log.info(
                "%d pixels look like salt and pepper or hot pixels and are kept; outliers=fill fills them in",
                n_outliers,
            )
    elif config.noise_model == "auto" and (picture.missing is None or not config.keep_known):
        log.info("noise: assumed to be white Gaussian; the picture is too small, or too little of it is known, to tell")


def warn_of_blind_patches(fit: Fit, dataset: Dataset) -> None:
    """Warn of patches without a known pixel: they get the mean of the states' outputs under the prior."""
    n_blind = sum(fit.team.gather(dataset.source.n_blind(fit.points.own)))
    if n_blind and fit.team.is_leader:
        log.warning(
            "%d of %d patches have no known pixel; there the model restores what it expects of any patch "
            "(a larger dataset.patch_size reaches further)", n_blind, fit.points.n_points,
        )  # fmt: skip


def closing(config: Config, picture: Picture, restored: Restored, metrics: dict[str, Any], path: Path) -> str:
    """The closing line: noise found and removed, quality where it is known, time and place."""
    words = [f"{config.image or config.dataset.name}: {size_of(picture.image)}"]
    if picture.missing is not None:
        words.append(f"{100 * float(picture.missing.mean()):.3g} % filled in")
    if restored.noise_level is not None:
        known = np.ones(picture.noisy.shape, dtype=bool) if picture.known is None else picture.known
        removed = float(np.std((picture.noisy - restored.pixels)[known]))
        found = f"{in_units(restored.noise_level, picture.image)} {'found' if config.sigma is None else 'told'}"
        words.append(f"noise {found}, {in_units(removed, picture.image).split()[0]} removed")
    if metrics["psnr"] is not None:
        before = "" if metrics["psnr_input"] is None else f"{metrics['psnr_input']:.2f} -> "
        words.append(f"PSNR {before}{metrics['psnr']:.2f} dB, SSIM {metrics['ssim']:.4f}")
    return f"{', '.join(words)}; finished in {as_time(metrics['seconds_total'])}: {path}"


def summary(metrics: dict[str, Any], path: Path) -> str:
    """The last line of a finished run, beside the truth where that is known."""
    true = metrics.get("log_likelihood_true")
    beside = "" if true is None else f" (log-likelihood of the truth {true:.4f})"
    words = [
        f"finished in {as_time(metrics.get('seconds_total') or metrics['seconds'])}: "
        f"ELBO {metrics['elbo']:.4f}{beside}, sigma {metrics['sigma']:.4g}"
    ]
    if metrics.get("bars") is not None:
        words.append(f"{metrics['bars_found']} of {metrics['bars']} bars found")
    if metrics["psnr"] is not None:
        before = "" if metrics["psnr_input"] is None else f" (input {metrics['psnr_input']:.2f} dB)"
        words.append(f"PSNR {metrics['psnr']:.2f} dB{before}, SSIM {metrics['ssim']:.4f}")
        if metrics.get("psnr_model") is not None:
            words.append(f"the model alone {metrics['psnr_model']:.2f} dB")
    words.append(f"results in {path}")
    return "; ".join(words)


def as_time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"
