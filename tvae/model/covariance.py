"""The covariance R of stationary noise in a patch: correlated between neighbours and between channels.

    p(x | z) = N(x; mu(z), sigma2 R + sum_h z_h U_h U_h^T),       R (D, D) with mean 1 on its diagonal

x R^-1/2 has white noise, so that the model sees these values; what it says of them is taken back by R^1/2, and the
density of x is that of x R^-1/2 times |R|^-1/2. A table holds the covariances of channels a and b at k pixels down and
l across, the same for both signs; beyond it there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST = 1e-3  # of the largest eigenvalue: noise that is not there is not divided by


@dataclass(frozen=True, eq=False)
class Covariance:
    table: np.ndarray  # (C, C, L + 1, L + 1), mean variance 1

    def lag(self, distance: int) -> float:
        """Correlation at so many pixels, across and down and over channels, averaged."""
        if distance >= self.table.shape[2]:
            return 0.0
        own = np.einsum("aakl->akl", self.table)
        return float(((own[:, 0, distance] + own[:, distance, 0]) / (2 * own[:, 0, 0])).mean())

    def matrix(self, size: int) -> np.ndarray:
        """R (D, D) of patches of size x size pixels, all channels of a pixel together."""
        n_channels, n_lags = len(self.table), min(size, self.table.shape[2])
        padded = np.zeros((n_channels, n_channels, size, size))
        padded[..., :n_lags, :n_lags] = self.table[..., :n_lags, :n_lags]
        apart = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        found = padded[:, :, apart[:, None, :, None], apart[None, :, None, :]]  # (a, b, row, column, row', column')
        return found.transpose(2, 3, 0, 4, 5, 1).reshape(2 * (size**2 * n_channels,))

    def roots(self, size: int) -> tuple[np.ndarray, np.ndarray, float]:
        """R^1/2, R^-1/2 and log |R|, with eigenvalues raised to a small share of the largest."""
        values, vectors = np.linalg.eigh(self.matrix(size))
        values = values.clip(min=LEAST * values.max())
        root, inverse = ((vectors * scale) @ vectors.T for scale in (np.sqrt(values), 1 / np.sqrt(values)))
        return root, inverse, float(np.log(values).sum())

    def variance_of_sum(self, template: np.ndarray, channel: int) -> float:
        """The variance of t . x, for a template t (k, k) on one channel."""
        side, n_lags = len(template), self.table.shape[2]
        own, total = self.table[channel, channel], 0.0
        for down in range(-min(side, n_lags) + 1, min(side, n_lags)):
            for across in range(-min(side, n_lags) + 1, min(side, n_lags)):
                here = template[max(down, 0) : side + min(down, 0), max(across, 0) : side + min(across, 0)]
                there = template[max(-down, 0) : side + min(-down, 0), max(-across, 0) : side + min(-across, 0)]
                total += own[abs(down), abs(across)] * float((here * there).sum())
        return total
