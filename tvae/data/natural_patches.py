"""Patches cut from natural images, and whitened.

Of each image the brightest pixels are clamped and intensities are divided by their mean, which takes the exposure out.
Patches are cut at random positions, as many from each image; held-out ones lie in strips over the image, which no other
patch touches. Each patch loses its mean. With `equalise` it also loses its contrast: it is divided by the square root
of its variance plus a tenth of the mean variance. Latents are on or off and have no strength, so that otherwise a few
patches of high contrast would take most of them. All patches are whitened alike (`whitening`, fitted to those that are
trained on).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tvae.data.natural_images import NaturalImage
from tvae.data.whitening import ROWS, Whitening, fit_whitening
from tvae.errors import UserError
from tvae.fields import option
from tvae.inference.streams import derive

HELD_OUT, N_STRIPS = 0.2, 5  # of an image's width; so many strips, where they are wide enough


@dataclass
class Cutting:
    """Options of how patches are cut."""

    patch_size: int = option(16, "pixels along a side of a patch", ge=2)
    clamp: float = option(0.02, "share of an image's pixels, the brightest, that are clamped", ge=0, lt=1)
    flat: float = option(0.0, "share of the patches drawn, the flattest, that are left out", ge=0, le=0.9)
    equalise: bool = option(True, "divide a patch by the root of its variance, plus a tenth of the mean one")
    retained: float = option(0.95, "share of the variance in the directions that are whitened fully", gt=0, le=1)
    seed: int = option(0, "seed of the positions, apart from the run's seed: runs see the same data", ge=0)


@dataclass(frozen=True, eq=False)
class Patches:
    """The content of the cache."""

    train: np.ndarray  # (N, D) float32
    test: np.ndarray  # (n_test, D) float32
    whitening: Whitening
    made_of: str  # a hash of the patches before they were whitened, and of how


def make_patches(images: Sequence[NaturalImage], options: Cutting, n_patches: int, n_test: int) -> Patches:
    """Cut, centre and whiten; the patches of all images are mixed."""
    size = options.patch_size
    pieces = []  # of each image: to train on, and held out
    n_of_each = zip(shares(n_patches, len(images)), shares(n_test, len(images)), strict=True)
    for i, (source, n_here) in enumerate(zip(images, n_of_each, strict=True)):
        image = prepare(source.read(), options.clamp)
        height, width = image.shape
        places = columns(width, size, n_test > 0)
        if height < size or not len(places[0]):
            held_out = " and as many held-out columns" if n_test else ""
            raise UserError(f"{source.name}: {width}x{height} pixels do not hold a patch of {size}x{size}{held_out}")
        rng = np.random.default_rng(derive(options.seed, "patches", i))
        pieces.append([cut(image, c, n, size, options.flat, rng) for c, n in zip(places, n_here, strict=True)])
    train, test = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    np.random.default_rng(derive(options.seed, "order")).shuffle(train)
    if (train == train[0]).all():
        raise UserError("all patches are alike, so there is nothing to learn")
    if options.equalise:
        floor = 0.1 * train.var(1).mean()
        for patches in (train, test):
            patches /= np.sqrt(patches.var(1, keepdims=True) + floor)
    made_of = hashlib.sha256(repr(options.retained).encode())
    made_of.update(train.data)
    made_of.update(test.data)
    whitening = fit_whitening(train, options.retained)
    return Patches(in_parts(whitening.whiten, train), in_parts(whitening.whiten, test), whitening, made_of.hexdigest())


def shares(total: int, n_parts: int) -> list[int]:
    """`total` as evenly as it goes."""
    return [total // n_parts + (i < total % n_parts) for i in range(n_parts)]


def prepare(image: np.ndarray, clamp: float) -> np.ndarray:
    """Clamp the brightest share of the pixels to the brightest of the others, and divide by the mean intensity."""
    image = np.minimum(image, np.quantile(image, 1 - clamp, method="lower"))
    mean = np.abs(image).mean()
    return image / mean if mean > 0 else image


def columns(width: int, size: int, is_split: bool) -> tuple[np.ndarray, np.ndarray]:
    """First columns of training patches and of held-out ones, which share no column of the image."""
    is_held_out = np.zeros(width, dtype=bool)
    n_strips = int(np.clip(HELD_OUT * width / (2 * size), 1, N_STRIPS)) if is_split else 0
    for k in range(n_strips):
        end = (k + 1) * width // n_strips
        is_held_out[max(0, end - max(size, round(HELD_OUT * width / n_strips))) : end] = True
    if width < size:
        return np.empty(0, dtype=int), np.empty(0, dtype=int)
    windows = sliding_window_view(is_held_out, size)
    return np.flatnonzero(~windows.any(1)), np.flatnonzero(windows.all(1))


def cut(
    image: np.ndarray, places: np.ndarray, n_patches: int, size: int, flat: float, rng: np.random.Generator
) -> np.ndarray:
    """(n_patches, size * size) float32: patches that begin in one of the columns `places`, in any row.

    They come without their means and without the flattest.
    """
    if n_patches == 0:
        return np.empty((0, size**2), dtype=np.float32)
    windows = sliding_window_view(image, (size, size))
    n_drawn = math.ceil(n_patches / (1 - flat))
    tops, lefts = rng.integers(0, len(windows), n_drawn), rng.choice(places, n_drawn)
    if flat > 0:
        parts = np.array_split(np.arange(n_drawn), math.ceil(n_drawn / ROWS))
        variances = np.concatenate([windows[tops[part], lefts[part]].var((1, 2)) for part in parts])
        kept = np.sort(np.argsort(-variances, kind="stable")[:n_patches])
        tops, lefts = tops[kept], lefts[kept]
    patches = windows[tops, lefts].reshape(n_patches, -1)
    return (patches - patches.mean(1, keepdims=True)).astype(np.float32)


def in_parts(change: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """`change` of all rows in single precision, with double precision for some at a time."""
    out = np.empty_like(rows)
    for start in range(0, len(rows), ROWS):
        out[start : start + ROWS] = change(rows[start : start + ROWS])
    return out
