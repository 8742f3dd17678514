"""Lags of correlated noise from the powers of its cosines, against covariance matrices and noise that was made."""

import numpy as np
import pytest
from scipy.linalg import toeplitz

from tvae.noise.blocks import bands
from tvae.noise.spectrum import LAGS, LOWEST, SIDE, correlation_of, cosines, lag_powers, powers_of


def lags_of_blur(width):
    """(LAGS + 1,): of white noise that was blurred by a Gaussian."""
    return np.exp(-((np.arange(LAGS + 1) / width) ** 2) / 4)


def test_powers_are_the_diagonal_of_the_covariance_of_a_block():
    down, across = lags_of_blur(0.6), lags_of_blur(0.9)
    tails = [np.r_[lags, np.zeros(SIDE - LAGS - 1)] for lags in (down, across)]
    transform = np.kron(cosines(), cosines())
    covariance = transform @ np.kron(*(toeplitz(lags) for lags in tails)) @ transform.T
    np.testing.assert_allclose(powers_of(np.outer(down, across)).ravel(), np.diag(covariance).clip(0.01), atol=1e-10)


def test_cosines_are_orthonormal_and_white_noise_has_equal_powers():
    np.testing.assert_allclose(cosines() @ cosines().T, np.eye(SIDE), atol=1e-12)
    np.testing.assert_allclose(lag_powers()[0], 1)


@pytest.mark.parametrize(("down", "across"), [(0.7, 0.7), (1.0, 1.0), (1.5, 1.5), (1.0, 0.6), (2.0, 1.5)])
@pytest.mark.parametrize("white", [0.0, 0.2])
def test_lags_come_back_also_without_the_lowest_cosines(down, across, white):
    """Down and across on their own, slower than the lowest cosines that count, and with white noise on top."""
    true = (1 - white) * np.outer(lags_of_blur(down), lags_of_blur(across))
    true[0, 0] = 1
    powers = powers_of(true)
    powers[:2, :2] *= 50  # a picture
    found = correlation_of(3 * powers)
    assert np.abs(found - true)[:4, :4].max() < 0.1


@pytest.mark.parametrize("width", [0.1, 0.7, 1.5, 2.0, 3.0, 5.0])
def test_flatness_and_level_come_from_other_cosines(width):
    of_flatness, of_level = bands(powers_of(np.outer(lags_of_blur(width), lags_of_blur(width))))
    assert of_flatness.any()
    assert of_level.any()
    assert not (of_flatness & of_level).any()
    assert not (of_flatness | of_level)[LOWEST].any()


def test_white_noise_has_no_lags():
    rng = np.random.default_rng(0)
    blocks = rng.normal(size=(400, SIDE, SIDE))
    found = correlation_of(((cosines() @ blocks @ cosines().T) ** 2).mean(0))
    assert found[0, 0] == 1
    assert np.abs(found).ravel()[1:].max() < 0.1
