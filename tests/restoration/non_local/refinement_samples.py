"""Noisy pictures to refine, a first estimate of them, and how far a result is off."""

from dataclasses import replace

import numpy as np
from scipy.ndimage import gaussian_filter

from tvae.data.picture import Picture, add_noise, drop_pixels
from tvae.io.image_file import from_array
from tvae.restoration.non_local.stage import refine_restored
from tvae.restoration.posterior_mean import Restored

NOISE = 20.0


def waves(height=40, width=36, n_channels=1):
    """(H, W, C) in 0..255, smooth, with one edge."""
    rows, columns = np.mgrid[:height, :width]
    grey = 110 + 50 * np.sin(columns / 5) + 25 * np.cos(rows / 4) + 40 * (rows > columns)
    return np.stack([grey * (1 - 0.2 * k) for k in range(n_channels)], -1)


def noisy_picture(clean, noise=NOISE, missing=0.0, dtype=np.uint8, peak=255.0):
    """Values of `clean` in 0..255 become those of `dtype` with that peak."""
    noisy = add_noise(clean, noise, seed=0) * peak / 255
    mask = drop_pixels(clean.shape, missing, seed=1) if missing else None
    if mask is not None:
        noisy[mask] = 0
    image = replace(from_array((clean * peak / 255).astype(dtype)), peak=peak)
    return Picture(image, noisy, clean * peak / 255, mask, peak)


def blurred(picture):
    """A first estimate that any restoration surpasses; missing pixels get the mean."""
    filled = picture.noisy
    if picture.missing is not None:
        filled = np.where(picture.missing[..., None], filled[~picture.missing].mean(), filled)
    pixels = gaussian_filter(filled, (1.0, 1.0, 0.0))
    return Restored(pixels, np.ones_like(pixels))


def refined(picture, keep_observed=False, effort="fast", first=None):
    return refine_restored(picture, lambda: first or blurred(picture), keep_observed, effort)


def error(picture, restored):
    return np.sqrt(np.mean((restored.pixels - picture.clean) ** 2))
