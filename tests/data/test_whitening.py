"""Whitening against the covariance it promises, and against a textbook form by the matrix square root."""

import numpy as np
import pytest
from scipy.linalg import sqrtm

from tvae.data.whitening import fit_whitening


@pytest.fixture
def data() -> np.ndarray:
    """(5000, 6) correlated, off centre, with variances over four decades."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(6, 6)) @ np.diag([10.0, 3.0, 1.0, 0.3, 0.1, 0.03])
    return rng.normal(size=(5000, 6)) @ mixing.T + 7


def covariance(x: np.ndarray) -> np.ndarray:
    return np.cov(x, rowvar=False, bias=True)


def test_all_directions_retained_give_the_identity(data):
    whitening = fit_whitening(data, 1.0)
    white = whitening.whiten(data)
    assert np.allclose(white.mean(0), 0, atol=1e-9)
    assert np.allclose(covariance(white), np.eye(6), atol=1e-8)
    assert np.allclose(whitening.matrix, np.linalg.inv(sqrtm(covariance(data))).real, rtol=1e-6)


def test_retained_directions_are_white_and_the_others_damped(data):
    whitening = fit_whitening(data, 0.99)
    white = covariance(whitening.whiten(data))
    inside = whitening.directions
    n_white = inside.shape[1]
    assert 0 < n_white < 6
    assert np.allclose(inside.T @ white @ inside, np.eye(n_white), atol=1e-8)
    spectrum = np.sort(np.linalg.eigvalsh(white))
    assert np.all(spectrum[: 6 - n_white] < 1)
    assert np.all(spectrum > 0)


def test_the_share_of_variance_decides_how_many_are_white(data):
    variances = np.sort(np.linalg.eigvalsh(covariance(data)))[::-1]
    for n_white in range(1, 7):
        share = variances[:n_white].sum() / variances.sum()
        assert fit_whitening(data, share).directions.shape[1] == n_white


def test_inverse(data):
    whitening = fit_whitening(data, 0.95)
    back = whitening.colour(whitening.whiten(data)) + whitening.mean
    assert np.allclose(back, data)


def test_zca_turns_nothing(data):
    """ZCA is the whitening that stays closest to the data: its matrix is symmetric and positive."""
    matrix = fit_whitening(data, 1.0).matrix
    assert np.allclose(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix).min() > 0


def test_a_direction_without_variance_is_left_alone(data):
    flat = data - data.mean(1, keepdims=True)
    whitening = fit_whitening(flat, 1.0)
    assert whitening.directions.shape[1] == 5
    assert np.isfinite(whitening.matrix).all()
    assert np.allclose(whitening.whiten(flat).sum(1), 0, atol=1e-6)


def test_input_is_not_changed(data):
    before = data.copy()
    fit_whitening(data, 0.9).whiten(data)
    assert np.array_equal(data, before)
