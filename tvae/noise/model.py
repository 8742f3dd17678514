"""The noise of a picture as it was judged: its kind, its parameters, and the bounds of all candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvae.model.covariance import Covariance
from tvae.noise.blocks import Line

LAGS_TOLD = 3
KINDS = ("gaussian", "poisson_gaussian", "correlated")
WORDS = {"gaussian": "white Gaussian", "poisson_gaussian": "photon counts", "correlated": "correlated"}


@dataclass(frozen=True, eq=False)
class NoiseModel:
    """Kind and parameters of a picture's noise, in the picture's own units."""

    kind: str
    line: Line  # variance against brightness
    is_signal_dependent: bool  # whether it follows the line
    covariance: Covariance  # between neighbours and channels
    sigma: float  # deviation, after the transform where there is one
    bounds: dict[str, float]  # of each candidate, nats per value
    evenness: float  # of the least power of blocks: 1 where noise is everywhere
    outliers: np.ndarray | None  # (H, W, C) bool: look like salt and pepper or hot pixels; None: there are none
    saturated_share: float  # of values at the highest value, where they pile up there
    step: float  # between grey levels; 0: there are none

    def facts(self) -> dict[str, Any]:
        """Values for metrics.json."""
        return {
            "kind": self.kind,
            "is_signal_dependent": self.is_signal_dependent,
            "bounds": self.bounds,
            "evenness": self.evenness,
            "gain": self.line.gain,
            "offset": self.line.offset,
            **{f"correlation_{lag}": self.covariance.lag(lag) for lag in range(1, LAGS_TOLD + 1)},
            "outlier_share": 0.0 if self.outliers is None else float(self.outliers.mean()),
            "saturated_share": self.saturated_share,
            "grey_step": self.step,
        }

    def __str__(self) -> str:
        """The line for the log."""
        parts = [WORDS[self.kind]]
        if self.is_signal_dependent:
            parts.append(f"variance {self.line.gain:.3g} x {self.line.offset:+.3g}")
        if self.kind == "correlated":
            parts.append(f"correlation {self.covariance.lag(1):.2f} at one pixel")
        if self.outliers is not None:
            parts.append(f"{self.outliers.mean():.2%} outliers")
        if self.saturated_share > 0:
            parts.append(f"{self.saturated_share:.2%} saturated")
        bounds = ", ".join(f"{name.replace('_', ' ')} {nats:.3f}" for name, nats in self.bounds.items())
        return f"{', '.join(parts)} (nats per value: {bounds})"
