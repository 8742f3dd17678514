"""Blocks of a picture in which there is hardly anything but noise: its variance, its covariance, and whether it is
everywhere.

Every block is taken to cosines. The picture is mostly in the lowest ones, which do not count, and in blocks of much
power. The flattest blocks are found by one half of the cosines and measured by the other, and the other way round: in
noise the halves are independent, so that the choice does not lower what is measured.

Stationary noise with covariances C(k, l) at k pixels down and l across has the powers

    P_ij = sum_kl C(k, l) A_ki A_lj,        A_ki = power of cosine i for a correlation at lag k alone

which are solved for C by least squares of relative errors.

Noise is everywhere, texture is not: among blocks of the same brightness, noise has hardly less power in the quietest
than in many others. `evenness` is the power of the quietest 2 % over that of the quietest quarter, over the same for
noise alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

SIDES = 12, 8, 4, 2  # pixels along a side of a block; the first with enough whole blocks
BLOCKS_MIN, BLOCKS_MAX = 200, 20_000
LAGS = 6
LOWEST = 1  # cosines i, j with i + j up to this do not count; of blocks below 8 pixels only the mean does not
CLIPPED = 0.05  # share of clipped values in a block, with which white noise has 0.92 of its variance
FLAT, FLAT_MIN = 0.03, 20  # share of the blocks that count as flat; so many at least
ROUNDS = 4
SMALL = 0.02  # of the mean power: errors of smaller ones count as those of it
STIFFNESS = 1e-3  # what a lag's square counts, times the lag's: keeps those that blocks hardly tell near zero
LEAST = 0.01  # of the mean power: the least that is divided by
BRIGHTNESSES, PER_BRIGHTNESS = 12, 40
SLACK = 0.15  # relative deviation above the line from which a brightness counts less: structure only adds variance
LOWER = 0.25  # quantile over brightnesses
FINEST, SLOWER = 1.25, 0.75  # of the cosines that a block has along a side: i + j from, and up to
EVEN_BRIGHTNESSES = 8
EVEN_ORDERS = {8: (3, 7), 4: (2, 4), 2: (1, 2)}  # pixels along a side of a block, and which cosines i + j count
QUIETEST, QUIET = 0.02, 0.25
N_QUIETEST = 10  # blocks of a brightness, at least, that are at most as quiet
ONE_VALUE = 1e-12  # of the highest power: what rounding leaves of a block without any
FINEST_SIDE, FINEST_ORDERS = 8, (8, 14)  # the finer half of the cosines
SIMULATED = 256  # pixels along a side of the noise that evenness is compared with


def cosines(side: int) -> np.ndarray:
    """(side, side): the orthonormal cosine transform, a row for each frequency."""
    k = np.arange(side)
    rows = np.sqrt(2 / side) * np.cos(np.pi * (k + 0.5) * k[:, None] / side)
    rows[0] /= math.sqrt(2)
    return rows


def lag_powers(side: int, n_lags: int) -> np.ndarray:
    """A (n_lags + 1, side): power of each cosine for a correlation of one at one lag alone."""
    rows = cosines(side)
    shifts = [np.eye(side, k=lag) + (np.eye(side, k=-lag) if lag else 0) for lag in range(n_lags + 1)]
    return np.stack([np.diag(rows @ shift @ rows.T) for shift in shifts])


@dataclass(frozen=True, eq=False)
class Line:
    """variance = gain * mean + offset, and what it was fitted to."""

    gain: float
    offset: float
    mean: np.ndarray  # (B,) brightnesses
    variance: np.ndarray  # (B,) at these
    finest: float = 1.0  # power of the finest cosines over that of slower ones where it is bright; white noise: 1
    side: int = SIDES[0]  # pixels along a side of the blocks

    @property
    def miss(self) -> float:
        """Median distance of variances from the line, as a factor's logarithm."""
        least = np.finfo(float).tiny
        return float(np.median(np.abs(np.log(self.variance.clip(min=least) / self.at(self.mean).clip(min=least)))))

    def at(self, mean: np.ndarray | float) -> np.ndarray:
        """Variance, nowhere below a hundredth of its largest value."""
        return np.maximum(self.gain * np.asarray(mean) + self.offset, 0.01 * self.variance.max())


@dataclass(frozen=True, eq=False)
class Blocks:
    mean: np.ndarray  # (N, C)
    cosines: np.ndarray  # (N, C, side, side)

    @property
    def side(self) -> int:
        return self.cosines.shape[-1]

    def _halves(self) -> tuple[np.ndarray, np.ndarray]:
        """(side, side) bool each: cosines that count, and one half of all."""
        order = np.add.outer(np.arange(self.side), np.arange(self.side))
        return order > (LOWEST if self.side >= 8 else 0), order % 2 == 1

    def autocovariance(self) -> np.ndarray:
        """(C, C, L + 1, L + 1) of the noise, from the flattest blocks."""
        n_channels, side, n_lags = self.cosines.shape[1], self.side, min(LAGS, self.side - 2)
        counts, is_odd = self._halves()
        a, lags = lag_powers(side, n_lags), np.add.outer(np.arange(n_lags + 1.0), np.arange(n_lags + 1.0)).ravel()
        design = np.einsum("ki,lj->ijkl", a, a).reshape(side**2, -1)
        squares, powers = self.cosines**2, np.ones((n_channels, side, side))
        n = max(FLAT_MIN, int(FLAT * len(squares)))
        cross = np.zeros((n_channels, n_channels, side, side))
        found = np.zeros((n_channels, n_channels, n_lags + 1, n_lags + 1))
        for _ in range(ROUNDS):
            for half in (is_odd, ~is_odd):
                flat = (squares / powers)[:, :, half & counts].mean((1, 2)).argsort()[:n]
                moments = np.einsum("naij,nbij->abij", self.cosines[flat], self.cosines[flat]) / n
                cross[:, :, ~half] = moments[:, :, ~half]
            level = np.einsum("aaij->aij", cross)[:, counts].mean(1).clip(min=1e-12)
            for i in range(n_channels):
                for j in range(i + 1):
                    scale = np.sqrt(powers[i] * powers[j])
                    weight = (counts / (scale + SMALL * scale[counts].mean())).ravel()
                    stiff = math.sqrt(STIFFNESS / (level[i] * level[j])) * lags
                    left = np.concatenate([design * weight[:, None], np.diag(stiff)])
                    right = np.r_[cross[i, j].ravel() * weight, np.zeros(len(lags))]
                    table = np.linalg.lstsq(left, right, rcond=None)[0].reshape(n_lags + 1, n_lags + 1)
                    found[i, j] = found[j, i] = table
            own = np.einsum("aakl->akl", found).reshape(n_channels, -1) @ design.T
            powers = np.maximum(own.reshape(n_channels, side, side), LEAST * level[:, None, None])
        return found

    def level(self, table: np.ndarray) -> float:
        """The deviation of noise with covariances `table` (C, C, L + 1, L + 1) of mean variance 1.

        From the variance that the flattest blocks of each brightness have in the cosines that count, of which noise has
        a known share; of all brightnesses the lower quartile, for structure only adds.
        """
        counts, _ = self._halves()
        own = np.einsum("aakl->kl", table) / len(table)
        a = lag_powers(self.side, len(own) - 1)
        share = max(float((a.T @ own @ a)[counts].mean()), LEAST)
        return math.sqrt(float(np.quantile(self.line().variance, LOWER)) / share)

    def line(self) -> Line:
        """Variance against brightness, of all channels alike."""
        counts, is_odd = self._halves()
        squares, brightness = (self.cosines**2).reshape(-1, self.side, self.side), self.mean.ravel()
        odd, even = squares[:, counts & is_odd].mean(1), squares[:, counts & ~is_odd].mean(1)
        order = np.add.outer(np.arange(self.side), np.arange(self.side)) / self.side
        finest, slower = (order >= FINEST) & ~is_odd, counts & (order <= SLOWER) & ~is_odd
        means, variances, ratios = [], [], []
        for part in _by_brightness(brightness):
            n = max(FLAT_MIN, int(FLAT * len(part)))
            chosen = part[odd[part].argsort()[:n]]
            means.append(brightness[chosen].mean())
            variances.append(even[chosen].mean())
            if finest.any() and slower.any():  # blocks of 2 pixels have too few
                ratios.append(squares[chosen][:, finest].mean() / max(squares[chosen][:, slower].mean(), 1e-60))
        line = replace(fit_line(np.array(means), np.array(variances)), side=self.side)
        return replace(line, finest=float(np.median(ratios[len(ratios) // 2 :]))) if ratios else line


def _by_brightness(mean: np.ndarray) -> list[np.ndarray]:
    """Numbers of the blocks, dark to bright, in parts alike both in size and in range; the smallest are joined."""
    order = mean.argsort()
    place = (mean[order] - mean[order[0]]) / max(np.ptp(mean), np.finfo(float).tiny)
    part = ((np.arange(len(mean)) / len(mean) + place) / 2 * BRIGHTNESSES).astype(int)
    parts, first = [], 0
    for last in [*np.nonzero(np.diff(part))[0] + 1, len(mean)]:
        if last - first >= PER_BRIGHTNESS:
            parts.append(order[first:last])
            first = last
    parts[-1] = np.concatenate([parts[-1], order[first:]])
    return parts


def fit_line(mean: np.ndarray, variance: np.ndarray) -> Line:
    """Least squares of relative errors; variances above the line count less, for structure adds to them."""
    least = max(0.05 * variance.mean(), 1e-60)
    design, fitted = np.stack([mean, np.ones_like(mean)], 1), variance.clip(min=least)
    for _ in range(8):
        root = 1 / fitted / np.sqrt(1 + (variance / fitted - 1).clip(min=0) / SLACK)
        gain, offset = np.linalg.lstsq(design * root[:, None], variance * root, rcond=None)[0]
        fitted = (design @ (gain, offset)).clip(min=least)
    return Line(float(gain), float(offset), mean, variance)


def blocks_of(pixels: np.ndarray, usable: np.ndarray, clipped: np.ndarray | None = None) -> Blocks | None:
    """Blocks of an image (H, W, C) in which all is `usable` (H, W, C), and hardly anything `clipped` (H, W, C).

    None: there are too few.
    """
    height, width = pixels.shape[:2]
    for side in SIDES:
        if side > min(height, width):
            continue
        stride = max(side // 4, math.ceil(math.sqrt(height * width / BLOCKS_MAX)), 1)
        cut = lambda x: np.lib.stride_tricks.sliding_window_view(x, (side, side), axis=(0, 1))[::stride, ::stride]  # noqa: B023, E731
        is_whole = cut(usable).all((2, 3, 4))
        if clipped is not None:
            is_whole &= cut(clipped).mean((2, 3, 4)) <= CLIPPED
        if is_whole.sum() >= BLOCKS_MIN:
            blocks, rows = cut(pixels)[is_whole], cosines(side)
            return Blocks(blocks.mean((2, 3)), rows @ blocks @ rows.T)
    return None


def evenness(pixels: np.ndarray, usable: np.ndarray) -> float:
    """Evenness of the least power of blocks (H, W, C): 1 for noise alone, small where there are quiet places."""
    channels = [(pixels[..., k], usable[..., k]) for k in range(pixels.shape[2])]
    noise = np.random.default_rng(0).standard_normal((SIMULATED, SIMULATED))
    for side, orders in EVEN_ORDERS.items():
        found = [_quietest(*channel, side, orders) for channel in channels]
        if None not in found:
            expected = _quietest(noise, np.ones(noise.shape, dtype=bool), side, orders)
            return float(np.mean([each or 0.0 for each in found])) / (expected or 1.0)
    return 0.0


def _quietest(pixels: np.ndarray, usable: np.ndarray, side: int, orders: tuple[int, int]) -> float | None:
    """The power of the quietest blocks (H, W) over that of quiet ones of the same brightness, in the median."""
    squares = _squares_by_brightness(pixels, usable, side, orders)
    if squares is None:
        return None
    least = np.quantile(np.concatenate(squares), 0.3, axis=0).clip(min=1e-12)
    ratios = [np.quantile((part / least).mean(1), (QUIETEST, QUIET)) for part in squares]
    return float(np.median([low / high if high > 0 else 0.0 for low, high in ratios]))


def _squares_by_brightness(
    pixels: np.ndarray, usable: np.ndarray, side: int, orders: tuple[int, int]
) -> list[np.ndarray] | None:
    """(n, k) each: squared cosines i + j of these orders in the usable blocks (H, W), dark to bright; None: too few."""
    if side > min(pixels.shape):
        return None
    stride = max(1, math.ceil(math.sqrt(pixels.size / BLOCKS_MAX)))
    cut = lambda x: np.lib.stride_tricks.sliding_window_view(x, (side, side))[::stride, ::stride]  # noqa: E731
    blocks = cut(pixels)[cut(usable).all((2, 3))]
    if len(blocks) < BLOCKS_MIN:
        return None
    order, rows = np.add.outer(np.arange(side), np.arange(side)), cosines(side)
    squares = ((rows @ blocks @ rows.T) ** 2)[:, (order >= orders[0]) & (order <= orders[1])]
    return [squares[part] for part in np.array_split(blocks.mean((1, 2)).argsort(), EVEN_BRIGHTNESSES)]


def level_everywhere(pixels: np.ndarray, usable: np.ndarray) -> float:
    """Deviation of white noise in one channel (H, W), by the finest cosines of its quietest blocks.

    There is no more noise than the quietest blocks of a brightness have, for it is everywhere; of all brightnesses the
    median. Blocks of one value, as a frame has, say nothing. Infinite if there are too few others. `usable` (H, W):
    blocks with other values do not count.
    """
    squares = _squares_by_brightness(pixels, usable, FINEST_SIDE, FINEST_ORDERS)
    if squares is None:
        return math.inf
    powers = [part.mean(1) for part in squares]
    least = ONE_VALUE * np.concatenate(powers).max()
    powers = [part[part > least] for part in powers]
    share = max(QUIETEST, len(powers) * N_QUIETEST / max(1, sum(map(len, powers))))
    found = [np.quantile(part, share) for part in powers if len(part) > N_QUIETEST]
    return math.sqrt(float(np.median(found)) / _of_unit_noise(share)) if found else math.inf


@lru_cache
def _of_unit_noise(share: float) -> float:
    """This quantile over blocks of noise with deviation 1."""
    noise = np.random.default_rng(0).standard_normal((SIMULATED, SIMULATED))
    squares = _squares_by_brightness(noise, np.ones(noise.shape, dtype=bool), FINEST_SIDE, FINEST_ORDERS)
    assert squares is not None
    return float(np.median([np.quantile(part.mean(1), share) for part in squares]))
