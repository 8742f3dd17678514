"""Missing pixels from local groups: passes of `local_filling`, each with the result of the one before as its pilot."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.restoration.non_local.block_matching import similar_patches
from tvae.restoration.non_local.effort import Refinement
from tvae.restoration.non_local.local_filling import fill_locally
from tvae.restoration.tiling import Band, Bands


def fill_pixels(
    y: Tensor, known: Tensor, pilot: Tensor, sigma: float, plan: Refinement, n_pages: int, bands: Bands
) -> Tensor:
    """(2, H, W, C): mean and variance of every pixel where some are missing, averaged over the patch sizes of the plan.

    `y`, `known`, `pilot` (H, W, C): values, which of them are known, and a first estimate; `sigma`: deviation of the
    noise, 0 where known values are exact.
    """
    groups_of_pass = sizes(plan, y.shape[2])

    def of_band(band: Band) -> Tensor:
        images = y[band.page], known[band.page], pilot[band.page]
        total = torch.zeros(2, len(band.rows), *y.shape[1:], dtype=torch.float64)
        for side, n_similar in groups_of_pass:
            size = min(side, *images[0].shape[:2])
            groups = similar_patches(images[2], size, plan.step, plan.radius, n_similar, band.rows)
            total += fill_locally(*images, groups, size, sigma**2, band.rows)
        return total / len(groups_of_pass)

    found = torch.zeros(2, *y.shape, dtype=torch.float64)
    for i in range(n_passes(plan, sigma == 0)):
        if i > 0:
            pilot = found[0].to(y.dtype)
        if sigma == 0:
            pilot = torch.where(known, y, pilot)
        bands.fill(f"filled {i}", found, n_pages, of_band)
    return found


def n_passes(plan: Refinement, is_exact: bool) -> int:
    """The number of passes, where known values are exact or noisy."""
    return plan.n_fill_passes if is_exact else plan.n_noisy_passes


def sizes(plan: Refinement, n_channels: int) -> tuple[tuple[int, int], ...]:
    """Patch size and group size of each kind of group in a pass."""
    return plan.fill if n_channels == 1 else plan.fill_of_colour
