"""ZCA whitening: the rotation-free linear map that gives data a unit covariance, and its inverse.

With the covariance C = E diag(d) E^T, d descending,

    A = E diag(1 / sqrt(max(d, d_K))) E^T,        x_white = A (x - mean),        x = A^-1 x_white + mean

The K first directions, the fewest that hold the share `retained` of the variance, become white exactly. The others,
mostly noise in natural images, would be blown up; they get the gain of direction K and keep less than unit variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ROWS = 1 << 14  # in double precision at a time


@dataclass(frozen=True, eq=False)
class Whitening:
    mean: np.ndarray  # (D,)
    matrix: np.ndarray  # (D, D): A, symmetric
    inverse: np.ndarray  # (D, D): A^-1
    directions: np.ndarray  # (D, K): the directions that are white, as columns

    def whiten(self, x: np.ndarray) -> np.ndarray:
        """(N, D) -> (N, D)."""
        return (x - self.mean) @ self.matrix

    def colour(self, fields: np.ndarray) -> np.ndarray:
        """(N, D) differences of whitened data, as differences of the data they came from."""
        return fields @ self.inverse


def fit_whitening(x: np.ndarray, retained: float) -> Whitening:
    """The whitening of data (N, D) of any precision; `retained` in (0, 1]."""
    mean = x.mean(0, dtype=np.float64)
    covariance = np.zeros((len(mean), len(mean)))
    for start in range(0, len(x), ROWS):
        centred = x[start : start + ROWS] - mean
        covariance += centred.T @ centred / len(x)
    variances, directions = np.linalg.eigh(covariance)
    variances, directions = variances[::-1].clip(0), directions[:, ::-1]
    share = variances.cumsum() / variances.sum()
    n_white = min(int(np.searchsorted(share, retained * (1 - 1e-12))) + 1, len(share))
    # Directions in which nothing varies (the mean, where it was taken out) have no gain of their own.
    n_white = min(n_white, int((variances > variances[0] * 1e-12).sum()))
    gain = 1 / np.sqrt(variances.clip(variances[n_white - 1]))
    return Whitening(
        mean, (directions * gain) @ directions.T, (directions / gain) @ directions.T, directions[:, :n_white].copy()
    )
