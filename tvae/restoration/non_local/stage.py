"""The nonlocal stage: a second denoiser that takes the model's picture as its pilot.

Neither the binary states nor the decoder appear in it. The pilot's patches fall into groups, each of which gets a mean
and a covariance of its own by EM on the noisy patches (`mixture`). The picture that follows says which patches are
alike; NL-Ridge combines those of every local group linearly (`local_groups`). Results for several patch sizes are
averaged. Where pixels are missing, `filling` does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tvae.data.patches import extract, uniform_weights, windows
from tvae.data.picture import Picture
from tvae.inference.streams import generator
from tvae.model.units import Units
from tvae.noise.level import CLIPPED, estimate_noise
from tvae.restoration.aggregation import Accumulator
from tvae.restoration.non_local.effort import REFINEMENTS, Refinement
from tvae.restoration.non_local.filling import SIGMA_OF_KNOWN, fill_pixels
from tvae.restoration.non_local.local_groups import refine_locally
from tvae.restoration.non_local.mixture import CHUNK, N_PER_GROUP, Mixture, cluster, fit_mixture, sums_of_groups
from tvae.restoration.posterior_mean import Restored, kept
from tvae.restoration.tiling import Band, Bands, chunks, overlapping

# The two stated deviations err in opposite directions: that of local groups is too small, for the groups were chosen on
# the picture itself; that of the mixture too large, for the errors of overlapping patches average out. Their geometric
# mean, times this, is calibrated on the development pictures (docs/quality.md). Where everything is flat, local groups
# would take themselves for certain, so that theirs is no less than a share of the noise.
CALIBRATION = 1.1
LEAST = 0.05
N_GROUPS = 200
MUCH_NOISE = 35.0  # deviation in grey levels of 0..255
SIDE_MIN = 16  # pixels; smaller pictures have too few patches for a covariance
SIZE_FOR_LITTLE_NOISE, SIZE_FOR_MUCH_NOISE = 8, 10  # pixels along a side of the mixture's patches
LARGER_GROUPS = 1.4
N_FITTED = 300_000  # patches, about; of more than that the mixture is fitted to every so many pixels
N_DENSE = 4_000_000  # pixels; of larger pictures the mixture takes every second patch (docs/pictures.md)
SIGMA_MIN = 1e-4  # of the peak; less noise than that is taken for none


def patch_size_for(sigma: float, peak: float) -> int:
    """The patch size of the mixture: more noise takes larger patches."""
    return SIZE_FOR_MUCH_NOISE if sigma * 255 / peak > MUCH_NOISE else SIZE_FOR_LITTLE_NOISE


def refine_restored(
    picture: Picture,
    estimate: Callable[[], Restored],
    keep_observed: bool,
    effort: str,
    seed: int,
    bands: Bands = Bands(),  # noqa: B008
) -> Restored:
    """A picture refined. To be called on all ranks, which share the bands out. Very small ones stay as they are.

    `estimate`: makes the first one, which nobody else keeps, for of a large picture it counts.
    """
    first = estimate()
    if min(picture.page_height, picture.noisy.shape[1]) < SIDE_MIN:
        return first
    known = np.ones(picture.noisy.shape, dtype=bool) if picture.known is None else picture.known
    units = Units(float(picture.noisy[known].mean()), picture.grey_range)
    is_whole = picture.is_nearly_whole(keep_observed)
    is_patched = is_whole and picture.known is not None
    values = np.where(known, picture.noisy, first.pixels) if is_patched else picture.noisy
    # the pilot in a list, so that it can be let go where it is used last: of a large picture it counts
    noisy, *pilot = (units.to_model(torch.from_numpy(each)).float() for each in (values, first.pixels))
    plan, rng = REFINEMENTS[effort], generator(seed, "groups")
    told = picture.sigma
    if is_whole and first.noise_level is not None:
        sigma = max((first.noise_level if told is None else told) / units.std, SIGMA_MIN)
        deviation = torch.from_numpy(first.uncertainty).float() / units.std
        del first, values, known
        found = refine_pilot(noisy, pilot.pop(), deviation, sigma, plan, picture.n_pages, bands)
        return in_units(found, units, sigma)
    level = estimate_noise(values, None if is_whole else picture.missing) if told is None else told
    sigma = max(level / units.std, SIGMA_MIN)
    del first, values
    if is_whole:
        size = min(patch_size_for(sigma, 1.0), picture.page_height, noisy.shape[1])
        is_told = told is not None
        del known
        found, sigma = refine_pixels(noisy, pilot.pop(), sigma, size, plan, rng, picture.n_pages, bands, is_told)
    else:
        sigma = SIGMA_OF_KNOWN if keep_observed else max(sigma, SIGMA_OF_KNOWN)
        found = fill_pixels(noisy, torch.tensor(known), pilot.pop(), sigma, plan, rng, picture.n_pages, bands)
    restored = in_units(found, units, sigma)
    if keep_observed and picture.missing is not None:
        return kept(replace(restored, noise_level=None), picture)
    return restored


def in_units(found: Tensor, units: Units, sigma: float) -> Restored:
    """(2, H, W, C), mean and deviation as the model sees them, in the data's own units."""
    pixels, uncertainty = found.numpy()
    pixels *= units.std
    pixels += units.mean
    uncertainty *= units.std
    return Restored(pixels, uncertainty, units.std * sigma)


def refine_pilot(
    y: Tensor, pilot: Tensor, deviation: Tensor, sigma: float, plan: Refinement, n_pages: int, bands: Bands
) -> Tensor:
    """(2, H, W, C): mean and deviation of every pixel, from local groups of a pilot that knows its own deviation."""
    sigma2, patch_size = sigma**2, patch_size_for(sigma, 1.0)

    def of_band(band: Band) -> Tensor:
        return by_local_groups(y[band.page], pilot[band.page], sigma2, patch_size, plan, band.rows, bands.within)

    found = torch.zeros(2, *y.shape, dtype=torch.float64)
    bands.fill("local", found, n_pages, of_band)
    found[1].clamp_(min=LEAST**2 * sigma2).mul_(deviation.square()).pow_(0.25).mul_(CALIBRATION)
    if plan.is_repeated:
        pilot = (found[0].float() + pilot) / 2
        again = torch.zeros_like(found)
        bands.fill("again", again, n_pages, of_band)
        found[0] = (found[0] + again[0]) / 2
    return found


def refine_pixels(
    y: Tensor,
    pilot: Tensor,
    sigma: float,
    patch_size: int,
    plan: Refinement,
    rng: torch.Generator,
    n_pages: int,
    bands: Bands,
    is_told: bool = False,
) -> tuple[Tensor, float]:
    """(2, H, W, C): mean and deviation of every pixel; and the deviation of the noise as found on the way.

    `y`, `pilot` (H, W, C): the picture and its first estimate; `sigma`: a guess of the noise, or what it is.
    """
    wide, stride = torch.zeros(2, *y.shape), stride_for(y.shape[0] * y.shape[1])
    sigma2, local = sigma**2, plan.first if stride == 1 else ()

    def of_band(band: Band) -> Tensor:
        now = replace(plan, local=local)
        return by_local_groups(y[band.page], pilot[band.page], sigma2, patch_size, now, band.rows, bands.within)

    if local:
        bands.fill("first", wide, n_pages, of_band)
        pilot = wide[0].clone()
    bands.watch("fit", 0.0)
    mixture = mixture_of(y, pilot, sigma2, patch_size, plan, rng, n_pages, is_told)
    sigma2, local = mixture.sigma2, plan.local
    bands.fill("mixture", wide, n_pages, lambda band: by_mixture(y[band.page], mixture, patch_size, band.rows, stride))
    pilot, variance = wide
    found = torch.zeros(2, *y.shape, dtype=torch.float64)
    bands.fill("local", found, n_pages, of_band)
    found[1].clamp_(min=LEAST**2 * sigma2).mul_(variance).pow_(0.25).mul_(CALIBRATION)
    if plan.is_repeated:
        pilot = (found[0].float() + pilot) / 2
        del wide, variance  # of a large picture they count
        again = torch.zeros_like(found)
        bands.fill("again", again, n_pages, of_band)
        found[0] = (found[0] + again[0]) / 2
    return found, sigma2**0.5


def stride_for(n_pixels: int) -> int:
    """Between the patches of a large picture's mixture, the pilot of the local groups: every second will do."""
    return 1 if n_pixels <= N_DENSE else 2


def mixture_of(
    y: Tensor,
    pilot: Tensor,
    sigma2: float,
    patch_size: int,
    plan: Refinement,
    rng: torch.Generator,
    n_pages: int,
    is_told: bool = False,
) -> Mixture:
    """Fitted to patches of y, from groups of the pilot's; too many are thinned out."""
    height, width, _ = y.shape
    n_places = (height // n_pages - patch_size + 1) * (width - patch_size + 1) * n_pages
    stride = math.ceil((n_places / N_FITTED) ** 0.5)
    first = extract(pilot, patch_size, stride, n_pages)
    n_groups = max(1, min(N_GROUPS, len(first) // N_PER_GROUP))
    group = cluster(first, n_groups, rng)
    del first
    patches = extract(y, patch_size, stride, n_pages)
    sums = sums_of_groups(patches, group, n_groups)
    low, high = y.min(), y.max()
    is_free = torch.cat([((x == low) | (x == high)).float().mean(1) <= CLIPPED for x in patches.split(CHUNK)])
    of_free = sums if is_free.all() else sums_of_groups(patches[is_free], group[is_free], n_groups)
    if not is_told:
        sigma2 = min(sigma2, of_free.noise_variance(sigma2))
    return fit_mixture(patches, sums, sigma2, plan.n_rounds)


def by_mixture(y: Tensor, mixture: Mixture, patch_size: int, rows: range, stride: int = 1) -> Tensor:
    """(2, rows, W, C): mean and variance of the pixels in some rows of a page, from patches every `stride` pixels."""
    height, width, n_channels = y.shape
    averages = Accumulator((height, width, n_channels), patch_size, stride, uniform_weights(patch_size), rows)
    n_columns, reach = len(averages.columns), overlapping(averages.rows, patch_size, rows)
    wanted = range(reach.start * n_columns, reach.stop * n_columns)
    for index in chunks(wanted, CHUNK, len(averages.rows) * n_columns):
        place = averages.rows[index // n_columns], averages.columns[index % n_columns]
        averages.add(index, *mixture.moments(windows(y, patch_size)[place].flatten(1)))
    return averages.result()


def by_local_groups(
    y: Tensor,
    pilot: Tensor,
    sigma2: float | Tensor,
    patch_size: int,
    plan: Refinement,
    rows: range,
    tell: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """(2, rows, W, C): mean and variance under Gaussians of local groups of patches that are alike in the pilot.

    Average over the patch sizes of the plan; where the mixture has large patches, for much noise, groups are larger.
    """
    growth = LARGER_GROUPS if patch_size > SIZE_FOR_LITTLE_NOISE else 1.0
    total = torch.zeros(2, len(rows), *y.shape[1:], dtype=torch.float64)
    for i, (side, n_similar) in enumerate(plan.local):
        size, n = min(side, *y.shape[:2]), round(growth * n_similar)
        before = partial(tell, i / len(plan.local))
        total += refine_locally(y, pilot, size, plan.step, plan.radius, n, sigma2, rows, before)
    return total / len(plan.local)
