"""The second stage of a restoration: another estimate of a picture, from the model's as a pilot.

`restoration=NAME` chooses one of the table, `posterior_mean` the model alone. A second stage is no part of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvae.data.picture import Picture
from tvae.restoration.non_local.effort import REFINEMENTS, Refinement
from tvae.restoration.non_local.filling import n_passes, sizes
from tvae.restoration.non_local.stage import LARGER_GROUPS, MUCH_NOISE, SIDE_MIN, refine_restored
from tvae.restoration.posterior_mean import Restored
from tvae.restoration.tiling import Bands

GROUP, BY_VALUE = 20e-6, 0.011e-6  # seconds of a local group, and on top of it by the values of its patches
FILLED, BY_VOLUME = 60e-6, 2.4e-9  # a group to fill; on top by the square of its size times the values of a patch

Refine = Callable[[Picture, Callable[[], Restored], bool, str, Bands], Restored]
Forecast = Callable[[Picture, bool, str], dict[str, float]]


@dataclass(frozen=True)
class SecondStage:
    """Each function is given the picture, whether known pixels stay as they are, and the effort."""

    refine: Refine  # after the picture: a function that hands over the pilot; at the end: the bands to compute it in
    seconds: Forecast  # of one core, for each stage that `Bands.fill` names, in its order; see `cost`
    bytes_per_value: Callable[[Picture, bool, str], int]  # of memory, on top of the picture itself


def _seconds_of_nonlocal(picture: Picture, keep_known: bool, effort: str) -> dict[str, float]:
    is_small = min(picture.page_height, picture.noisy.shape[1]) < SIDE_MIN
    if is_small or picture.covariance is not None:
        return {}
    plan = REFINEMENTS[effort]
    return _denoising(plan, picture) if picture.is_nearly_whole(keep_known) else _filling(plan, picture, keep_known)


def _denoising(plan: Refinement, picture: Picture) -> dict[str, float]:
    height, width, n_channels = picture.noisy.shape
    growth = LARGER_GROUPS if picture.noise * 255 / picture.grey_range > MUCH_NOISE else 1.0
    each = (GROUP + BY_VALUE * growth * n_similar * side**2 * n_channels for side, n_similar in plan.local)
    seconds = height * width / plan.step**2 * sum(each)
    return {"local": seconds, "again": seconds} if plan.is_repeated else {"local": seconds}


def _filling(plan: Refinement, picture: Picture, is_exact: bool) -> dict[str, float]:
    height, width, n_channels = picture.noisy.shape
    each = (FILLED + BY_VOLUME * n_similar**2 * side**2 * n_channels for side, n_similar in sizes(plan, n_channels))
    seconds = height * width / plan.step**2 * sum(each)
    return {f"filled {i}": seconds for i in range(n_passes(plan, is_exact))}


def _bytes_of_nonlocal(picture: Picture, keep_known: bool, effort: str) -> int:
    """Estimates in single precision (4 each), and results."""
    if not picture.is_nearly_whole(keep_known):
        return 48
    return 44 if REFINEMENTS[effort].is_repeated else 32


SECOND_STAGES = {"nonlocal": SecondStage(refine_restored, _seconds_of_nonlocal, _bytes_of_nonlocal)}
