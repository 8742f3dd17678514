"""What is done to a picture before it is restored, and how the result is taken back: one step after the other.

Restoration knows white Gaussian noise and missing pixels. A treatment makes of other noise what it knows: photon counts
are stabilised, a known noise level for each pixel is divided by, correlated noise is made white, outliers count as
missing (or, where noise is to be made white, stand at the median of their neighbours). Noise is then of deviation one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tvae.errors import UserError
from tvae.noise.decorrelate import Decorrelation, blurred
from tvae.noise.diagnosis import NoiseModel
from tvae.noise.outliers import replace_outliers
from tvae.noise.stabilise import Anscombe, Scaling

AROUND = 3.0  # pixels: what differs from the picture blurred by so much is noise
SKEW = -0.3  # of stabilised noise; photon counts have more, symmetric noise on few counts less (docs/noise.md)
SMOOTH = 5.0  # pixels that the picture is blurred by, where the deviation is that of its brightness


class Step(Protocol):
    def forward(self, pixels: np.ndarray) -> np.ndarray:
        """(H, W, C) to what the next step takes."""

    def back(self, pixels: np.ndarray, uncertainty: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Restored values and their standard deviations, before this step."""


@dataclass(frozen=True, eq=False)
class Treatment:
    steps: tuple[Step, ...] = ()
    noise_level: float | None = None  # standard deviation at a typical brightness, before it; None: not known
    outliers: np.ndarray | None = None  # (H, W, C) bool: to be treated as missing
    replaced: np.ndarray | None = None  # (H, W, C) bool: to be replaced by their neighbours

    @property
    def sigma(self) -> float | None:
        """Of the noise after it; None: as before."""
        return 1.0 if self.steps else None

    @property
    def is_whitening(self) -> bool:
        return any(isinstance(step, Decorrelation) for step in self.steps)

    def forward(self, pixels: np.ndarray) -> np.ndarray:
        if self.replaced is not None:
            pixels = replace_outliers(pixels, self.replaced)
        for step in self.steps:
            pixels = step.forward(pixels)
        return pixels

    def back(self, pixels: np.ndarray, uncertainty: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        for step in reversed(self.steps):
            pixels, uncertainty = step.back(pixels, uncertainty)
        return pixels, uncertainty


def treatment_for(
    model: NoiseModel, kind: str, pixels: np.ndarray, known: np.ndarray, n_pages: int = 1, fills_outliers: bool = False
) -> Treatment | None:
    """Choose the treatment of a picture (H, W, C), some of which is `known`; None: it is restored as it is.

    `kind`: auto, or what the user says it is. Pages stand one above the other. Outliers stay unless they are filled in.
    """
    outliers = model.outliers if fills_outliers else None
    if kind == "auto":
        kind = model.kind
    is_dependent = kind == "poisson_gaussian" or (kind == "correlated" and model.is_signal_dependent)
    if is_dependent and model.line.gain <= 0:
        raise UserError("noise_model=poisson_gaussian: the variance of the noise does not grow with brightness here")
    if kind == "gaussian":
        return None if outliers is None else Treatment(outliers=outliers)
    sigma = model.line.level**0.5
    scale: Step = Anscombe(model.line.gain, model.line.offset) if is_dependent else Scaling(sigma)
    if is_dependent:
        sigma = float(model.line.at(np.median(model.line.mean))) ** 0.5
    if kind == "poisson_gaussian":
        return Treatment((scale,), sigma, outliers)
    height, width = known.shape[:2]
    replaced = ~known if outliers is None else ~known | outliers
    page = height // n_pages, width
    if is_dependent:
        scale = _scale(model, replace_outliers(pixels, replaced) if replaced.any() else pixels, page)
    whiten = Decorrelation(model.shape.correlation, page)
    return Treatment((scale, whiten), sigma, replaced=replaced if replaced.any() else None)


def _scale(model: NoiseModel, pixels: np.ndarray, page: tuple[int, int]) -> Step:
    """Of noise that depends on the signal and is correlated.

    Photon counts that were blurred afterwards are as skew as counts are, and the root takes that away. Where it leaves
    strong noise skew to the other side, the noise was symmetric, and its values near zero would be torn apart: they
    are divided by the deviation that belongs to the blurred picture instead.
    """
    root = Anscombe(model.line.gain, model.line.offset)
    stabilised = root.forward(pixels)
    details = stabilised - blurred(stabilised, AROUND, page)
    if (details**3).mean() > SKEW * (details**2).mean() ** 1.5:
        return root
    return Scaling(np.sqrt(model.line.at(blurred(pixels, SMOOTH, page))))
