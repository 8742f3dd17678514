"""Made-up frames have the noise that they state."""

import numpy as np
import pytest

from scripts.pictures.microscopy import PEDESTAL, frame, kernel_of


@pytest.mark.parametrize(("kernel", "lag"), [("white", 0.0), ("bilinear", 2 / 3), ("1.0", np.exp(-1 / 4))])
def test_variance_follows_the_line_and_neighbours_are_correlated(kernel, lag):
    assert kernel_of(kernel).sum() == pytest.approx(1)
    clean, noisy = frame(192, 0, 2.0, 4.0, kernel)
    assert clean.min() >= PEDESTAL
    noise = noisy - clean
    variance = 2 * (clean - PEDESTAL) + 16 + 1 / 12  # of rounding
    assert (noise**2 / variance).mean() == pytest.approx(1, abs=0.05)
    is_bright = clean > np.quantile(clean, 0.9)
    assert (noise**2 / variance)[is_bright].mean() == pytest.approx(1, abs=0.2)
    unit = noise / np.sqrt(variance)
    assert (unit[1:] * unit[:-1]).mean() == pytest.approx(lag, abs=0.05)
