"""An image to be restored, what is known about it, and how a clean one is corrupted for benchmarks."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from tvae.errors import UserError
from tvae.inference.streams import generator
from tvae.io.formats import JPEG_SIGNATURE
from tvae.io.image_file import Image
from tvae.io.stack_file import read_picture
from tvae.model.covariance import Covariance
from tvae.noise.level import estimate_noise, known_values
from tvae.noise.model import NoiseModel
from tvae.noise.treatment import Treatment

log = logging.getLogger(__name__)

NEAR_ZERO = 16  # of 255: what JPEG makes of black
BLOCK = 5  # pixels along a side
LARGEST = 1e30  # value, and inverse of the smallest range: what is written in single precision stays finite
NEARLY = 0.9  # share of known values
LEAST_RANGE = 1e-2  # of the peak: blocks of a regular pattern may all have the same mean


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture with its corruption and noise model; all arrays are in the image's own units."""

    image: Image  # as read: how a result is to be written
    noisy: np.ndarray  # (H, W, C) float64: what the patches are from; 0 where missing
    clean: np.ndarray | None = None  # (H, W, C) float64, where it is known
    missing: np.ndarray | None = None  # (H, W) bool, or (H, W, C) if channels are missing one by one; None: nothing is
    peak_of_clean: float | None = None  # where a clean file uses more bits than the image, or values of another kind
    sigma: float | None = None  # of the noise, where it is known
    noise_model: NoiseModel | None = None  # what was found out about the noise
    treatment: Treatment | None = None  # before the restoration; None: it is restored as it is
    covariance: Covariance | None = None  # of its noise; None: it is white
    sigma_map: np.ndarray | None = None  # (H, W, 1 or C): the noise's deviation, where it is given

    def parts(self) -> tuple[np.ndarray | None, ...]:
        """Everything that results depend on; None: there is no such part."""
        clean = None if self.clean is self.image.pixels else self.clean  # the noisy picture depends on it already
        return self.noisy, self.missing, self.image.alpha, clean, self.sigma_map

    def fingerprint(self) -> str:
        """A hash of everything that results depend on, with the type and the axes of the file."""
        layout = self.image.layout
        form = [self.image.dtype.str, self.image.is_2d, None if layout is None else (layout.axes, layout.shape)]
        form += [self.image.n_equal] if self.image.n_equal > 1 else []
        form += [self.image.alpha_kind] if self.image.alpha_kind == "assocalpha" else []
        return hash_of([np.frombuffer(repr(tuple(form)).encode(), np.uint8), *self.parts()])

    @property
    def peak(self) -> float:
        """The value of white, for PSNR and SSIM."""
        return self.image.peak if self.peak_of_clean is None else self.peak_of_clean

    @property
    def known(self) -> np.ndarray | None:
        """(H, W, C) bool: which values are known; None: all of them."""
        return None if self.missing is None else known_values(self.missing, self.noisy.shape)

    @cached_property
    def seen(self) -> Picture:
        """The picture that is restored: this one after its treatment."""
        if self.treatment is None:
            return self
        is_known = np.ones(self.noisy.shape, dtype=bool) if self.known is None else self.known
        if self.treatment.outliers is not None:
            is_known = is_known & ~self.treatment.outliers
        pixels, covariance = self.treatment.forward(self.noisy, ~is_known), self.treatment.covariance
        if covariance is not None:
            is_known = np.ones(self.noisy.shape, dtype=bool)
        pixels = np.where(is_known, pixels, 0)
        low, high = float(pixels[is_known].min()), float(pixels[is_known].max())
        image = Image(pixels, pixels.dtype, high - low, low, is_bounded=False, layout=self.image.layout)
        if self.treatment.step is None:
            image = self.image
        missing = None if is_known.all() else ~is_known
        sigma = self.sigma if self.treatment.sigma is None else self.treatment.sigma
        return Picture(image, pixels, missing=missing, sigma=sigma, covariance=covariance)

    @cached_property
    def noise(self) -> float:
        """The noise's standard deviation as far as it is known, or else as estimated."""
        return estimate_noise(self.noisy, self.missing) if self.sigma is None else self.sigma

    def in_all_channels(self) -> Picture:
        """The same picture with as many equal channels as its file has; it was read as grey."""
        image, n = self.image, self.image.n_equal
        clean = None if self.clean is None else self.clean.repeat(n, axis=2)
        image = replace(image, pixels=image.pixels.repeat(n, axis=2), n_equal=1)
        return replace(self, image=image, noisy=self.noisy.repeat(n, axis=2), clean=clean)

    def is_nearly_whole(self, keeps_known: bool) -> bool:
        """True if a pilot may stand in for what is missing: a few values among noisy ones."""
        return self.known is None or (not keeps_known and bool(self.known.mean() >= NEARLY))

    @property
    def n_pages(self) -> int:
        """Pages of the same size, one above the other."""
        return self.image.n_pages

    @property
    def page_height(self) -> int:
        return self.noisy.shape[0] // self.n_pages

    @property
    def grey_range(self) -> float:
        """The range that noise is compared with: the type's, or without one that of block means, which noise spares.

        The range of noisy floating-point values grows with their noise, and would make it look smaller than it is.
        """
        if self.image.is_bounded:
            return self.image.peak
        height, width = (side // BLOCK * BLOCK for side in self.noisy.shape[:2])
        known = np.ones(self.noisy.shape) if self.known is None else self.known.astype(np.float64)

        def block_sums(values: np.ndarray) -> np.ndarray:
            shape = height // BLOCK, BLOCK, width // BLOCK, BLOCK, values.shape[2]
            return values[:height, :width].reshape(shape).sum((1, 3))

        counts = block_sums(known)
        if not counts.any():
            return self.image.peak
        means = (block_sums(self.noisy) / counts.clip(1))[counts > 0]
        return max(float(np.ptp(means)), LEAST_RANGE * self.image.peak)


def hash_of(parts: Iterable[Any]) -> str:
    """SHA-256 of arrays, one after the other: their types, shapes and values; None: there is no such part."""
    digest = hashlib.sha256()
    for part in parts:
        array = None if part is None else np.ascontiguousarray(part)
        digest.update(b"none;" if array is None else f"{array.dtype.str} {array.shape};".encode())
        if array is not None:
            digest.update(array.data)
    return digest.hexdigest()


def check_content(noisy: np.ndarray, missing: np.ndarray | None, source: str) -> None:
    """Raise `UserError` if there is nothing to learn from."""
    known = noisy if missing is None else noisy[~missing]
    if known.size == 0:
        raise UserError(f"{source}: all pixels are missing")
    if known.min() == known.max():
        raise UserError(f"{source}: all known pixels are equal, so there is nothing to learn")
    problem = scale_problem(float(known.min()), float(known.max()))
    if problem is not None:
        raise UserError(f"{source}: {problem}")


def scale_problem(low: float, high: float) -> str | None:
    """A message about values from `low` to `high` that cannot be computed with."""
    if max(abs(low), abs(high)) > LARGEST or high - low < 1 / LARGEST:
        return f"values from {low:.3g} to {high:.3g} cannot be computed with; scale them to an ordinary range"
    return None


def check_missing(missing: np.ndarray | None, source: str) -> None:
    """Refuse to fill in pixels if none is missing."""
    if missing is None:
        raise UserError(
            f"{source}: no pixel is missing, so there is nothing to fill in (a mask is nonzero where one is; its alpha "
            "channel does not count)"
        )


def is_lossy(path: str) -> bool:
    """True for the content of a JPEG file, whatever its name."""
    with open(path, "rb") as file:
        return file.read(len(JPEG_SIGNATURE)) == JPEG_SIGNATURE


def read_mask(path: str, image: Image) -> np.ndarray:
    """(H, W) bool: pixels in which any channel of the file but alpha is nonzero (or NaN)."""
    mask = read_picture(path)
    marked = np.any(mask.pixels != 0, axis=-1)
    if is_lossy(path):
        near = np.any((mask.pixels > 0) & (mask.pixels <= NEAR_ZERO), axis=-1)
        log.warning(
            "%s: a JPEG file does not keep its values, and %d of %d marked pixels are hardly above 0; "
            "save the mask as PNG", path, near.sum(), marked.sum(),
        )  # fmt: skip
    marked = marked if mask.missing is None else marked | mask.missing
    if mask.n_pages == 1 < image.n_pages:
        marked = np.tile(marked, (image.n_pages, 1))  # the same for all pages
    if marked.shape != image.pixels.shape[:2]:
        raise UserError(f"{path}: {size_of(mask)} pixels, but the image has {size_of(image)}")
    return marked


def add_noise(pixels: np.ndarray, noise: float, seed: int, peak: float = 255.0) -> np.ndarray:
    """(H, W, C) plus Gaussian noise with a deviation of `noise` grey levels, 255 of which are `peak`; not clipped."""
    draws = torch.randn(pixels.shape, generator=generator(seed, "noise"), dtype=torch.float64)
    return pixels + noise * peak / 255 * draws.numpy()


def drop_values(shape: tuple[int, ...], missing: float, seed: int) -> np.ndarray:
    """Bool of this shape, true for round(missing * size) values at random: pixels (H, W) or channels (H, W, C)."""
    size = math.prod(shape)
    order = torch.randperm(size, generator=generator(seed, "missing"))
    dropped = np.zeros(size, dtype=bool)
    dropped[order[: round(missing * size)].numpy()] = True
    return dropped.reshape(shape)


def drop_pixels(shape: tuple[int, ...], missing: float, seed: int) -> np.ndarray:
    """(H, W) bool, true for round(missing * H * W) pixels at random."""
    return drop_values(shape[:2], missing, seed)


def in_units(level: float, image: Image) -> str:
    """A noise level as users know it: grey levels of 8 bit, counts of other integers, else a share of white if any."""
    if image.dtype.kind in "iu":
        return f"{level:.3g} of 255" if image.dtype == np.uint8 else f"{level:.4g} counts"
    return f"{level:.3g} of {image.peak:g}" if image.is_bounded else f"{level:.3g}"


def size_of(image: Image) -> str:
    """Width x height as users know it, the channels if they are colours, and the pages if there are many."""
    height, width, n_channels = image.pixels.shape
    pages = f"{image.n_pages} pages of " if image.n_pages > 1 else ""
    return f"{pages}{width}x{height // image.n_pages}" + (f"x{n_channels}" if n_channels > 1 else "")
