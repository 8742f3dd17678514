"""Pixels that have nothing to do with the picture: salt and pepper, hot and dead pixels.

A pixel is compared with the median of its eight neighbours. A hot or dead one differs from it by many times the noise,
by many times what its surroundings vary by, and by several times the range of these neighbours: what a lens has drawn
does not. A step between grey levels is the least that counts, so that single photons on black are no outliers.

Salt and pepper are values that occur far too often, and mostly where the neighbours have others: black and white that
are parts of a picture are among their like.
"""

from __future__ import annotations

import numpy as np

FAR = 6.0  # deviations by which a hot pixel differs
RANGES = 3.0  # ranges of its neighbours that it differs by
NEAR = 2.5  # deviations by which salt and pepper differ
OF_SALT = 0.5  # share of the pixels of a value that differ, from which on it is salt or pepper
PILED_UP = 1e-3  # share of the picture that has this value, at least
OVER_NEXT = 3.0  # times as often as the next grey level
N_MIN = 4  # fewer hot pixels are left alone
SHARE_MAX = 0.01  # of hot pixels; more of them are a texture
STEPS = 1.5  # steps between grey levels that count as one deviation
LEAST = 2e-3  # of the range: the least deviation
REACH = 2  # pixels: of the surroundings whose variation is looked at
ROWS = 64  # of a picture at once: memory is theirs times the neighbours


def find_outliers(pixels: np.ndarray, sigma: float, step: float, peak: float) -> np.ndarray:
    """(H, W, C) bool. `sigma`: of the noise; `step`: between grey levels, 0 if there are none; `peak`: the range."""
    least = max(sigma, STEPS * step, LEAST * peak)
    return np.stack([_of_channel(channel, least) for channel in np.moveaxis(pixels, -1, 0)], -1)


def _of_channel(pixels: np.ndarray, least: float) -> np.ndarray:
    """(H, W) bool; `least`: the least deviation that counts as one."""
    differs, is_hot = (np.zeros(pixels.shape, dtype=bool) for _ in range(2))
    columns = np.arange(pixels.shape[1])
    for top in range(0, len(pixels), ROWS):
        rows = np.arange(top, min(top + ROWS, len(pixels)))
        around = neighbours(pixels, 1, rows[:, None], columns)
        difference = np.abs(pixels[rows] - np.median(around, 0))
        differs[rows] = difference > NEAR * least
        down, across = np.nonzero(difference > np.maximum(FAR * least, RANGES * np.ptp(around, 0)))  # few places
        wide = neighbours(pixels, REACH, rows[down], across)
        variation = 1.4826 * np.median(np.abs(wide - np.median(wide, 0)), 0)
        is_hot[rows[down], across] = difference[down, across] > FAR * variation
    is_salt = np.isin(pixels, _salt(pixels, differs)) & differs
    return is_salt | is_hot if N_MIN <= is_hot.sum() <= SHARE_MAX * is_hot.size else is_salt


def _salt(pixels: np.ndarray, differs: np.ndarray) -> list[float]:
    """The values of salt and pepper, if there are any; `differs`: where a pixel does from its neighbours."""
    values, counts = np.unique(pixels, return_counts=True)
    found = []
    for i in np.nonzero(counts > PILED_UP * pixels.size)[0]:
        beside = [counts[k] for k in (i - 1, i + 1) if 0 <= k < len(counts)]
        if counts[i] > OVER_NEXT * max(beside, default=0) and differs[pixels == values[i]].mean() > OF_SALT:
            found.append(float(values[i]))
    return found


def neighbours(values: np.ndarray, reach: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(H, W) -> (n, ...): the values around each of these places, without its own; mirrored at the edges."""
    height, width = values.shape
    steps = range(-reach, reach + 1)
    return np.stack(
        [
            values[_mirrored(rows + y, height), _mirrored(columns + x, width)]
            for y in steps
            for x in steps
            if (y, x) != (0, 0)
        ]
    )


def _mirrored(place: np.ndarray, n: int) -> np.ndarray:
    return n - 1 - np.abs(n - 1 - np.abs(place))


def replace_outliers(pixels: np.ndarray, outliers: np.ndarray) -> np.ndarray:
    """(H, W, C): outliers at the median of their neighbours that are none, or of the whole picture."""
    found = pixels.copy()
    for channel in range(pixels.shape[2]):
        hidden = np.where(outliers[..., channel], np.nan, pixels[..., channel])
        rows, columns = np.nonzero(outliers[..., channel])
        values = neighbours(hidden, 1, rows, columns)
        is_lost = np.isnan(values).all(0)
        values[:, is_lost] = np.nanmedian(hidden)
        found[rows, columns, channel] = np.nanmedian(values, 0)
    return found
