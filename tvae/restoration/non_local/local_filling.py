"""Missing pixels from local groups of similar patches: `local_groups` where only some of the values are known.

The n patches of a group are the rows of Y (n, D). Each column, which is one pixel of all of them, is drawn from N(c, K)
with the covariance K of the group in the first estimate; with o the patches that know this pixel,

    E[x | y_o] = c + K_:o (K_oo + s I)^-1 (y_o - c),        Cov[x | y_o] = K - K_:o (K_oo + s I)^-1 K_o:
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tvae.backends.native import local_groups as native
from tvae.data.patches import take
from tvae.restoration.aggregation import Accumulator

CHUNK_VALUES = 1 << 22  # of the matrices at once
SLACK = 2 / 255  # of the peak: deviation, at least, of known values from what their group says of them


def fill_locally(
    y: Tensor,
    known: Tensor,
    first: Tensor,
    parts: Iterable[Tensor],
    patch_size: int,
    s: float,
    rows: range | None = None,
) -> Tensor:
    """(2, rows, W, C): mean and variance of every pixel in `rows`, all by default.

    `y`, `known`, `first` (H, W, C): values, which of them are known, and a first estimate; `parts`, (G, n) each:
    numbers of similar patches; `s`: variance of the noise.
    """
    height, width, n_channels = y.shape
    sums = Accumulator((height, width, n_channels), patch_size, 1, torch.ones(patch_size**2), rows)
    s = max(s, SLACK**2)
    is_native = native.is_usable(y)
    fill = native.fill if is_native else _posterior
    for groups in parts:
        n_similar = groups.shape[1]
        n_at_once = max(1, CHUNK_VALUES // (n_similar * (8 if is_native else n_similar) * patch_size**2 * n_channels))
        for group in groups.split(n_at_once):
            values, observed, pilot = (take(each, patch_size, group) for each in (y, known, first))  # (G, n, D)
            mean, variance = (each.flatten(0, 1) for each in fill(values, observed, pilot, s))
            sums.add(group.flatten(), mean, variance, 1 / (variance + s))
    return sums.result()


def _posterior(y: Tensor, observed: Tensor, pilot: Tensor, s: float) -> tuple[Tensor, Tensor]:
    """(G, n, D) each: mean and variance of every value of the groups' patches."""
    centre = pilot.mean((1, 2), keepdim=True)
    pilot = pilot - centre
    covariance = (pilot @ pilot.transpose(1, 2) / pilot.shape[2])[:, None]  # (G, 1, n, n)
    known = observed.transpose(1, 2).to(y.dtype)  # (G, D, n)
    centred = ((y - centre).transpose(1, 2) * known)[..., None]
    factor = torch.linalg.cholesky(observed_part(covariance, known, s))  # (G, D, n, n)
    solved = torch.linalg.solve_triangular(factor, torch.cat([covariance * known[..., None], centred], -1), upper=False)
    cross, residual = solved[..., :-1], solved[..., -1:]
    mean = centre + (cross.transpose(-1, -2) @ residual)[..., 0].transpose(1, 2)
    variance = covariance.diagonal(dim1=-2, dim2=-1) - cross.square().sum(-2)
    return mean, variance.clamp(min=0).transpose(1, 2)


def observed_part(covariance: Tensor, observed: Tensor, s: float) -> Tensor:
    """(..., D, D) and (..., D): C_oo + s I for what is observed, the identity for the rest."""
    known = observed.to(covariance.dtype)
    masked = covariance * known[..., :, None] * known[..., None, :]
    return masked + torch.diag_embed(known * s + (1 - known))
