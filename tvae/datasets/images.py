"""Images as data: a named picture or a file, made noisy or incomplete on request, and cut into patches.

What is corrupted here is known, so that restoration can be judged. A file of the user's is taken as it is, and counts
as its own clean picture only where noise or missing pixels are asked for on top.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tvae.config import Config, ImageConfig, UserError
from tvae.datasets import Dataset, Picture
from tvae.datasets.named import read_named
from tvae.images import Image, read_image
from tvae.patches import extract
from tvae.streams import generator


def make(config: Config, picture: Picture | None = None) -> Dataset:
    """All patches at `train_stride`, and the picture they are from; `picture`: if it is not to be read."""
    options = config.dataset
    assert isinstance(options, ImageConfig)
    picture = picture or make_picture(config)
    size = options.patch_size
    assert size is not None
    assert options.train_stride is not None
    height, width, n_channels = picture.noisy.shape
    if size > min(height, width):
        raise UserError(
            f"{config.image or options.name}: {_size(picture.image)} pixels are smaller than a patch of {size}x{size} "
            "(dataset.patch_size)"
        )
    data, observed = cut(picture, size, options.train_stride)
    return Dataset(data, (size, size, n_channels), observed, picture=picture)


def cut(picture: Picture, patch_size: int, stride: int) -> tuple[Tensor, Tensor | None]:
    """(N, D) float64 and, where pixels are missing, (N, D) bool: patches, and which of their values are known."""
    noisy = torch.from_numpy(picture.noisy)
    data = extract(noisy, patch_size, stride)
    if picture.missing is None:
        return data, None
    known = torch.from_numpy(~picture.missing)[..., None].expand(noisy.shape)
    return data, extract(known, patch_size, stride)


def make_picture(config: Config) -> Picture:
    """What is to be restored, and what is known about it."""
    options = config.dataset
    assert isinstance(options, ImageConfig)
    image = read_named(options.name, config.data_dir) if config.image is None else read_image(config.image)
    missing = _missing(config, image)
    clean, peak = _clean(config, image)
    noisy = image.pixels
    if config.noise is not None:
        noisy = add_noise(noisy, config.noise, config.corruption_seed, image.peak)
    if missing is not None:
        noisy = np.where(missing[..., None], 0, noisy)
    check_content(noisy, missing, config.image or options.name)
    return Picture(image, noisy, clean, missing, peak)


def _missing(config: Config, image: Image) -> np.ndarray | None:
    """(H, W) bool: pixels that are NaN in the file, marked in the mask, or dropped; None: there are none."""
    masks = [] if image.missing is None else [image.missing]
    if config.mask is not None:
        masks.append(read_mask(config.mask, image))
    if config.missing is not None:
        masks.append(drop_pixels(image.pixels.shape[:2], config.missing, config.corruption_seed))
    missing = np.logical_or.reduce(masks) if masks else np.zeros(1, dtype=bool)
    return missing if missing.any() else None


def _clean(config: Config, image: Image) -> tuple[np.ndarray | None, float]:
    """The clean picture in the units of `image`, if it is known, and the peak for comparing with it."""
    if config.clean is not None:
        clean = read_image(config.clean)
        if clean.pixels.shape != image.pixels.shape:
            raise UserError(f"{config.clean}: {_size(clean)} pixels, but the image has {_size(image)}")
        if clean.missing is not None:
            raise UserError(f"{config.clean}: has missing pixels (NaN), so nothing can be compared with it")
        if image.is_bounded and clean.is_bounded:
            return clean.pixels * (image.peak / clean.peak), image.peak
        return clean.pixels, clean.peak if clean.is_bounded else image.peak
    if config.image is None:
        return image.pixels, image.peak
    is_corrupted_here = config.noise is not None or config.missing is not None
    is_whole = image.missing is None and config.mask is None
    return image.pixels if is_corrupted_here and is_whole else None, image.peak


def check_content(noisy: np.ndarray, missing: np.ndarray | None, source: str) -> None:
    """There has to be something to learn from."""
    known = noisy if missing is None else noisy[~missing]
    if known.size == 0:
        raise UserError(f"{source}: all pixels are missing")
    if known.min() == known.max():
        raise UserError(f"{source}: all known pixels are equal, so there is nothing to learn")


def read_mask(path: str, image: Image) -> np.ndarray:
    """(H, W) bool: pixels in which any channel of the file but alpha is nonzero (or NaN)."""
    mask = read_image(path)
    if mask.pixels.shape[:2] != image.pixels.shape[:2]:
        raise UserError(f"{path}: {_size(mask)} pixels, but the image has {_size(image)}")
    marked = np.any(mask.pixels != 0, axis=-1)
    return marked if mask.missing is None else marked | mask.missing


def add_noise(pixels: np.ndarray, noise: float, seed: int, peak: float = 255.0) -> np.ndarray:
    """(H, W, C) plus Gaussian noise with a deviation of `noise` grey levels, 255 of which are `peak`; not clipped."""
    draws = torch.randn(pixels.shape, generator=generator(seed, "noise"), dtype=torch.float64)
    return pixels + noise * peak / 255 * draws.numpy()


def drop_pixels(shape: tuple[int, ...], missing: float, seed: int) -> np.ndarray:
    """(H, W) bool, true for round(missing * H * W) pixels at random."""
    height, width = shape[:2]
    order = torch.randperm(height * width, generator=generator(seed, "missing"))
    dropped = np.zeros(height * width, dtype=bool)
    dropped[order[: round(missing * height * width)].numpy()] = True
    return dropped.reshape(height, width)


def _size(image: Image) -> str:
    """Width x height as users know it, and the channels if they are colours."""
    height, width, n_channels = image.pixels.shape
    return f"{width}x{height}" + ("x3" if n_channels == 3 else "")
