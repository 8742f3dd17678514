"""Keep what the noise does not explain: structure that a restoration has removed is put back.

Under the noise model the difference between picture and result, over sigma, is at most white noise of deviation one (a
restoration leaves some of the noise, which makes it smaller). Its sum over a template of n pixels, over sqrt(n), is
then standard normal at most; correlated noise has another deviation of such a sum in the place of sqrt(n). Templates: a
pixel (stars, dots), 3x3 pixels, and lines of 5 and 11 pixels in four directions (rules, strokes of letters). Where such
a sum is beyond

    t = Phi^-1(1 - FALSE_ALARMS / (2 N K)),        N pixels, K templates: about 5.5

noise is no explanation: the pixel itself is put back, or for a larger template its mean difference. A false alarm is
expected in one of 1 / FALSE_ALARMS pictures of pure noise, whatever their size. A difference beyond t is a better
estimate of what is missing than zero is, so that the squared error falls wherever sigma is right.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.model.covariance import Covariance

FALSE_ALARMS = 0.05  # per picture of pure noise
LINES = (5, 11)  # pixels


def templates() -> list[Tensor]:
    """(k, k) zeros and ones each, k odd; the pixel comes first."""
    found = [torch.ones(1, 1), torch.ones(3, 3)]
    for length in LINES:
        down = torch.zeros(length, length)
        down[:, length // 2] = 1
        slope = torch.eye(length)
        found += [down, down.T.contiguous(), slope, slope.flip(0)]
    return found


def threshold(n_values: int) -> float:
    """Deviations from which on a sum is not explained by noise, in a picture of so many values."""
    return NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * n_values * len(templates())))


def keep_unexplained(
    noisy: np.ndarray,
    restored: np.ndarray,
    sigma: float,
    known: np.ndarray | None = None,
    n_pages: int = 1,
    covariance: Covariance | None = None,
) -> np.ndarray:
    """(H, W, C): `restored`, with the differences to `noisy` that noise of deviation `sigma` does not explain.

    `known` (H, W, C) bool: where `noisy` counts. Pages stand one above the other. `covariance`: of noise that is not
    white, which has other sums over templates.
    """
    difference = np.subtract(noisy, restored, dtype=np.float64)
    if known is not None:
        difference[~known] = 0
    if sigma <= 0:
        return restored + difference
    limit, kept = threshold(difference.size), restored.copy()
    height = len(noisy) // n_pages
    deviations = [
        [
            math.sqrt(float(t.sum()) if covariance is None else covariance.variance_of_sum(t.numpy(), channel))
            for t in templates()
        ]
        for channel in range(noisy.shape[2])
    ]
    for top in range(0, len(noisy), height):
        for channel in range(noisy.shape[2]):
            place = slice(top, top + height), slice(None), channel
            values = torch.from_numpy(difference[place] / sigma).float()
            kept[place] += sigma * _unexplained(values, limit, deviations[channel]).numpy()
    return kept


def _unexplained(difference: Tensor, limit: float, deviations: list[float]) -> Tensor:
    """(H, W), in deviations -> (H, W): the part that noise does not explain; small templates take theirs first.

    `deviations`: of the noise's sum over each template.
    """
    left = difference.clone()
    for template, deviation in zip(templates(), deviations, strict=True):
        kernel = template[None, None]
        margin, n = len(template) // 2, int(template.sum())
        sums = F.conv2d(left[None, None], kernel, padding=margin)
        is_beyond = (sums.abs() > limit * deviation).float()
        if is_beyond.any():
            count = F.conv2d(is_beyond, kernel, padding=margin)  # templates are symmetric
            total = F.conv2d(is_beyond * sums / n, kernel, padding=margin)
            left -= (total / count.clamp(min=1))[0, 0]
    return difference - left
