"""NL-Ridge: a second estimate of a picture from a pilot, by linear combinations of similar patches.

The n patches of a group, as the rows of Y (n, D), are noisy versions of X. Each column of X is drawn from N(c, K) with
the n x n covariance of the group in the first estimate P, so that patches which looked alike inform each other:

    K = (P - c) (P - c)^T / D,     E[X | Y] = c + K (K + sigma2 I)^-1 (Y - c),     Var = sigma2 K (K + sigma2 I)^-1

which is the optimal linear combination of the group's patches (as in NL-Ridge, Herbreteau and Kervrann 2022). Estimates
are weighted by their certainty.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tvae.data.patches import take
from tvae.restoration.aggregation import Accumulator

CHUNK_VALUES = 1 << 21  # of the groups at once
WEIGHT_FLOOR = 1e-2  # added to the gain of a patch before its inverse is taken as a weight


def refine(
    noisy: Tensor, first: Tensor, parts: Iterable[Tensor], patch_size: int, sigma2: Tensor, rows: range | None = None
) -> Tensor:
    """(2, rows, W, C): mean and variance of every pixel in `rows`, all by default; each channel has its own gain.

    `noisy`, `first` (H, W, C): the picture and its first estimate; `parts`, (G, n) each: numbers of similar patches;
    `sigma2` (C,): variance of the noise.
    """
    height, width, n_channels = noisy.shape
    weights = torch.ones(patch_size**2)
    sums = [Accumulator((height, width, 1), patch_size, 1, weights, rows) for _ in range(n_channels)]
    channels = list(zip(noisy.split(1, -1), first.split(1, -1), sigma2.tolist(), sums, strict=True))
    for groups in parts:
        n_at_once = max(1, CHUNK_VALUES // (groups.shape[1] * patch_size**2))
        for group in groups.split(n_at_once):
            for y, pilot, s, total in channels:
                mean, gain = _posterior(take(y, patch_size, group), take(pilot, patch_size, group), s)
                variance = (s * gain)[..., None].expand_as(mean)
                total.add(
                    group.flatten(), mean.flatten(0, 1), variance.flatten(0, 1), 1 / (gain.flatten() + WEIGHT_FLOOR)
                )
    return torch.cat([each.result() for each in sums], -1)


def _posterior(y: Tensor, pilot: Tensor, sigma2: float) -> tuple[Tensor, Tensor]:
    """y, pilot (G, n, D) -> (G, n, D), (G, n): the mean, and the variance in units of sigma2."""
    centre = pilot.mean((1, 2), keepdim=True)
    pilot = pilot - centre
    wide = pilot.double()  # with little noise K + sigma2 I is too close to singular for single precision
    covariance = wide @ wide.transpose(1, 2) / y.shape[2]
    identity = torch.eye(y.shape[1], dtype=torch.float64)
    gain = torch.cholesky_solve(covariance, torch.linalg.cholesky(covariance + sigma2 * identity))  # K and it commute
    gain = gain.to(y.dtype)
    return centre + gain.transpose(1, 2) @ (y - centre), gain.diagonal(dim1=1, dim2=2)
