"""Blocks of a picture in which there is hardly anything but noise: its variance, its line against the mean, its lags.

Every 8x8 block is taken to cosines. White noise has the same power at all of them, correlated noise

    P_ij = sum_kl rho_kl A_ki A_lj,           A_ki = power of cosine i for a correlation of one at lag k alone

so that the correlations rho at lags 0..3 down and across follow from the powers by least squares (correlations are
taken to be even in both directions). The picture is mostly in the lowest cosines, which do not count, and in blocks of
much power, which are not taken: the flattest ones are found by power relative to P, in which all cosines weigh alike.
Powers and level come from other cosines than those by which blocks were found to be flat, so that the choice does not
lower them, for they are independent in noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SIDE = 8
LAGS = 3
FLATTEST = 0.1  # share of the blocks that the lags are taken from
FLAT = 0.15  # share of the blocks of a brightness that its variance is taken from
ROUNDS = 3
STRIDE = 3  # pixels between blocks; of large pictures more
BLOCKS_MAX = 20_000
BRIGHTNESSES = 12
PER_BRIGHTNESS = 24  # blocks, at least
OVERLAP = 4  # blocks, about, that say as much as one would that shares no pixel with others
SLACK = 0.15  # relative deviation above the line from which a brightness counts less: structure only adds variance

_SUM = np.add.outer(np.arange(SIDE), np.arange(SIDE))
LOWEST, LOWER, HIGHEST = _SUM <= 2, (_SUM > 2) & (_SUM < SIDE), _SUM >= SIDE
ODD = _SUM % 2 == 1
CORNER = (slice(-3, None), slice(-3, None))  # the finest details of all


def cosines() -> np.ndarray:
    """(SIDE, SIDE): the orthonormal cosine transform, a row for each frequency."""
    k = np.arange(SIDE)
    rows = np.sqrt(2 / SIDE) * np.cos(np.pi * (k + 0.5) * k[:, None] / SIDE)
    rows[0] /= math.sqrt(2)
    return rows


def lag_powers() -> np.ndarray:
    """A (LAGS + 1, SIDE): power of each cosine for a correlation of one at one lag alone."""
    rows = cosines()
    shifts = [np.eye(SIDE, k=lag) + (np.eye(SIDE, k=-lag) if lag else 0) for lag in range(LAGS + 1)]
    return np.stack([np.diag(rows @ shift @ rows.T) for shift in shifts])


def powers_of(correlation: np.ndarray) -> np.ndarray:
    """P (SIDE, SIDE) of correlations (LAGS + 1, LAGS + 1), nowhere below a hundredth of its mean."""
    a = lag_powers()
    found = a.T @ correlation @ a
    return found.clip(min=0.01 * found.mean())


def correlation_of(powers: np.ndarray) -> np.ndarray:
    """(LAGS + 1, LAGS + 1): rho times the variance, by least squares of relative errors, without the lowest cosines."""
    a = lag_powers()
    design = np.einsum("ki,lj->ijkl", a, a)[~LOWEST].reshape(-1, (LAGS + 1) ** 2)
    wanted = powers[~LOWEST]
    weight = 1 / (wanted + 0.02 * powers.mean())
    found = np.linalg.lstsq(design * weight[:, None], wanted * weight, rcond=None)[0]
    return found.reshape(LAGS + 1, LAGS + 1)


def bands(powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(SIDE, SIDE) bool each: cosines that tell flat blocks, and others that tell the level of noise of these powers.

    White noise: the lower and the highest ones. Correlated noise has next to nothing in the highest, so that those in
    which it has power are divided.
    """
    is_noisy = ~LOWEST & (powers > 0.1 * powers.mean())
    if is_noisy[HIGHEST].all():
        return LOWER, HIGHEST
    return is_noisy & ODD, is_noisy & ~ODD


@dataclass(frozen=True, eq=False)
class Line:
    """variance = gain * mean + offset, and what it was fitted to."""

    gain: float
    offset: float
    mean: np.ndarray  # (B,) brightnesses
    variance: np.ndarray  # (B,) at these
    level: float  # one variance for all brightnesses
    is_significant: bool  # the gain, against its standard error

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


@dataclass(frozen=True, eq=False)
class Blocks:
    mean: np.ndarray  # (N,)
    squares: np.ndarray  # (N, SIDE, SIDE) of the cosines' coefficients

    def line(self, powers: np.ndarray) -> Line:
        """Variance against brightness, for noise with these relative powers."""
        of_flatness, of_level = bands(powers)
        relative = self.squares / powers
        flatness, level = relative[:, of_flatness].mean(1), relative[:, of_level].mean(1)
        n_parts = max(2, min(BRIGHTNESSES, len(self.mean) // PER_BRIGHTNESS))
        parts = np.array_split(self.mean.argsort(), n_parts)
        chosen = [part[flatness[part].argsort()[: max(8, int(FLAT * len(part)))]] for part in parts]
        mean, variance = (np.array([values[part].mean() for part in chosen]) for values in (self.mean, level))
        error = [math.sqrt(2 * OVERLAP / (of_level.sum() * len(part))) for part in chosen]
        return fit_line(mean, variance, np.array(error))

    def shape(self, line: Line | None) -> Shape:
        """Of noise whose variance follows the line, or is the same everywhere."""
        squares = self.squares if line is None else self.squares / line.at(self.mean)[:, None, None]
        powers = np.ones((SIDE, SIDE))
        for _ in range(ROUNDS):
            relative = squares / powers
            flattest = np.where(ODD, *(_of_flattest(squares, relative[:, half & ~LOWEST]) for half in (~ODD, ODD)))
            correlation = correlation_of(flattest)
            if correlation[0, 0] <= 0:  # nothing but flat blocks
                return Shape(np.eye(1, LAGS + 1).T @ np.eye(1, LAGS + 1), 1.0, math.inf)
            powers = powers_of(correlation / correlation[0, 0])
        lowest, low = np.quantile(relative[:, ~LOWEST].mean(1), [FLATTEST / 10, FLATTEST])
        finest = flattest[CORNER].mean() / flattest[~LOWEST].mean()
        return Shape(correlation / correlation[0, 0], float(finest), float(low / lowest) if lowest > 0 else math.inf)


def _of_flattest(squares: np.ndarray, relative: np.ndarray) -> np.ndarray:
    """(SIDE, SIDE): mean power of the blocks whose relative powers (N, n) are the lowest."""
    energy = relative.mean(1)
    return squares[energy <= np.quantile(energy, FLATTEST)].mean(0)


def fit_line(mean: np.ndarray, variance: np.ndarray, error: np.ndarray) -> Line:
    """By weighted least squares; `error`: relative standard errors of the variances.

    Through the origin, as photon counts without other noise have it, if that explains the variances as well.
    """
    through_zero = _fit(np.stack([mean], 1), variance, error)
    free = _fit(np.stack([mean, np.ones_like(mean)], 1), variance, error)
    is_pure = mean.min() >= 0 and through_zero.misfit < 1.5 * free.misfit + 4
    gain, offset = (through_zero.solution[0], 0.0) if is_pure else free.solution
    level = float(_fit(np.ones((len(mean), 1)), variance, error).solution[0])
    return Line(float(gain), float(offset), mean, variance, level, free.solution[0] > 4 * free.gain_error)


@dataclass(frozen=True, eq=False)
class _Fitted:
    solution: np.ndarray
    misfit: float
    gain_error: float


def _fit(design: np.ndarray, variance: np.ndarray, error: np.ndarray) -> _Fitted:
    fitted = np.full_like(variance, variance.mean())
    least = 0.05 * variance.mean()
    for _ in range(8):
        excess = (variance / fitted - 1).clip(min=0) / SLACK
        weight = 1 / (error * fitted) ** 2 / (1 + excess**2)
        root = np.sqrt(weight)
        solution = np.linalg.lstsq(design * root[:, None], variance * root, rcond=None)[0]
        fitted = (design @ solution).clip(min=least)
    misfit = float((weight * (variance - fitted) ** 2).sum())
    covariance = np.linalg.pinv((design * weight[:, None]).T @ design)
    inflation = max(1.0, misfit / max(1, len(variance) - design.shape[1]))
    return _Fitted(solution, misfit, math.sqrt(max(covariance[0, 0], 0) * inflation))


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
