"""How close an image is to the clean one: PSNR and SSIM, neither rounded nor clipped."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from skimage.metrics import structural_similarity

SSIM_WINDOW = 7  # pixels along a side


def psnr(clean: ArrayLike, image: ArrayLike, peak: float) -> float:
    """10 log10(peak^2 / mean squared error) in dB, over all values; infinite where the images are equal."""
    mse = float(np.mean((_as_float(clean) - _as_float(image)) ** 2))
    return 10 * math.log10(peak**2 / mse) if mse > 0 else math.inf


def ssim(clean: ArrayLike, image: ArrayLike, peak: float) -> float:
    """Mean structural similarity of two (H, W, C) images, averaged over channels.

    Of images smaller than the 7x7 window, the largest odd one that fits.
    """
    clean, image = _as_float(clean), _as_float(image)
    side = min(SSIM_WINDOW, *clean.shape[:2])
    window = side if side % 2 else side - 1
    # One pixel has no sample covariance, so a window of one compares the values alone.
    similarity = structural_similarity(
        clean, image, data_range=peak, channel_axis=-1, win_size=window, use_sample_covariance=window > 1
    )
    return float(similarity)


def _as_float(image: ArrayLike) -> np.ndarray:
    return np.asarray(image, dtype=np.float64)
