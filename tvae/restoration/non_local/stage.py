"""The nonlocal stage: local groups of alike patches, found in the model's picture.

The model's picture is the pilot: it says which patches are alike, and NL-Ridge combines those of every local group
linearly (`local_groups`). Results for several patch sizes are averaged. Where pixels are missing, local groups fill
them in (`filling`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tvae.data.picture import Picture
from tvae.model.units import Units
from tvae.noise.level import estimate_noise
from tvae.restoration.non_local.effort import REFINEMENTS, Refinement
from tvae.restoration.non_local.filling import fill_pixels
from tvae.restoration.non_local.local_groups import refine_locally
from tvae.restoration.posterior_mean import Restored, kept
from tvae.restoration.tiling import Band, Bands

LEAST = 0.05  # of the noise: the stated deviation, at least, also where everything is flat
MUCH_NOISE = 35.0  # deviation in grey levels of 0..255, beyond which groups are larger
LARGER_GROUPS = 1.4
SIDE_MIN = 16  # pixels; smaller pictures have too few patches to compare
NOISE_SHARE = 0.95  # the pilot has lost detail, so that the covariance of its patches is a little too small
SIGMA_MIN = 1e-4  # of the peak; less noise than that is taken for none


def refine_restored(
    picture: Picture,
    estimate: Callable[[], Restored],
    keep_observed: bool,
    effort: str,
    bands: Bands = Bands(),  # noqa: B008
) -> Restored:
    """A picture refined. To be called on all ranks, which share the bands out. Very small ones stay as they are.

    So do those whose noise is correlated: groups know white noise alone.

    `estimate`: makes the first one, which nobody else keeps, for of a large picture it counts.
    """
    first = estimate()
    if min(picture.page_height, picture.noisy.shape[1]) < SIDE_MIN or picture.covariance is not None:
        return first
    plan, is_whole = REFINEMENTS[effort], picture.is_nearly_whole(keep_observed)
    known = np.ones(picture.noisy.shape, dtype=bool) if picture.known is None else picture.known
    units = Units(float(picture.noisy[known].mean()), picture.grey_range)
    values = np.where(known, picture.noisy, first.pixels) if is_whole and picture.known is not None else picture.noisy
    # the pilot in a list, so that it can be let go where it is used last: of a large picture it counts
    noisy, *pilot = (units.to_model(torch.from_numpy(each)).float() for each in (values, first.pixels))
    is_exact = keep_observed and picture.known is not None
    level = picture.sigma or first.noise_level or estimate_noise(values, None if is_whole else picture.missing)
    sigma = 0.0 if is_exact else max(level / units.std, SIGMA_MIN)
    variance = torch.from_numpy(first.uncertainty / units.std).float().square_() if first.is_posterior else None
    del first, values
    if is_whole:
        del known
        found = refine_pilot(noisy, pilot.pop(), sigma, plan, picture.n_pages, bands)
    else:
        found = fill_pixels(noisy, torch.tensor(known), pilot.pop(), sigma, plan, picture.n_pages, bands)
    if variance is not None:  # local groups take themselves for too certain: they were chosen on the picture itself
        found[1] = variance.clamp(min=LEAST**2 * sigma**2)
    restored = in_units(found, units, sigma)
    return kept(replace(restored, noise_level=None), picture) if is_exact else restored


def in_units(found: Tensor, units: Units, sigma: float) -> Restored:
    """(2, H, W, C), mean and variance as the model sees them, in the data's own units."""
    pixels, uncertainty = found.numpy()
    pixels *= units.std
    pixels += units.mean
    np.sqrt(uncertainty, out=uncertainty)
    uncertainty *= units.std
    return Restored(pixels, uncertainty, units.std * sigma)


def refine_pilot(y: Tensor, pilot: Tensor, sigma: float, plan: Refinement, n_pages: int, bands: Bands) -> Tensor:
    """(2, H, W, C): mean and variance of every pixel, from local groups of the pilot's patches."""
    sigma2, is_much = (NOISE_SHARE * sigma) ** 2, sigma * 255 > MUCH_NOISE
    growth = LARGER_GROUPS if is_much else 1.0

    def of_band(band: Band) -> Tensor:
        return by_local_groups(y[band.page], pilot[band.page], sigma2, growth, plan, band.rows, bands.within)

    found = torch.zeros(2, *y.shape, dtype=torch.float64)
    bands.fill("local", found, n_pages, of_band)
    found[1].clamp_(min=LEAST**2 * sigma2)
    if plan.is_repeated:
        trust = 1.0 if is_much else 0.5  # in the newer picture
        pilot = pilot.lerp(found[0].float(), trust)
        again = torch.zeros_like(found)
        bands.fill("again", again, n_pages, of_band)
        found[0].lerp_(again[0], trust)
    return found


def by_local_groups(
    y: Tensor,
    pilot: Tensor,
    sigma2: float | Tensor,
    growth: float,
    plan: Refinement,
    rows: range,
    tell: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """(2, rows, W, C): mean and variance under Gaussians of local groups of patches that are alike in the pilot.

    Average over the patch sizes of the plan, whose groups are `growth` times as large.
    """
    total = torch.zeros(2, len(rows), *y.shape[1:], dtype=torch.float64)
    for i, (side, n_similar) in enumerate(plan.local):
        size, n = min(side, *y.shape[:2]), round(growth * n_similar)
        before = partial(tell, i / len(plan.local))
        total += refine_locally(y, pilot, size, plan.step, plan.radius, n, sigma2, rows, before)
    return total / len(plan.local)
