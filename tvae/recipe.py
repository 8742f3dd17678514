"""The default recipe: options that were left open (null), chosen for the data at hand.

What an image needs depends on its noise, which is estimated from the image itself and never told: more noise takes
larger patches, hardly any (as in images that are only incomplete) a lower learning rate. Small images get fewer latents
and more epochs, large ones are thinned out for training. Every choice can be overruled by setting the option.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np

from tvae.check import inconsistencies
from tvae.config import ArrayConfig, BarsConfig, Config, ImageConfig, NaturalConfig, UserError
from tvae.datasets import Picture
from tvae.datasets.images import make_picture

log = logging.getLogger(__name__)

PATCHES_MAX = 150_000  # more than that are thinned out for training; restoration takes them all
N_VISITS = 2_500_000  # of data points, in all epochs: 40 epochs of a 256x256 image
N_PATCHES = 100_000  # of natural images, as in the paper
MEMORY_TO_TELL = 2.0  # GB


def complete(config: Config, picture: Picture | None = None) -> Config:
    """A copy of the configuration with every open option filled in; `picture`: the image, if it is not to be read."""
    dataset, model, epochs, n_patches = config.dataset, config.model, config.epochs, config.n_patches
    rate = config.lr.max or 0.01
    if isinstance(dataset, BarsConfig):
        n_latents = model.n_latents or 2 * dataset.size
        epochs = epochs or 200
    elif isinstance(dataset, NaturalConfig):
        n_patches = n_patches or N_PATCHES
        dataset = replace(dataset, n_test=n_patches // 10 if dataset.n_test is None else dataset.n_test)
        n_latents = model.n_latents or 300
        epochs = epochs or 100
        if n_patches < n_latents:
            log.warning(
                "n_patches=%d: fewer than model.n_latents=%d, which are more than can be learned", n_patches, n_latents
            )
    elif isinstance(dataset, ArrayConfig):
        n_latents = model.n_latents or 300
        epochs = epochs or 100
    elif isinstance(dataset, ImageConfig):
        picture = picture or make_picture(config)
        noise = estimate_noise(picture.noisy, picture.missing) * 255 / picture.image.peak
        rate = config.lr.max or (0.005 if noise > 10 else 0.0025)
        by_noise = 12 if noise > 35 else 10 if noise > 20 else 8
        patch_size = dataset.patch_size or min(by_noise, *picture.noisy.shape[:2])
        n_places = math.prod(max(1, side - patch_size + 1) for side in picture.noisy.shape[:2])
        train_stride = dataset.train_stride or math.ceil(math.sqrt(n_places / PATCHES_MAX))
        dataset = replace(dataset, patch_size=patch_size, train_stride=train_stride)
        n_points = n_places / train_stride**2
        n_latents = model.n_latents or (256 if n_points > 20_000 else 128 if n_points > 5_000 else 64)
        epochs = epochs or round(min(max(N_VISITS / n_points, 15), 200))
    hidden = [n_latents] if model.hidden is None else model.hidden
    model = replace(model, n_latents=n_latents, hidden=hidden)
    lr = replace(config.lr, max=rate)
    completed = replace(config, dataset=dataset, model=model, lr=lr, epochs=epochs, n_patches=n_patches)
    problems = inconsistencies(completed)
    if problems:
        raise UserError(*problems)
    if picture is not None:
        tell_memory(completed, picture)
    return completed


def tell_memory(config: Config, picture: Picture) -> None:
    """Say how much memory a large image will take, before it is taken, and how to need less."""
    options, n_latents = config.dataset, config.model.n_latents
    assert isinstance(options, ImageConfig)
    patch_size, train_stride = options.patch_size, options.train_stride
    assert patch_size is not None
    assert train_stride is not None
    assert n_latents is not None
    height, width, n_channels = picture.noisy.shape

    def count(stride: int) -> int:
        return math.prod(max(0, side - patch_size) // stride + 1 for side in (height, width))

    n_values = patch_size**2 * n_channels
    state_bytes = config.states.n_states * math.ceil(n_latents / 8)
    # In training: data in double and working precision, states twice while they are saved. In restoration: all patches,
    # their mean and variance in working and double precision, and their states.
    training = count(train_stride) * (12 * n_values + 2 * state_bytes)
    restoring = count(options.stride) * (28 * n_values + state_bytes)
    gigabytes = (training + restoring) / 2**30
    if gigabytes > MEMORY_TO_TELL:
        log.warning(
            "%d x %d pixels, %d patches to train on: this needs about %.1f GB of memory; less with a larger "
            "dataset.train_stride or dataset.stride, or fewer states.n_states",
            width, height, count(train_stride), gigabytes,
        )  # fmt: skip


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
