"""The kind of noise in a picture: the same small model is fitted with each candidate, and the highest bound wins.

Candidates: white Gaussian noise, with one level or a level for each channel; photon counts, by a variance-stabilising
transform; noise correlated between neighbours and channels, by its covariance in a patch; and both. What the bound
cannot tell is correlated noise from texture, so that anything but white noise has to be everywhere in the picture
(`blocks.evenness`), and to stand out from the steps between grey levels. In doubt nothing is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from tvae.data.patches import extract
from tvae.data.picture import Picture, size_of
from tvae.errors import UserError, refuse
from tvae.io.image_file import read_image
from tvae.model.covariance import Covariance, white_noise
from tvae.noise.blocks import LAGS, Blocks, Line, blocks_of, evenness
from tvae.noise.bound import bound_of
from tvae.noise.level import diagonal_details
from tvae.noise.model import NoiseModel
from tvae.noise.outliers import find_outliers, replace_outliers
from tvae.noise.stabilise import Anscombe, Scaling
from tvae.noise.treatment import Step, Treatment

N_PATCHES, PATCHES_MIN = 2000, 200
SIZE, SIZE_OF_COLOUR = 8, 6  # pixels along a side of a patch
MARGIN = 0.015  # nats per value by which a candidate has to be ahead of simpler ones (docs/noise.md)
MARGIN_OF_COVARIANCE = 0.12  # the same: half of what real correlated noise has; texture is correlated, too
EVENNESS_MIN = 0.7  # of noise that is everywhere, on real pictures (docs/noise.md)
LAG_MIN = 0.5  # correlation of neighbours: interpolation between the colours of a sensor leaves more, texture has less
LEVEL_MIN = 0.01  # of the contrast: less noise than that is hardly seen, and not worth a mistake
STEPS_MIN, FINE = 2.0, 64  # the same in steps between grey levels, where the contrast has more steps than the latter
ROUNDING = 0.6  # the same for white noise where it has fewer, as counts of single photons: twice what rounding leaves
CONTRAST = (0.001, 0.999)  # quantiles between which a picture's contrast is
GROWTH_MIN = 1.5  # of the variance, from dark to bright, with less of which no transform is tried
# Photon counts are white at every brightness, and their variance is on a line; strokes, stars and dots, whose variance
# grows as well, are smooth or off the line (docs/noise.md).
FINEST_MIN, MISS_MAX = 0.32, 0.25
FINEST_MIN_OF_FEW = 0.5  # the same where noise is more than the contrast, so that blocks hold hardly anything else
OF_MEANS = 6  # deviations between the darkest and the brightest block, of which a block's mean has one over its side
DETAILS = (1e-3, 0.01, 0.03, 0.1, 0.3)  # tried: variance of what few directions do not hold, over that of the noise
KNOWN_MIN = 0.9  # share of the values, with less of which no covariance is looked for
NEARLY_ZERO = 1e-6  # of the brightest: no line goes through the origin there
PILED_UP = 1e-3  # share of values at an extreme that is more than chance
COARSE = 3.0  # steps between grey levels that a deviation has at least, where values at the lowest one are clipped


class Candidate(NamedTuple):
    name: str
    kind: str
    nats: float
    sigma: float  # deviation of the noise after the step
    step: Step | None = None
    line: Line | None = None
    covariance: Covariance | None = None


def with_noise_model(picture: Picture, kind: str, sigma_map: str | None, fills_outliers: bool = False) -> Picture:
    """Add what the noise is and how it is treated.

    `kind`: auto, or what the user says it is; `sigma_map`: file of the noise's deviation at every pixel.
    """
    sigma = None if sigma_map is None else read_sigma(sigma_map, picture)
    judged = judge(picture, kind if sigma is None else "gaussian")
    if judged is None:
        refuse(kind not in ("auto", "gaussian"), f"noise_model={kind}: too little of the picture is known to tell")
    if sigma_map is not None and sigma is not None:
        scaled = picture.noisy / sigma
        known = scaled if picture.known is None else scaled[picture.known]
        refuse(bool(known.min() == known.max()), f"{sigma_map}: divided by it, the picture is the same everywhere")
        treatment = Treatment(Scaling(sigma), 1.0, float(np.median(sigma)))
        return replace(picture, noise_model=judged and judged[0], treatment=treatment, sigma_map=sigma)
    if judged is None:
        return picture
    model, found = judged
    treatment = replace(found or Treatment(), outliers=model.outliers if fills_outliers else None)
    is_needed = found is not None or treatment.outliers is not None
    return replace(picture, noise_model=model, treatment=treatment if is_needed else None)


def read_sigma(path: str, picture: Picture) -> np.ndarray:
    """(H, W, 1 or C), in the picture's own units."""
    image = read_image(path)
    if image.pixels.shape[:2] != picture.noisy.shape[:2]:
        raise UserError(f"{path}: {size_of(image)} pixels, but the image has {size_of(picture.image)}")
    refuse(image.missing is not None or bool(image.pixels.min() <= 0), f"{path}: a noise level must be above zero")
    is_colour = image.pixels.shape[2] == picture.noisy.shape[2]
    return image.pixels if is_colour else image.pixels.mean(-1, keepdims=True)


def judge(picture: Picture, kind: str) -> tuple[NoiseModel, Treatment | None] | None:
    """The noise of a picture and its treatment, if there is one; None: too little of it is known to tell."""
    known = np.ones(picture.noisy.shape, dtype=bool) if picture.known is None else picture.known
    step = step_of(picture.noisy[known])
    rough = diagonal_details(picture.noisy, picture.missing)
    outliers = known & find_outliers(
        picture.noisy if known.all() else replace_outliers(picture.noisy, ~known), rough, step, picture.grey_range
    )
    dither = step * np.random.default_rng(0).uniform(-0.5, 0.5, picture.noisy.shape)
    whole = known & ~outliers  # isolated pixels say nothing of the noise around them
    trial = Trial.of(picture.noisy + dither, whole, picture.n_pages)
    clipped = _clipped(picture.noisy, known, rough, step)
    blocks_in, usable = partial(blocks_of, usable=whole, clipped=clipped), whole & ~clipped
    blocks = None if trial is None else blocks_in(trial.pixels)
    if trial is None or blocks is None:
        return None
    line, even = blocks.line(), evenness(trial.pixels, usable)
    line = replace(line, offset=line.offset - step**2 / 12)  # without what dithering adds
    found = [trial.fit("white", "gaussian", max(rough, 1e-3 * step))]
    contrast = float(np.ptp(np.quantile(trial.pixels[known], CONTRAST)))
    if kind == "gaussian" or (kind == "auto" and even < EVENNESS_MIN):
        candidates: list[Candidate] = []
    else:
        candidates = list(_candidates(trial, blocks_in, line, usable, found[0], kind))
    found += candidates
    wanted = found if kind == "auto" else [each for each in found if each.kind == kind]
    if not wanted:
        raise UserError(f"noise_model={kind}: the variance of the noise does not grow with brightness here")
    best = wanted[0]
    for each in wanted[1:]:  # from the simple to the complex
        margin = MARGIN if each.covariance is None else MARGIN_OF_COVARIANCE
        best = each if each.nats > best.nats + margin else best
    level, n_channels = best.sigma, picture.noisy.shape[2]
    if best.step is not None:
        typical = np.full((1, 1, n_channels), np.median(trial.pixels[usable]))
        level *= math.exp(-float(best.step.log_slope(typical).mean()))
    is_fine = contrast > FINE * step or best.covariance is not None
    if kind == "auto" and level < max((STEPS_MIN if is_fine else ROUNDING) * step, LEVEL_MIN * contrast):
        best = found[0]
    saturated = float((picture.noisy == picture.noisy.max()).mean())
    model = NoiseModel(
        best.kind,
        best.line or line,
        best.step is not None and best.kind != "gaussian",
        best.covariance or white_noise(n_channels, LAGS),
        best.sigma,
        {each.name: each.nats for each in found},
        even,
        outliers if outliers.any() else None,
        saturated if saturated > PILED_UP else 0.0,
        step,
    )
    if best.step is None and best.covariance is None:
        return model, None
    return model, Treatment(best.step, best.sigma, level, best.covariance)


def _candidates(
    trial: Trial,
    blocks_in: Callable[[np.ndarray], Blocks | None],
    line: Line,
    usable: np.ndarray,
    white: Candidate,
    kind: str,
) -> list[Candidate]:
    """Fit all candidates but white noise of one level; the covariance is that after the transform, if any."""
    found: list[Candidate] = []
    lines = [line]
    if line.mean.min() > max(NEARLY_ZERO * line.mean.max(), np.finfo(np.float32).tiny):
        lines.append(replace(line, gain=float(np.median(line.variance) / np.median(line.mean)), offset=0.0))
    lines = [each for each in lines if each.gain > 0 and (kind == "poisson_gaussian" or _is_of_counts(each))]
    if lines:
        found.append(_photon_counts(trial, lines))
    if kind == "poisson_gaussian" or usable.mean() < KNOWN_MIN:
        return found
    is_stabilised = bool(found) and found[0].nats > white.nats + MARGIN
    step, used = (found[0].step, found[0].line) if is_stabilised else (None, None)
    of_step = blocks_in(trial.pixels if step is None else step.injective(trial.pixels))
    assert of_step is not None  # as many as before
    table = of_step.autocovariance()
    levels = np.sqrt(np.einsum("aakl->akl", table)[:, 0, 0].clip(min=np.finfo(float).tiny))
    if levels.min() <= NEARLY_ZERO * np.ptp(trial.pixels):  # flat blocks without any noise
        return found
    covariance = Covariance(_normalised(table))
    if covariance.lag(1) >= LAG_MIN or kind == "correlated":
        sigma = of_step.level(covariance.table)
        name = "correlated" if step is None else "photon counts, correlated"
        tries = [trial.fit(name, "correlated", sigma, step, used, replace(covariance, detail=each)) for each in DETAILS]
        # The level stays: noise has next to no power in the finest details, from which too little would be learned.
        found.append(max(tries, key=lambda each: each.nats)._replace(sigma=sigma))
    elif len(levels) > 1 and step is None:
        found.append(trial.fit("a level for each channel", "gaussian", 1.0, Scaling(levels)))
    return found


def _is_of_counts(line: Line) -> bool:
    """True if variances grow along the line, by noise that is as white as counts are."""
    growth = float(line.at(line.mean.max()) / line.at(line.mean.min()))
    contrast = float(np.ptp(line.mean) / np.sqrt(line.variance.max()))  # in deviations of the noise where it is bright
    if contrast < OF_MEANS / line.side:  # brightness differs by noise alone: stars on an even sky
        return False
    finest_min = FINEST_MIN if contrast > 1 else FINEST_MIN_OF_FEW
    return growth > GROWTH_MIN and line.finest > finest_min and line.miss < MISS_MAX


def _photon_counts(trial: Trial, lines: list[Line]) -> Candidate:
    """The best of the line and the one through the origin."""
    tries = [
        trial.fit("photon counts", "poisson_gaussian", 1.0, Anscombe(each.gain, each.offset), each) for each in lines
    ]
    return max(tries, key=lambda each: each.nats)._replace(sigma=1.0)  # what a small model leaves is more


def _normalised(table: np.ndarray) -> np.ndarray:
    return table / max(float(np.einsum("aakl->akl", table)[:, 0, 0].mean()), 1e-60)


@dataclass(frozen=True, eq=False)
class Trial:
    """Patches of a picture on which candidates are compared."""

    pixels: np.ndarray  # (H, W, C), dithered
    size: int
    cut: Callable[[np.ndarray], torch.Tensor]  # (H, W, C) to patches (N, D)
    observed: torch.Tensor | None  # (N, D) bool

    @classmethod
    def of(cls, pixels: np.ndarray, known: np.ndarray, n_pages: int) -> Trial | None:
        height, width, n_channels = pixels.shape[0] // n_pages, *pixels.shape[1:]
        size = SIZE if n_channels == 1 else SIZE_OF_COLOUR
        if min(height, width) < 2 * size:
            return None
        n_places = (height - size + 1) * (width - size + 1) * n_pages
        stride = max(1, math.ceil(math.sqrt(n_places / N_PATCHES)))

        def cut(values: np.ndarray) -> torch.Tensor:
            return extract(torch.from_numpy(np.array(values)), size, stride, n_pages)

        observed = cut(known)
        whole = observed.all(1)
        if whole.sum() >= min(PATCHES_MIN, len(whole)):
            return cls(pixels, size, lambda values: cut(values)[whole], None)
        some = observed.any(1)
        return (
            cls(pixels, size, lambda values: cut(values)[some], observed[some]) if some.sum() >= PATCHES_MIN else None
        )

    def fit(
        self,
        name: str,
        kind: str,
        sigma: float,
        step: Step | None = None,
        line: Line | None = None,
        covariance: Covariance | None = None,
    ) -> Candidate:
        """The bound with a transform and a covariance inside, in the picture's own units; `sigma`: a first guess."""
        x = self.cut(self.pixels if step is None else step.injective(self.pixels))
        log_volume = 0.0
        if step is not None:
            slopes = self.cut(step.log_slope(self.pixels))
            log_volume = float((slopes if self.observed is None else slopes[self.observed]).mean())
        if covariance is not None:
            whitening = covariance.whitening(self.size)
            x = x @ whitening.inverse
            log_volume -= whitening.log_det / (2 * x.shape[1])
        found = bound_of(x, (self.size, self.size, self.pixels.shape[2]), sigma, self.observed, covariance is not None)
        return Candidate(name, kind, found.nats + log_volume, found.sigma, step, line, covariance)


def step_of(pixels: np.ndarray) -> float:
    """The step between grey levels; 0 for floating-point values that hardly ever repeat."""
    levels = np.unique(pixels)
    return float(np.median(np.diff(levels))) if 1 < len(levels) < pixels.size / 2 else 0.0


def _clipped(pixels: np.ndarray, known: np.ndarray, sigma: float, step: float) -> np.ndarray:
    """Bool of the same shape: values at an extreme where they pile up; but photon counts may well be zero."""
    is_low, is_high = pixels == pixels[known].min(), pixels == pixels[known].max()
    is_low &= is_low.mean() > PILED_UP and sigma > COARSE * step
    return is_low | (is_high & (is_high.mean() > PILED_UP))
