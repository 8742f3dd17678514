"""Correlated noise made white, and back."""

import numpy as np
import pytest
from made_up_noise import scene

from tvae.data.corruption import add_correlated_noise
from tvae.noise.decorrelate import Decorrelation

WIDTH = 0.45  # pixels that noise is blurred by, so little that its spectrum has no zeros
KERNEL = np.exp(-0.5 * (np.arange(-2, 3) / WIDTH) ** 2)
LAGS = np.correlate(KERNEL, KERNEL, "full")[4:8] / (KERNEL @ KERNEL)
FILTER = Decorrelation(np.outer(LAGS, LAGS), (128, 128))


def lags_of(noise):
    """Correlation at one pixel, across and down."""
    noise = noise[..., 0] - noise.mean()
    return [(noise[:, 1:] * noise[:, :-1]).mean() / noise.var(), (noise[1:] * noise[:-1]).mean() / noise.var()]


def test_noise_is_white_and_of_the_same_deviation():
    noise = add_correlated_noise(np.zeros((128, 128, 1)), 10, WIDTH, 3)
    assert lags_of(noise) == pytest.approx([LAGS[1], LAGS[1]], abs=0.06)
    white = FILTER.forward(noise)
    assert lags_of(white) == pytest.approx([0, 0], abs=0.06)
    assert white.std() == pytest.approx(10, rel=0.05)


def test_a_picture_comes_back():
    clean = scene()
    back, _ = FILTER.back(FILTER.forward(clean), np.ones(clean.shape))
    inside = (slice(16, -16), slice(16, -16))  # at the edges the filtered picture is mirrored anew
    np.testing.assert_allclose(back[inside], clean[inside], atol=0.1)


def test_uncertainty_is_that_of_independent_errors():
    rng = np.random.default_rng(0)
    stated = np.full((128, 128, 1), 2.0)
    errors = np.stack([FILTER.back(2 * rng.normal(size=stated.shape), stated)[0] for _ in range(40)])
    _, uncertainty = FILTER.back(stated, stated)
    assert uncertainty[64, 64, 0] == pytest.approx(errors[:, 32:-32, 32:-32].std(), rel=0.05)


def test_where_the_spectrum_is_zero_the_filter_stays_finite():
    """Noise blurred by a pixel has hardly any fine details, so that it does not become quite white."""
    lags = np.exp(-(np.arange(4) ** 2) / 4)
    blurred = Decorrelation(np.outer(lags, lags), (128, 128))
    noise = add_correlated_noise(np.zeros((128, 128, 1)), 10, 1.0, 3)
    white = blurred.forward(noise)
    assert max(lags_of(white)) < 0.45 < 0.7 < min(lags_of(noise))
    assert white.std() < 10
    back, _ = blurred.back(blurred.forward(scene()), scene())
    assert np.abs(back - scene())[16:-16, 16:-16].max() < 0.2


def test_colours_are_filtered_alike():
    clean = np.concatenate([scene(), 255 - scene(), scene()], -1)
    whole = FILTER.forward(clean)
    np.testing.assert_allclose(whole[..., :1], FILTER.forward(clean[..., :1]))
    np.testing.assert_allclose(whole[..., 1:2], FILTER.forward(clean[..., 1:2]))
