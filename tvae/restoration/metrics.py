"""Quality of an image beside the clean one, neither rounded nor clipped: one table of metrics."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from tvae.data.picture import Picture
from tvae.restoration.posterior_mean import Restored

SSIM_WINDOW = 7  # pixels along a side


def psnr(clean: ArrayLike, image: ArrayLike, peak: float) -> float:
    """10 log10(peak^2 / mean squared error) in dB, over all values; infinite where the images are equal."""
    mse = float(np.mean((_as_float(clean) - _as_float(image)) ** 2))
    return 10 * math.log10(peak**2 / mse) if mse > 0 else math.inf


def ssim(clean: ArrayLike, image: ArrayLike, peak: float) -> float:
    """Mean structural similarity of two (H, W, C) images, averaged over channels.

    Images smaller than the 7x7 window get the largest odd window that fits.
    """
    clean, image = _as_float(clean), _as_float(image)
    from skimage.metrics import structural_similarity  # brings SciPy: imported where a clean picture is known

    side = min(SSIM_WINDOW, *clean.shape[:2])
    window = side if side % 2 else side - 1
    # One pixel has no sample covariance, so a window of one compares the values alone.
    similarity = structural_similarity(
        clean, image, data_range=peak, channel_axis=-1, win_size=window, use_sample_covariance=window > 1
    )
    return float(similarity)


def _as_float(image: ArrayLike) -> np.ndarray:
    return np.asarray(image, dtype=np.float64)


def _psnr_input(picture: Picture, restored: Restored) -> float:
    """PSNR of the input; infinite if pixels are missing, for it says nothing then."""
    assert picture.clean is not None
    return psnr(picture.clean, picture.noisy, picture.peak) if picture.missing is None else math.inf


def _of_restored(measure: Callable[[ArrayLike, ArrayLike, float], float]) -> Callable[[Picture, Restored], float]:
    def of_restored(picture: Picture, restored: Restored) -> float:
        assert picture.clean is not None
        return measure(picture.clean, restored.pixels, picture.peak)

    return of_restored


def _ssim_of_pages(picture: Picture, restored: Restored) -> float:
    """Mean SSIM of the pages, so that no window reaches from page to page."""
    assert picture.clean is not None
    pages = zip(*(np.split(each, picture.n_pages) for each in (picture.clean, restored.pixels)), strict=True)
    return float(np.mean([ssim(clean, pixels, picture.peak) for clean, pixels in pages]))


# Metrics of a restored picture in metrics.json; those of METRICS_OVER_TIME are in history.csv and TensorBoard, too.
METRICS: dict[str, Callable[[Picture, Restored], float]] = {
    "psnr": _of_restored(psnr),
    "psnr_input": _psnr_input,
    "ssim": _ssim_of_pages,
}
METRICS_OVER_TIME = tuple(name for name in METRICS if name != "psnr_input")
UNKNOWN: dict[str, float | None] = dict.fromkeys(METRICS)


def quality(picture: Picture, restored: Restored) -> dict[str, float | None]:
    """All metrics against the clean image; None if it is not known, or if a metric is not finite."""
    if picture.clean is None:
        return dict(UNKNOWN)
    found = {name: measure(picture, restored) for name, measure in METRICS.items()}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}
