"""Noise that is correlated between neighbours: its lags, from the powers of the cosines of 8x8 blocks.

Noise is taken to be a white one and one that is correlated down and across independently, as filters along rows and
columns leave it. Its powers are then

    P_ij = w + p_i q_j,        p_i = sum_k rho_k A_ki,       A_ki = power of cosine i for a correlation at lag k alone

and likewise q. Of p and q all entries are found from cosines that are low along one direction only, so that the lowest
ones, in which pictures are, need not count, and noise that is far slower than a block is still told. Least squares of
relative errors give w, p and q by turns, and then rho of both directions.
"""

from __future__ import annotations

import math

import numpy as np

SIDE = 8
LAGS = 6
ROUNDS = 200
SMALL = 0.02  # of the mean power: errors of smaller ones count as those of it
STIFFNESS = 1e-3  # what a lag's square counts, times the lag's: keeps those that blocks hardly tell near zero

_SUM = np.add.outer(np.arange(SIDE), np.arange(SIDE))
LOWEST = _SUM <= 2
WHITE = np.ones((SIDE, SIDE))  # powers of white noise


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
    """(LAGS + 1, LAGS + 1): correlations at lags down and across, 1 at lag zero, from P (SIDE, SIDE)."""
    small = SMALL * powers[~LOWEST].mean()
    weight = np.where(LOWEST, 0, 1 / (powers + small) ** 2)
    p, q, white = np.average(powers, 1, ~LOWEST), np.ones(SIDE), 0.0
    for _ in range(ROUNDS):
        rest = weight * (powers - white)
        p = (rest @ q / (weight @ q**2)).clip(min=1e-3 * small)
        q = (rest.T @ p / (weight.T @ p**2)).clip(min=1e-3 * small / p.max())
        white = max(0.0, float((weight * (powers - np.outer(p, q))).sum() / weight.sum()))
    (variance, down), (scale, across) = _lags(p), _lags(q)
    found = variance * scale * np.outer(down, across)
    found[0, 0] += white
    return found / found[0, 0]


def _lags(powers: np.ndarray) -> tuple[float, np.ndarray]:
    """(SIDE,) -> the variance, and the correlations (LAGS + 1,)."""
    weight = 1 / (powers + SMALL * powers.mean())
    stiffness = math.sqrt(STIFFNESS) / powers.mean() * np.diag(np.arange(LAGS + 1.0))
    design = np.concatenate([lag_powers().T * weight[:, None], stiffness])
    found = np.linalg.lstsq(design, np.r_[powers * weight, np.zeros(LAGS + 1)], rcond=None)[0]
    return float(found[0]), found / found[0]
