"""Photon counts to values whose noise has the same variance everywhere, and back.

    x = a p + n,     p Poisson,     n ~ N(m, s^2):          Var x = a E[x] + b,     b = s^2 - a m

so that b is negative where a camera adds a pedestal m to little noise. The generalised Anscombe transform

    f(x) = 2/a sqrt(a x + 3/8 a^2 + b),                     zero where the root would be of a negative number

has a variance of nearly one from a few counts on. What is restored is an estimate D of E[f(x)], which is not f(E[x]).
The exact unbiased inverse takes E[f(x)] back to E[x]; in closed form (Mäkitalo and Foi 2011, 2013)

    E[x] = a (D^2/4 + sqrt(3/2)/4 D^-1 - 11/8 D^-2 + 5/8 sqrt(3/2) D^-3 - 1/8) - b/a

whose error, against numerical inversion, is at most 0.03 counts for pure Poisson noise from zero counts on, and below
0.06 counts with Gaussian noise of up to two counts on top (tests/noise/test_stabilise.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

AT_ZERO = 2 * math.sqrt(3 / 8)  # E[f] of no counts at all
ROOT = math.sqrt(3 / 2)


@dataclass(frozen=True)
class Anscombe:
    """The transform for noise with variance gain * x + offset."""

    gain: float  # a > 0
    offset: float  # b

    def forward(self, pixels: np.ndarray) -> np.ndarray:
        return 2 / self.gain * np.sqrt(self._under_root(pixels).clip(min=0))

    def injective(self, pixels: np.ndarray) -> np.ndarray:
        """f(x), but a straight line where the root would be of less than a^2/4: a density needs f to be injective."""
        under_root, least = self._under_root(pixels), self.gain**2 / 4
        beyond = (under_root - least).clip(max=0) / self.gain
        return 2 / self.gain * (np.sqrt(under_root.clip(min=least)) + beyond)

    def log_slope(self, pixels: np.ndarray) -> np.ndarray:
        """The logarithm of the derivative of `injective`."""
        return -0.5 * np.log(self._under_root(pixels).clip(min=self.gain**2 / 4))

    def _under_root(self, pixels: np.ndarray) -> np.ndarray:
        return self.gain * pixels + 3 / 8 * self.gain**2 + self.offset

    def inverse(self, stabilised: np.ndarray) -> np.ndarray:
        d = stabilised.clip(min=AT_ZERO)
        counts = d**2 / 4 + ROOT / 4 / d - 11 / 8 / d**2 + 5 / 8 * ROOT / d**3 - 1 / 8
        return self.gain * counts - self.offset / self.gain

    def slope(self, stabilised: np.ndarray) -> np.ndarray:
        """The derivative of `inverse`."""
        d = stabilised.clip(min=AT_ZERO)
        return self.gain * (d / 2 - ROOT / 4 / d**2 + 11 / 4 / d**3 - 15 / 8 * ROOT / d**4)

    def back(self, pixels: np.ndarray, uncertainty: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of stabilised values as those of the values themselves."""
        return self.inverse(pixels), self.slope(pixels) * uncertainty


@dataclass(frozen=True, eq=False)
class Scaling:
    """Division by the noise's standard deviation: one number, or one for each pixel (H, W, 1 or C)."""

    sigma: float | np.ndarray

    def forward(self, pixels: np.ndarray) -> np.ndarray:
        return pixels / self.sigma

    injective = forward

    def log_slope(self, pixels: np.ndarray) -> np.ndarray:
        return np.broadcast_to(-np.log(self.sigma), pixels.shape)

    def back(self, pixels: np.ndarray, uncertainty: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return pixels * self.sigma, uncertainty * self.sigma
