"""The steps a picture takes before it is restored, and how the result is taken back.

Values are transformed so that their noise has the same deviation everywhere; the covariance of correlated noise goes
into the model (`model.covariance`), which needs whole patches, so that what is missing then stands at the median of
its neighbours. Outliers, if they are to be filled in, count as missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tvae.model.covariance import Covariance
from tvae.noise.outliers import replace_outliers


class Step(Protocol):
    def forward(self, pixels: np.ndarray) -> np.ndarray:
        """(H, W, C) to values of even noise."""

    def injective(self, pixels: np.ndarray) -> np.ndarray:
        """The same, with values that `forward` cuts off: no two of them become one."""

    def log_slope(self, pixels: np.ndarray) -> np.ndarray:
        """(H, W, C): the logarithm of the derivative of `injective`."""

    def back(self, pixels: np.ndarray, uncertainty: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Restored values and their standard deviations, before this step."""


@dataclass(frozen=True, eq=False)
class Treatment:
    step: Step | None = None  # None: values stay as they are
    sigma: float | None = None  # deviation of the noise after it; None: to be estimated
    noise_level: float | None = None  # at a typical brightness, before it; None: not known
    covariance: Covariance | None = None  # of the noise after it; None: it is white
    outliers: np.ndarray | None = None  # (H, W, C) bool: to be treated as missing

    def forward(self, pixels: np.ndarray, is_missing: np.ndarray) -> np.ndarray:
        """(H, W, C) and bool of the same shape to what the model is trained on."""
        if self.covariance is not None and is_missing.any():
            pixels = replace_outliers(pixels, is_missing)
        return pixels if self.step is None else self.step.forward(pixels)

    def back(self, pixels: np.ndarray, uncertainty: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (pixels, uncertainty) if self.step is None else self.step.back(pixels, uncertainty)
