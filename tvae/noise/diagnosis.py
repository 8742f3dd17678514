"""What noise a picture has, found out from the picture alone.

Variance against brightness and correlation between neighbours come from the flattest blocks (`noise_blocks`). What is
not clear is left alone: a picture counts as one with white Gaussian noise, whose restoration is the plain one, unless
the variance grows with brightness by a half and along a line, or neighbours are correlated as noise is.
Texture is correlated, too, but with white noise on it the finest details have power, and it is not the same everywhere;
where all is texture, only noise that is strong for the picture's contrast is told.
Of JPEG files, which have taken most of the noise away, nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvae.noise.blocks import Blocks, Line, Shape, blocks_of
from tvae.noise.level import diagonal_details
from tvae.noise.outliers import find_outliers, replace_outliers
from tvae.noise.spectrum import SIDE, WHITE, cosines, powers_of

LAGS_TOLD = 3
KINDS = ("gaussian", "poisson_gaussian", "correlated")
GROWTH_MIN = 1.5  # of the variance, from dark to bright
CORRELATION_MIN, CORRELATION_MAX = 0.3, 0.94  # at lag one; noise that was blurred by two pixels has the latter
FINEST_MAX = 0.2  # power of the finest details over the mean
FINEST_WHITE = 0.4  # at least, of white noise; less is texture
FINEST_SURE = 0.03  # noise that has been blurred, whatever else is there
CORRELATION_CLEAR = 0.5  # at lag one; below it,
FINEST_LAG_MIN = 0.18  # the highest cosines alone have to show so much of it, too, which texture does not
UNEVENNESS_MAX = 1.6  # of noise on a picture with flat parts
STRONG_FINEST, STRONG_SIGMA = 0.14, 0.033  # noise on texture all over; the latter: of the contrast
CONTRAST = (0.001, 0.999)  # quantiles between which a picture's contrast is
SIGMA_MIN = 2 / 255  # of the contrast; less correlated noise than that may be the picture
STEPS_MIN = 1.5  # the same, in steps between grey levels
SIDE_MIN = 64  # pixels along a side; smaller pictures have too few blocks
BLOCKS_MIN = 200
KNOWN_MIN = 0.9  # share of the values; with fewer there are too few whole blocks
PILED_UP = 1e-3  # share of values at an extreme that is more than chance
COARSE = 3.0  # steps between grey levels that a deviation has at least, where values at an extreme are clipped ones
IN_BLOCKS = 0.1  # by which more of the finest details are zero in the blocks of JPEG than in shifted ones


@dataclass(frozen=True, eq=False)
class NoiseModel:
    """In the picture's own units."""

    line: Line  # variance against brightness
    shape: Shape  # correlation between neighbours
    finest: Shape  # the same by the highest cosines alone
    is_signal_dependent: bool
    is_correlated: bool
    outliers: np.ndarray | None  # (H, W, C) bool; None: there are none
    saturated_share: float  # of values at the highest value, where they pile up there
    step: float  # between grey levels; 0: there are none
    has_jpeg_blocks: bool
    binning_ratio: float | None  # of noise estimates before and after 2x2 means: 2 for white noise; None: too little

    @property
    def kind(self) -> str:
        return "correlated" if self.is_correlated else "poisson_gaussian" if self.is_signal_dependent else "gaussian"

    def lag(self, distance: int) -> float:
        """Correlation of the noise, across and down, averaged; of texture it should have nothing."""
        shapes = (self.shape,) if self.is_correlated else (self.shape, self.finest)
        return min((shape.lag(distance) for shape in shapes), key=abs)

    def facts(self) -> dict[str, Any]:
        """As metrics.json has them."""
        return {
            "kind": self.kind,
            "is_signal_dependent": self.is_signal_dependent,
            "gain": self.line.gain,
            "offset": self.line.offset,
            **{f"correlation_{lag}": self.lag(lag) for lag in range(1, LAGS_TOLD + 1)},
            "binning_ratio": self.binning_ratio,
            "outlier_share": 0.0 if self.outliers is None else float(self.outliers.mean()),
            "saturated_share": self.saturated_share,
            "grey_step": self.step,
            "jpeg_blocks": self.has_jpeg_blocks,
        }

    def __str__(self) -> str:
        """A line for the log."""
        words = {"gaussian": "white Gaussian", "poisson_gaussian": "photon counts", "correlated": "correlated"}
        parts = [words[self.kind]]
        if self.is_signal_dependent:
            parts.append(f"variance {self.line.gain:.3g} x {self.line.offset:+.3g}")
        if self.is_correlated:
            parts.append(f"correlation {self.lag(1):.2f} at one pixel")
        if self.outliers is not None:
            parts.append(f"{self.outliers.mean():.2%} outliers")
        if self.saturated_share > 0:
            parts.append(f"{self.saturated_share:.2%} saturated")
        if self.has_jpeg_blocks:
            parts.append("JPEG blocks")
        return ", ".join(parts)


def diagnose(pixels: np.ndarray, known: np.ndarray | None, grey_range: float) -> NoiseModel | None:
    """Of a picture (H, W, C), or of what is `known` of it; None: too little to say."""
    if min(pixels.shape[:2]) < SIDE_MIN:
        return None
    usable = np.ones(pixels.shape, dtype=bool) if known is None else known
    if usable.mean() < KNOWN_MIN:
        return None
    pixels = pixels if known is None else replace_outliers(pixels, ~known)
    rough, step = diagonal_details(pixels, None), step_of(pixels)
    is_jpeg = has_jpeg_blocks(pixels)
    outliers = np.zeros_like(usable) if is_jpeg else usable & find_outliers(pixels, rough, step, grey_range)
    cleaned = replace_outliers(pixels, outliers) if outliers.any() else pixels
    blocks = blocks_of(cleaned, usable & ~_clipped(cleaned, rough, step))
    if len(blocks.mean) < BLOCKS_MIN:
        return None
    contrast = min(float(np.ptp(np.quantile(cleaned[usable], CONTRAST))), grey_range)
    found = _look(blocks, None, contrast, is_jpeg)
    is_dependent = not is_jpeg and found.line.is_significant and found.line.growth >= GROWTH_MIN
    if is_dependent:
        found = _look(blocks, found.line, contrast, is_jpeg)
        is_dependent = found.line.gain > 0 and (found.is_correlated or found.shape.finest >= FINEST_WHITE)
    is_enough = found.line.level**0.5 >= max(SIGMA_MIN * contrast, STEPS_MIN * step)
    saturated = float((pixels == pixels.max()).mean())
    return NoiseModel(
        found.line,
        found.shape,
        found.finest,
        is_dependent,
        found.is_correlated and is_enough,
        outliers if outliers.any() else None,
        saturated if saturated > PILED_UP else 0.0,
        step,
        is_jpeg,
        _binning_ratio(cleaned),
    )


@dataclass(frozen=True, eq=False)
class _Look:
    shape: Shape
    finest: Shape
    line: Line
    is_correlated: bool


def _look(blocks: Blocks, before: Line | None, contrast: float, is_jpeg: bool) -> _Look:
    """At noise whose variance followed a line at the look before, or was the same everywhere."""
    shape, finest = blocks.shape(before), blocks.finest_shape(before)
    line = blocks.line(powers_of(shape.correlation))
    is_correlated = not is_jpeg and _is_noise(shape, finest, line.level**0.5 > STRONG_SIGMA * contrast)
    return _Look(shape, finest, line if is_correlated else blocks.line(WHITE), is_correlated)


def _is_noise(shape: Shape, finest: Shape, is_strong: bool) -> bool:
    """Whether what is correlated is noise; `is_strong`: for the contrast of the picture."""
    if not (CORRELATION_MIN <= shape.lag(1) <= CORRELATION_MAX and shape.finest < FINEST_MAX):
        return False
    if shape.finest < FINEST_SURE:
        return True
    is_even = shape.unevenness <= UNEVENNESS_MAX
    if shape.lag(1) < CORRELATION_CLEAR:
        return is_even and finest.lag(1) >= FINEST_LAG_MIN
    return is_even or (shape.finest < STRONG_FINEST and is_strong)


def step_of(pixels: np.ndarray) -> float:
    """Between grey levels; 0 for floating-point values that hardly ever repeat."""
    levels = np.unique(pixels)
    return float(np.median(np.diff(levels))) if 1 < len(levels) < pixels.size / 2 else 0.0


def _clipped(pixels: np.ndarray, sigma: float, step: float) -> np.ndarray:
    """Bool of the same shape: values at an extreme where they pile up; but photon counts may well be zero."""
    is_clipped = np.zeros(pixels.shape, dtype=bool)
    for extreme, is_high in ((pixels.min(), False), (pixels.max(), True)):
        at_it = pixels == extreme
        if at_it.mean() > PILED_UP and (is_high or sigma > COARSE * step):
            is_clipped |= at_it
    return is_clipped


def _binning_ratio(pixels: np.ndarray) -> float | None:
    height, width = (side // 2 * 2 for side in pixels.shape[:2])
    binned = pixels[:height, :width].reshape(height // 2, 2, width // 2, 2, -1).mean((1, 3))
    before, after = diagonal_details(pixels, None), diagonal_details(binned, None)
    return before / after if after > 0 else None


def has_jpeg_blocks(pixels: np.ndarray) -> bool:
    """Whether more of the finest details are zero in blocks that begin at multiples of eight than in shifted ones."""
    if not np.array_equal(pixels, np.rint(pixels)):
        return False
    return _share_of_zeros(pixels) - _share_of_zeros(pixels[SIDE // 2 :, SIDE // 2 :]) > IN_BLOCKS


def _share_of_zeros(pixels: np.ndarray) -> float:
    """Of the details in blocks side by side, up to rounding."""
    height, width = (side // SIDE * SIDE for side in pixels.shape[:2])
    blocks = pixels[:height, :width].reshape(height // SIDE, SIDE, width // SIDE, SIDE, -1).transpose(0, 2, 4, 1, 3)
    rows = cosines()
    return float((np.abs(rows @ blocks @ rows.T) < 1).mean())
