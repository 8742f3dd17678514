"""Made-up frames as a microscope's camera gives them, whose clean picture is known.

Nuclei, filaments and spots on haze, seen through a lens, on a pedestal. Photons are counted, read noise is added, and
both are filtered along rows and columns as demosaicing or an optical blur does it, so that noise is correlated:

    x = clean + k * (g p - E[g p] + n),         Var x = gain (clean - pedestal) + read^2

and the values are rounded to 8 bit.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import convolve1d, gaussian_filter

PEDESTAL, BRIGHTEST = 20.0, 180.0
REACH = 8  # pixels beyond the edges
KERNELS = {"white": [1.0], "bilinear": [0.25, 0.5, 0.25]}  # and "1.5": a Gaussian of so many pixels


def specimen(side: int, seed: int) -> np.ndarray:
    """(side, side) in 0..1."""
    rng = np.random.default_rng(seed)
    share = (side / 256) ** 2
    pixels = sum((_nucleus(side, rng) for _ in range(max(2, int(6 * share)))), np.zeros((side, side)))
    lines, spots = np.zeros((2, side, side))
    for _ in range(max(4, int(30 * share))):
        _draw_filament(lines, rng)
    for _ in range(int(40 * share)):
        spots[tuple(rng.integers(0, side, 2))] += rng.uniform(0.5, 1.5)
    pixels = pixels + 1.6 * gaussian_filter(lines, 1.3) + 8 * gaussian_filter(spots, 1.6)
    hazy = (0.8 * pixels + 0.5 * gaussian_filter(pixels, 12)).clip(min=0)
    return (hazy / np.quantile(hazy, 0.999)).clip(0, 1)


def _nucleus(side: int, rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[:side, :side] - rng.uniform(0, side, 2)[:, None, None]
    (a, b), angle = rng.uniform(10, 28, 2), rng.uniform(0, np.pi)
    along, beside = y * np.cos(angle) + x * np.sin(angle), x * np.cos(angle) - y * np.sin(angle)
    distance = np.hypot(along / a, beside / b)
    texture = 1 + 2.5 * gaussian_filter(rng.normal(size=y.shape), 3)
    return rng.uniform(0.4, 0.9) * texture / (1 + np.exp(24 * (distance - 1).clip(max=5)))


def _draw_filament(lines: np.ndarray, rng: np.random.Generator) -> None:
    place, direction, bright = rng.uniform(0, len(lines), 2), rng.uniform(0, 2 * np.pi), rng.uniform(0.3, 1)
    for _ in range(2 * int(rng.uniform(60, 200))):
        direction += 0.04 * rng.normal()
        place = place + 0.5 * np.array([np.sin(direction), np.cos(direction)])
        row, column = np.rint(place).astype(int)
        if 0 <= row < len(lines) and 0 <= column < len(lines):
            lines[row, column] = max(lines[row, column], bright)


def kernel_of(name: str) -> np.ndarray:
    """Adds up to one."""
    if name in KERNELS:
        return np.array(KERNELS[name])
    kernel = np.exp(-0.5 * (np.arange(-6, 7) / float(name)) ** 2)
    return kernel / kernel.sum()


def frame(side: int, seed: int, gain: float, read: float, kernel: str) -> tuple[np.ndarray, np.ndarray]:
    """(side, side, 1) each, in 0..255: clean and noisy. `gain`, `read`: of the noise as it is after the filter."""
    rng = np.random.default_rng(1000 + seed)
    clean = PEDESTAL + (BRIGHTEST - PEDESTAL) * specimen(side, seed)
    taps = kernel_of(kernel)
    left = float(taps @ taps) ** 2  # of the variance of white noise, by the filter
    signal = np.pad(clean - PEDESTAL, REACH, mode="symmetric")
    one = gain / left
    noise = one * rng.poisson(signal / one) - signal + read / left**0.5 * rng.normal(size=signal.shape)
    for axis in (0, 1):
        noise = convolve1d(noise, taps, axis)
    noisy = np.rint(clean + noise[REACH:-REACH, REACH:-REACH]).clip(0, 255)
    return clean[..., None], noisy[..., None]
