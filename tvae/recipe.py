"""The default recipe: options that were left open (null), chosen for the data at hand.

What an image needs depends on its noise, which is estimated from the image itself and never told. The rules and the
figures behind them are in the README; every one of them can be overruled by setting the option.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tvae.config import BarsConfig, Config, ImageConfig, UserError, inconsistencies
from tvae.datasets import Picture
from tvae.datasets.images import make_picture


def complete(config: Config, picture: Picture | None = None) -> Config:
    """A copy of the configuration with every open option filled in; `picture`: the image, if it is not to be read."""
    dataset, model, epochs = config.dataset, config.model, config.epochs
    if isinstance(dataset, BarsConfig):
        n_latents = model.n_latents or 2 * dataset.size
        epochs = epochs or 200
    elif isinstance(dataset, ImageConfig):
        picture = picture or make_picture(config)
        noise = estimate_noise(picture.noisy, picture.missing) * 255 / picture.image.peak
        dataset = replace(dataset, patch_size=dataset.patch_size or (12 if noise > 35 else 8))
        n_latents = model.n_latents or 64
        epochs = epochs or 20
    hidden = [n_latents] if model.hidden is None else model.hidden
    model = replace(model, n_latents=n_latents, hidden=hidden)
    completed = replace(config, dataset=dataset, model=model, epochs=epochs)
    problems = inconsistencies(completed)
    if problems:
        raise UserError(*problems)
    return completed


def estimate_noise(pixels: np.ndarray, missing: np.ndarray | None) -> float:
    """Standard deviation of white noise in an image (H, W, C): the median of the finest diagonal details.

    (a - b - c + d) / 2 of a 2x2 block has the noise's deviation and little of the picture; the median of its absolute
    value, over 0.6745, ignores the edges that remain (Donoho and Johnstone 1994).
    """
    blocks = pixels[:-1, :-1] - pixels[:-1, 1:] - pixels[1:, :-1] + pixels[1:, 1:]
    if missing is not None:
        known = ~(missing[:-1, :-1] | missing[:-1, 1:] | missing[1:, :-1] | missing[1:, 1:])
        blocks = blocks[known]
    return float(np.median(np.abs(blocks))) / 2 / 0.6745 if blocks.size else 0.0
