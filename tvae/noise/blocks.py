"""Blocks of a picture in which there is hardly anything but noise: its variance, its line against the mean, its lags.

Every 8x8 block is taken to cosines. White noise has the same power at all of them, correlated noise as `noise_spectrum`
has it. The picture is mostly in the lowest cosines, which do not count, and in blocks of much power, which are not
taken: the flattest ones are found by power relative to the noise's, in which all cosines weigh alike. Powers and level
come from other cosines than those by which blocks were found to be flat, so that the choice does not lower them, for
they are independent in noise. Powers are medians over blocks, so that structure in some does not raise them; the level
is that of the highest cosines that have noise, for pictures have the least there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tvae.noise.spectrum import LAGS, LOWEST, SIDE, correlation_of, cosines, lag_powers, powers_of

FLATTEST = 0.2  # share of the blocks that the lags are taken from
UNEVEN = (0.01, 0.1)  # quantiles of the blocks' power that are compared
FLAT, FLAT_MIN = 0.03, 20  # share of the blocks of a brightness that its variance is taken from; so many at least
FLATTEST_PART, TEXTURED_PART = (0, FLATTEST), (0.4, 0.8)  # shares of the blocks, by flatness
TEXTURE_MIN = 1.15  # power of the latter over that of the former, with less of which there is none
SLOPE_MAX = 0.7  # correlation of texture
LOWEST_SHARE = 0.02  # of all blocks, that one variance for all brightnesses is taken from
ROUNDS = 3
STRIDE = 3  # pixels between blocks; of large pictures more
BLOCKS_MAX = 20_000
BRIGHTNESSES = 12
PER_BRIGHTNESS = 24  # blocks, at least
MEDIAN = 0.4549  # of the square of a Gaussian with variance one
OVERLAP = 4  # blocks, about, that say as much as one would that shares no pixel with others
SIGNIFICANT = 13.0  # by which a line's misfit is less than that of one variance, in squared standard errors
SIGNIFICANT_PURE = 5.0  # the same, if the line goes through the origin, which would be a coincidence for other noise
TEXTURE_GAIN = 2.2  # gain of the lower cosines over that of the higher ones; noise has the same, brighter texture more
PURE = 4.0  # the same, of a line with an offset against one through the origin
TINY = 1e-60  # a variance that is none: its inverse square is finite yet
SLACK = 0.15  # relative deviation above the line from which a brightness counts less: structure only adds variance

_SUM = np.add.outer(np.arange(SIDE), np.arange(SIDE))
LOWER, HIGHEST = (_SUM > 2) & (_SUM < SIDE), _SUM >= SIDE
ODD = _SUM % 2 == 1
ODD_ROW = np.arange(SIDE)[:, None] % 2 == np.ones(SIDE)
CORNER = (slice(-3, None), slice(-3, None))  # the finest details of all


def bands(powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(SIDE, SIDE) bool each: cosines that tell flat blocks, and others that tell the level of noise of these powers.

    White noise: the lower and the highest ones. Correlated noise has next to nothing in the highest, so that those in
    which it has power are divided.
    """
    is_noisy = ~LOWEST & (powers > 0.1 * powers.mean())
    if is_noisy[HIGHEST].all():
        return LOWER, HIGHEST
    is_noisy = is_noisy if is_noisy.any() else ~LOWEST
    is_high = is_noisy & (np.median(_SUM[is_noisy]) <= _SUM)
    if np.array_equal(is_high, is_noisy):  # noise so slow that it has hardly any cosines
        is_high = is_noisy & ODD_ROW
    return is_noisy & ~is_high, is_high


@dataclass(frozen=True, eq=False)
class Line:
    """variance = gain * mean + offset, and what it was fitted to."""

    gain: float
    offset: float
    mean: np.ndarray  # (B,) brightnesses
    variance: np.ndarray  # (B,) at these
    level: float  # one variance for all brightnesses
    is_significant: bool  # the gain: a line fits far better than one variance for all

    def at(self, mean: np.ndarray | float) -> np.ndarray:
        """Variance, nowhere below a hundredth of its largest value."""
        return np.maximum(self.gain * np.asarray(mean) + self.offset, 0.01 * self.variance.max())

    @property
    def growth(self) -> float:
        """Of the variance from the darkest to the brightest."""
        return float(self.at(self.mean.max()) / self.at(self.mean.min()))


@dataclass(frozen=True, eq=False)
class Shape:
    """Of the noise's spectrum, in the flattest blocks."""

    correlation: np.ndarray  # (LAGS + 1, LAGS + 1): rho, 1 at lag zero
    finest: float  # power of the finest details over the mean power: 1 for white noise
    unevenness: float  # of the power of the flattest tenth, over that of the flattest hundredth: noise has about 1.3

    def lag(self, distance: int) -> float:
        """Correlation at so many pixels, across and down, averaged."""
        return float(self.correlation[0, distance] + self.correlation[distance, 0]) / 2


FLAT_SHAPE = Shape(np.outer(*2 * [np.eye(LAGS + 1)[0]]), 1.0, math.inf)  # where there is no noise at all


@dataclass(frozen=True, eq=False)
class Blocks:
    mean: np.ndarray  # (N,)
    squares: np.ndarray  # (N, SIDE, SIDE) of the cosines' coefficients

    def line(self, powers: np.ndarray) -> Line:
        """Variance against brightness, for noise with these relative powers."""
        of_flatness, of_level = bands(powers)
        relative = self.squares / powers
        lower, higher = relative[:, of_flatness].mean(1), relative[:, of_level].mean(1)
        line = self._line_of(lower, higher, int(of_level.sum()))
        of_lower = self._line_of(higher, lower, int(of_flatness.sum()))
        is_texture = of_level is HIGHEST and of_lower.gain > TEXTURE_GAIN * line.gain  # not told of correlated noise
        level = min(line.level, _of_lowest(lower, higher), _of_lowest(higher, lower))
        return replace(line, level=level, is_significant=line.is_significant and not is_texture)

    def _line_of(self, flatness: np.ndarray, level: np.ndarray, n_cosines: int) -> Line:
        """Of the level (N,), a mean over so many cosines, in the flattest blocks of every brightness."""
        parts = _by_brightness(self.mean)
        chosen = [part[flatness[part].argsort()[: max(FLAT_MIN, int(FLAT * len(part)))]] for part in parts]
        mean, variance = (np.array([values[part].mean() for part in chosen]) for values in (self.mean, level))
        error = [math.sqrt(2 * OVERLAP / (n_cosines * len(part))) for part in chosen]
        return fit_line(mean, variance, np.array(error))

    def shape(self, line: Line | None) -> Shape:
        """Of noise whose variance follows the line, or is the same everywhere."""
        squares = self.squares if line is None else self.squares / line.at(self.mean)[:, None, None]
        powers = np.ones((SIDE, SIDE))
        for _ in range(ROUNDS):
            relative = squares / powers
            flattest = np.where(ODD, *(_of_flattest(squares, relative[:, half & ~LOWEST]) for half in (~ODD, ODD)))
            if not flattest[~LOWEST].all():  # nothing but flat blocks
                return FLAT_SHAPE
            correlation = correlation_of(flattest)
            powers = powers_of(correlation)
        lowest, low = np.quantile(relative[:, ~LOWEST].mean(1), UNEVEN)
        finest = flattest[CORNER].mean() / flattest[~LOWEST].mean()
        return Shape(correlation, float(finest), float(low / lowest) if lowest > 0 else math.inf)

    def finest_shape(self, line: Line | None) -> Shape:
        """The same of noise that is nearly white, from the highest cosines alone: correlation at one pixel only.

        Texture is there, too, even in the flattest blocks, but more of it in others, which tell its correlation. What
        these have on top of the level of the very flattest is taken off.
        """
        squares = self.squares if line is None else self.squares / line.at(self.mean)[:, None, None]
        flatness = squares[:, LOWER].mean(1)
        flat, others = (_finest_lag(squares, flatness, *part) for part in (FLATTEST_PART, TEXTURED_PART))
        level = min(flat[0], _of_lowest(flatness, squares[:, HIGHEST].mean(1)))
        if level <= 0:
            return FLAT_SHAPE
        slope = (others - flat)[1] / (others - flat)[0] if others[0] > TEXTURE_MIN * flat[0] else 0.0
        lag = np.clip((flat[1] - np.clip(slope, 0, SLOPE_MAX) * (flat[0] - level)) / level, -1, 1)
        return Shape(np.pad([[1.0, lag], [lag, 0.0]], (0, LAGS - 1)), 1.0, 1.0)


def _by_brightness(mean: np.ndarray) -> list[np.ndarray]:
    """Numbers of the blocks, dark to bright, in parts alike both in size and in range; the smallest are joined."""
    order = mean.argsort()
    rank = np.arange(len(mean)) / len(mean)
    place = (mean[order] - mean[order[0]]) / max(np.ptp(mean), np.finfo(float).tiny)
    part = ((rank + place) / 2 * BRIGHTNESSES).astype(int)
    parts, first = [], 0
    for last in [*np.nonzero(np.diff(part))[0] + 1, len(mean)]:
        if last - first >= PER_BRIGHTNESS:
            parts.append(order[first:last])
            first = last
    parts[-1] = np.concatenate([parts[-1], order[first:]])
    return parts


def _of_lowest(flatness: np.ndarray, level: np.ndarray) -> float:
    """The mean level (N,) of the flattest blocks of all brightnesses; there are few of them where all is texture."""
    return float(level[flatness.argsort()[: max(FLAT_MIN, int(LOWEST_SHARE * len(level)))]].mean())


def _finest_lag(squares: np.ndarray, flatness: np.ndarray, low: float, high: float) -> np.ndarray:
    """(2,): variance and covariance of neighbours by the highest cosines, in blocks between two shares of flatness."""
    order = flatness.argsort()[int(low * len(flatness)) : max(1, int(high * len(flatness)))]
    a = lag_powers()[:2]
    design = np.einsum("ki,lj->ijkl", a, a)[HIGHEST].reshape(-1, 4)
    powers = np.median(squares[order], 0) / MEDIAN
    found = np.linalg.lstsq(design, powers[HIGHEST], rcond=None)[0]
    return np.array([found[0], (found[1] + found[2]) / 2])


def _of_flattest(squares: np.ndarray, relative: np.ndarray) -> np.ndarray:
    """(SIDE, SIDE): median power of the blocks whose relative powers (N, n) are the lowest, as Gaussians have it."""
    energy = relative.mean(1)
    return np.median(squares[energy <= np.quantile(energy, FLATTEST)], 0) / MEDIAN


def fit_line(mean: np.ndarray, variance: np.ndarray, error: np.ndarray) -> Line:
    """By weighted least squares; `error`: relative standard errors of the variances.

    Through the origin, as photon counts without other noise have it, if that explains the variances as well. A line
    that fits badly is hardly one: photon counts lie on theirs to within chance, texture does not.
    """
    through_zero = _fit(np.stack([mean], 1), variance, error)
    free = _fit(np.stack([mean, np.ones_like(mean)], 1), variance, error)
    is_pure = mean.min() >= 0 and through_zero.misfit < free.misfit + PURE * free.inflation
    gain, offset = (through_zero.solution[0], 0.0) if is_pure else free.solution
    even = _fit(np.ones((len(mean), 1)), variance, error)
    enough = SIGNIFICANT_PURE if is_pure else SIGNIFICANT
    is_significant = free.solution[0] > 0 and even.misfit > free.misfit + enough * free.inflation**2
    return Line(float(gain), float(offset), mean, variance, float(even.solution[0]), bool(is_significant))


@dataclass(frozen=True, eq=False)
class _Fitted:
    solution: np.ndarray
    misfit: float
    inflation: float  # of squared errors, where the misfit is more than chance


def _fit(design: np.ndarray, variance: np.ndarray, error: np.ndarray) -> _Fitted:
    least = max(0.05 * variance.mean(), TINY)
    fitted = variance.clip(min=least)
    for _ in range(8):
        excess = (variance / fitted - 1).clip(min=0) / SLACK
        weight = 1 / (error * fitted) ** 2 / (1 + excess)
        root = np.sqrt(weight)
        solution = np.linalg.lstsq(design * root[:, None], variance * root, rcond=None)[0]
        fitted = (design @ solution).clip(min=least)
    misfit = float((weight * (variance - fitted) ** 2).sum())
    return _Fitted(solution, misfit, max(1.0, misfit / max(1, len(variance) - design.shape[1])))


def blocks_of(pixels: np.ndarray, usable: np.ndarray) -> Blocks:
    """Of an image (H, W, C), all channels alike, every so many pixels; `usable` (H, W, C): blocks of nothing else."""
    height, width, n_channels = pixels.shape
    stride = max(STRIDE, math.ceil(math.sqrt(height * width * n_channels / BLOCKS_MAX)))
    rows = cosines()
    means, squares = [], []
    for channel in range(n_channels):
        window = np.lib.stride_tricks.sliding_window_view(pixels[..., channel], (SIDE, SIDE))[::stride, ::stride]
        is_whole = np.lib.stride_tricks.sliding_window_view(usable[..., channel], (SIDE, SIDE))[::stride, ::stride]
        blocks = window[is_whole.all((2, 3))]
        means.append(blocks.mean((1, 2)))
        squares.append((rows @ blocks @ rows.T) ** 2)
    return Blocks(np.concatenate(means), np.concatenate(squares))
