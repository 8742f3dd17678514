"""Noise that is correlated between neighbours, made white: a linear filter over the whole picture, and its inverse.

Noise with correlations rho has the spectrum S(f) = sum_kl rho_kl cos(2 pi f_1 k) cos(2 pi f_2 l), over all lags of both
signs. Divided by sqrt(S) in the frequency domain its values are independent, so that everything that knows white noise
alone can restore the picture; multiplied by sqrt(S) the result is back. The posterior mean follows, for the filter is
linear. Where the spectrum is next to zero it is raised to a small share of its largest value, so that the filter stays
short: the noise there is less than said.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

LEAST = 3e-3  # of the largest value of the spectrum
MARGIN = 16  # pixels by which the picture is mirrored at its edges


@dataclass(frozen=True, eq=False)
class Decorrelation:
    correlation: np.ndarray  # (L + 1, L + 1): rho at lags down and across, 1 at lag zero
    shape: tuple[int, int]  # of the picture, or of a page of it

    def forward(self, pixels: np.ndarray) -> np.ndarray:
        """(H, W, C): the picture with white noise of the same variance as before."""
        return self._filter(pixels, 1 / self.root)

    def back(self, pixels: np.ndarray, uncertainty: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The errors of neighbours are taken to be independent in the filtered picture (see docs/noise.md)."""
        kernel = np.fft.irfft2(self.root, s=self._padded)[..., None]
        of_squares = np.fft.rfft2(kernel**2, axes=(0, 1))[..., 0]
        variance = self._filter(uncertainty**2, of_squares).clip(min=0)
        return self._filter(pixels, self.root), np.sqrt(variance)

    @cached_property
    def root(self) -> np.ndarray:
        """sqrt(S) at the frequencies of the mirrored picture, as `rfft2` has them."""
        down, across = (
            np.cos(2 * np.pi * np.outer(frequencies, np.arange(len(self.correlation)))) * self._both_signs
            for frequencies in (np.fft.fftfreq(self._padded[0]), np.fft.rfftfreq(self._padded[1]))
        )
        spectrum = down @ self.correlation @ across.T
        return np.sqrt(spectrum.clip(min=LEAST * spectrum.max()))

    @property
    def _both_signs(self) -> np.ndarray:
        return np.where(np.arange(len(self.correlation)) == 0, 1, 2)

    @property
    def _padded(self) -> tuple[int, int]:
        height, width = self.shape
        return height + 2 * MARGIN, width + 2 * MARGIN

    def _filter(self, pixels: np.ndarray, response: np.ndarray) -> np.ndarray:
        return filtered(pixels, response, self.shape)


def filtered(pixels: np.ndarray, response: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """(H, W, C), page by page; `response`: at the frequencies of a page mirrored at its edges, as `rfft2` has them."""
    pages = pixels.reshape(-1, *shape, pixels.shape[2])
    return np.concatenate([_filter_page(page, response) for page in pages])


def blurred(pixels: np.ndarray, width: float, shape: tuple[int, int]) -> np.ndarray:
    """(H, W, C) by a Gaussian of so many pixels."""
    height, length = (side + 2 * MARGIN for side in shape)
    squares = np.add.outer(np.fft.fftfreq(height) ** 2, np.fft.rfftfreq(length) ** 2)
    return filtered(pixels, np.exp(-2 * (np.pi * width) ** 2 * squares), shape)


def _filter_page(page: np.ndarray, response: np.ndarray) -> np.ndarray:
    mirrored = np.pad(page, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), mode="symmetric")
    spectrum = np.fft.rfft2(mirrored, axes=(0, 1)) * response[..., None]
    found = np.fft.irfft2(spectrum, s=mirrored.shape[:2], axes=(0, 1))
    return found[MARGIN:-MARGIN, MARGIN:-MARGIN]
