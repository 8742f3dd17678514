"""Corruption of a clean picture for benchmarks, beyond white Gaussian noise and missing pixels (`picture`).

`corruption=gaussian noise=SIGMA`: that noise and nothing else, for a file of one's own that is to be a benchmark.
`corruption=poisson peak=P`: photon counts, P of them on average where the picture is white; `noise` is added on top.
`corruption=correlated noise=SIGMA`: noise blurred by a Gaussian of `correlation` pixels, of deviation SIGMA in all.
`corruption=saltpepper outlier_share=SHARE`: that share of the values is black or white, after `noise` was added.
`corruption=jpeg quality=Q`: rounded to 8 bit and compressed, after `noise` was added.
"""

from __future__ import annotations

import io
import math

import numpy as np
import torch
from PIL import Image as Pillow

from tvae.data.dataset import DataConfig
from tvae.data.picture import add_noise, drop_values
from tvae.inference.streams import generator

# The option that each corruption needs, and that goes with it alone.
NEEDS = {
    "gaussian": "noise",
    "poisson": "peak",
    "correlated": "noise",
    "saltpepper": "outlier_share",
    "jpeg": "quality",
}
REACH = 4  # standard deviations that a Gaussian kernel is long, to each side


def corrupt(pixels: np.ndarray, config: DataConfig, peak: float) -> np.ndarray:
    """Corrupt pixels (H, W, C) as `corruption` and `noise` ask; `peak`: the value of white."""
    seed = config.corruption_seed
    if config.corruption == "poisson" and config.peak is not None:
        pixels = count_photons(pixels, config.peak, seed, peak)
    if config.corruption == "correlated" and config.noise is not None:
        return add_correlated_noise(pixels, config.noise, config.correlation, seed, peak)
    if config.noise is not None:
        pixels = add_noise(pixels, config.noise, seed, peak)
    if config.corruption == "saltpepper" and config.outlier_share is not None:
        return add_salt_and_pepper(pixels, config.outlier_share, seed, peak)
    if config.corruption == "jpeg" and config.quality is not None:
        return compress(pixels, config.quality, peak)
    return pixels


def count_photons(pixels: np.ndarray, photons: float, seed: int, peak: float = 255.0) -> np.ndarray:
    """Poisson counts, `photons` on average where the picture has its `peak`, in the picture's units."""
    rate = torch.from_numpy(pixels * (photons / peak)).clamp(min=0)
    return torch.poisson(rate, generator(seed, "photons")).numpy() * (peak / photons)


def add_correlated_noise(pixels: np.ndarray, noise: float, width: float, seed: int, peak: float = 255.0) -> np.ndarray:
    """Add Gaussian noise of `noise` grey levels of 0..255 that is blurred by a Gaussian of `width` pixels."""
    reach = math.ceil(REACH * width)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    kernel /= np.linalg.norm(kernel)
    height, width_, n_channels = pixels.shape
    shape = height + 2 * reach, width_ + 2 * reach, n_channels
    white = torch.randn(shape, generator=generator(seed, "correlated noise"), dtype=torch.float64).numpy()
    for axis in (0, 1):
        white = np.lib.stride_tricks.sliding_window_view(white, len(kernel), axis) @ kernel
    return pixels + noise * peak / 255 * white


def add_salt_and_pepper(pixels: np.ndarray, share: float, seed: int, peak: float = 255.0) -> np.ndarray:
    """Set round(share * size) values at random to black or white."""
    chosen = drop_values(pixels.shape, share, seed)
    is_salt = torch.rand(pixels.shape, generator=generator(seed, "salt")).numpy() < 0.5
    return np.where(chosen, np.where(is_salt, peak, 0.0), pixels)


def compress(pixels: np.ndarray, quality: int, peak: float = 255.0) -> np.ndarray:
    """Clip, round to 8 bit and compress as a JPEG file does."""
    rounded = np.rint((pixels * 255 / peak).clip(0, 255)).astype(np.uint8)
    file = io.BytesIO()
    Pillow.fromarray(rounded[..., 0] if rounded.shape[2] == 1 else rounded).save(file, "JPEG", quality=quality)
    return np.asarray(Pillow.open(file), dtype=np.float64).reshape(pixels.shape) * peak / 255


def corruption_problems(config: DataConfig) -> list[str]:
    """Options that exclude each other, a line each."""
    kind = config.corruption
    wrong = [
        f"{name}={getattr(config, name)}: goes with corruption={of}"
        for of, name in NEEDS.items()
        if of != kind and name != "noise" and getattr(config, name) is not None
    ]
    if kind in NEEDS and getattr(config, NEEDS[kind]) is None:
        wrong.append(f"corruption={kind}: needs a value of {NEEDS[kind]}")
    return wrong
