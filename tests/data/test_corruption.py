"""Corruptions for benchmarks have the statistics that they state."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from tvae.data.corruption import add_correlated_noise, add_salt_and_pepper, compress, count_photons

GREY = np.full((200, 200, 1), 51.0)


def test_photon_counts_are_whole_and_have_a_poisson_mean_and_variance():
    counts = count_photons(GREY, 10, 0) * 10 / 255
    np.testing.assert_allclose(counts, np.rint(counts), atol=1e-9)
    assert counts.mean() == pytest.approx(2, abs=4 * (2 / counts.size) ** 0.5)
    assert counts.var() == pytest.approx(2, rel=0.05)
    assert (counts == 0).mean() == pytest.approx(np.exp(-2), abs=0.01)


@pytest.mark.parametrize("width", [0.7, 1.5])
def test_correlated_noise_has_the_deviation_and_lags_of_blurred_noise(width):
    noise = (add_correlated_noise(GREY, 20, width, 0) - GREY)[..., 0]
    assert noise.std() == pytest.approx(20, rel=0.05)
    impulse = np.zeros((41, 41))
    impulse[20, 20] = 1
    kernel = gaussian_filter(impulse, width)
    for lag in (1, 2):
        expected = (kernel[:, lag:] * kernel[:, :-lag]).sum() / (kernel**2).sum()
        assert (noise[:, lag:] * noise[:, :-lag]).mean() / noise.var() == pytest.approx(expected, abs=0.05)


def test_salt_and_pepper_takes_its_share_and_nothing_else():
    noisy = add_salt_and_pepper(GREY, 0.04, 0)
    is_salt, is_pepper = noisy == 255, noisy == 0
    assert (is_salt | is_pepper).sum() == round(0.04 * GREY.size)
    assert is_salt.sum() == pytest.approx(is_pepper.sum(), rel=0.2)
    assert (noisy[~is_salt & ~is_pepper] == 51).all()


def test_jpeg_rounds_and_keeps_less_at_a_lower_quality():
    picture = 128 + 60 * np.random.default_rng(0).normal(size=(64, 64, 1))
    high, low = compress(picture, 95), compress(picture, 20)
    np.testing.assert_array_equal(high, np.rint(high))
    clipped = picture.clip(0, 255)
    assert 0 < np.abs(high - clipped).mean() < np.abs(low - clipped).mean()


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda seed: count_photons(GREY, 10, seed),
        lambda seed: add_correlated_noise(GREY, 20, 1.0, seed),
        lambda seed: add_salt_and_pepper(GREY, 0.02, seed),
    ],
)
def test_seeds_decide(corrupt):
    np.testing.assert_array_equal(corrupt(3), corrupt(3))
    assert not np.array_equal(corrupt(3), corrupt(4))
