"""The covariance R of stationary noise in a patch: correlated between neighbours and between channels.

    p(x | z) = N(x; mu(z), sigma2 (R + t I) + sum_h z_h U_h U_h^T),       R (D, D) with mean 1 on its diagonal

t I is detail that few directions U do not hold. Correlated noise has next to no power in some frequencies, in which
even the faintest detail is above it and must not be taken for noise. With V = R + t I, x V^-1/2 has white noise plus
detail, so that the model sees these values w; its density of x is that of w times |V|^-1/2. A clean value c of the
model, mu(z) + U a, becomes the clean patch

    E[clean | x, c] = c V^-1/2 R + t w V^-1/2,        Cov[clean | x, c] = sigma2 t (I - t V^-1)

for detail takes its share of what is left. A table holds the covariances of channels a and b at k pixels down and l
across, the same for both signs; beyond it there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Whitening(NamedTuple):
    """The matrices of a covariance in patches, (D, D) each, symmetric."""

    root: Tensor  # V^1/2
    inverse: Tensor  # V^-1/2
    log_det: float  # log |V|
    of_model: Tensor  # V^-1/2 R: takes the model's clean values back
    of_data: Tensor  # t V^-1/2: takes its share of whitened values back
    variance: Tensor  # (D,): of the detail, over sigma2

    def back(self, x: Tensor, mean: Tensor, variance: Tensor, sigma2: Tensor | float) -> tuple[Tensor, Tensor]:
        """Moments of clean values, with what detail adds to those of mu(z) + U a; x (B, D): whitened values."""
        return mean + x @ self.of_data, variance + sigma2 * self.variance

    def to(self, like: Tensor) -> Whitening:
        """The same where `like` is, in its precision."""
        moved = (each.to(like) for each in (self.root, self.inverse, self.of_model, self.of_data, self.variance))
        root, inverse, of_model, of_data, variance = moved
        return Whitening(root, inverse, self.log_det, of_model, of_data, variance)


@dataclass(frozen=True, eq=False)
class Covariance:
    table: np.ndarray  # (C, C, L + 1, L + 1), mean variance 1
    detail: float = 1e-3  # t, over the mean variance of the noise

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

    def whitening(self, size: int) -> Whitening:
        """The matrices for patches of size x size pixels; negative eigenvalues of an estimated R count as zero."""
        values, vectors = np.linalg.eigh(self.matrix(size))
        values, t = values.clip(min=0), self.detail
        total = values + t

        def matrix(of_values: np.ndarray) -> Tensor:
            return torch.from_numpy((vectors * of_values) @ vectors.T)

        return Whitening(
            matrix(np.sqrt(total)),
            matrix(1 / np.sqrt(total)),
            float(np.log(total).sum()),
            matrix(values / np.sqrt(total)),
            matrix(t / np.sqrt(total)),
            matrix(t * values / total).diagonal().clone(),
        )

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


def white_noise(n_channels: int, n_lags: int) -> Covariance:
    """The covariance of noise that has none between pixels and channels."""
    table = np.zeros((n_channels, n_channels, n_lags + 1, n_lags + 1))
    table[:, :, 0, 0] = np.eye(n_channels)
    return Covariance(table)
