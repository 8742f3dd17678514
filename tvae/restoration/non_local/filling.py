"""Missing pixels, by a mixture over the whole picture (`completion`) and then by local groups (`local_filling`).

Between scattered pixels that are known for certain, the smoothest picture is the better start.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.restoration.non_local.block_matching import similar_patches
from tvae.restoration.non_local.completion import complete_pixels
from tvae.restoration.non_local.effort import Refinement
from tvae.restoration.non_local.local_filling import fill_locally
from tvae.restoration.non_local.mixture import N_PER_GROUP
from tvae.restoration.non_local.smoothness import smoothest
from tvae.restoration.tiling import Band, Bands

N_GROUPS = 100
SIZE, SIZE_OF_COLOUR = 8, 5  # pixels along a side of the mixture's patches
SIGMA_OF_KNOWN = 1 / 255  # of the peak: deviation of pixels that are taken for exact


def fill_pixels(
    y: Tensor,
    known: Tensor,
    pilot: Tensor,
    sigma: float,
    plan: Refinement,
    rng: torch.Generator,
    n_pages: int,
    bands: Bands,
) -> Tensor:
    """(2, H, W, C): mean and deviation of every pixel, where some are missing."""
    height = y.shape[0] // n_pages
    size = min(SIZE if y.shape[2] == 1 else SIZE_OF_COLOUR, height, y.shape[1])
    n_patches = (height - size + 1) * (y.shape[1] - size + 1) * n_pages
    n_groups = max(1, min(N_GROUPS, n_patches // N_PER_GROUP))
    if sigma <= SIGMA_OF_KNOWN:
        pages = (each.chunk(n_pages) for each in (y, known, pilot))
        pilot = torch.cat([smoothest(*page) for page in zip(*pages, strict=True)])
    found = complete_pixels(y, known, pilot, sigma**2, size, n_groups, plan.n_fill_rounds, rng, n_pages, bands)
    variance = found[1].clone()
    size, n_similar = min(plan.fill_size, height, y.shape[1]), plan.n_fill_similar

    def of_band(band: Band) -> Tensor:
        images = y[band.page], known[band.page], pilot[band.page]
        groups = similar_patches(images[2], size, plan.step, plan.radius, n_similar, band.rows)
        return fill_locally(*images, groups, size, sigma**2, band.rows)

    for i in range(plan.n_fill_passes):
        pilot = (torch.where(known, y, found[0]) if sigma <= SIGMA_OF_KNOWN else found[0]).to(y.dtype)
        bands.fill(f"filled again {i}", found, n_pages, of_band)
    found[1] = deviation_of_filled(found[1], variance) if sigma <= SIGMA_OF_KNOWN else (found[1] * variance).pow(0.25)
    return found


def deviation_of_filled(local: Tensor, variance: Tensor) -> Tensor:
    """From the variance that local groups state, and that of the mixture. The larger, the more local groups understate.

    The powers are those with the best calibration on development pictures (docs/quality.md).
    """
    level = 1 / 255  # grey values are whole
    variance = (local / level**2).pow(1.2) * (variance / level**2).pow(0.1) + 0.25
    return level * variance.sqrt()
