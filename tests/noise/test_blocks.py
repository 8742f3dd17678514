"""Blocks of nothing but noise."""

import numpy as np
import pytest
from made_up_noise import NOISY, scene
from scipy.ndimage import gaussian_filter

from tvae.data.corruption import add_correlated_noise
from tvae.data.picture import add_noise
from tvae.noise.blocks import blocks_of, cosines, evenness, fit_line, lag_powers


def found(pixels):
    return blocks_of(pixels, np.ones(pixels.shape, dtype=bool))


def test_cosines_are_orthonormal():
    np.testing.assert_allclose(cosines(8) @ cosines(8).T, np.eye(8), atol=1e-12)


def test_powers_of_a_correlation():
    """A line of noise with this correlation, taken to cosines."""
    correlation = np.array([1, 0.6, 0.1])
    i = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
    covariance = np.where(i < 3, correlation[i.clip(max=2)], 0)
    np.testing.assert_allclose(correlation @ lag_powers(8, 2), np.diag(cosines(8) @ covariance @ cosines(8).T))


def test_covariance_of_noise_on_a_picture():
    pixels = scene(256) + add_correlated_noise(np.zeros((256, 256, 1)), 25, 1.0, 0)
    table = found(pixels).autocovariance()[0, 0]
    assert table[0, 0] ** 0.5 == pytest.approx(25, rel=0.15)
    assert table[1, 0] / table[0, 0] == pytest.approx(np.exp(-1 / 4), abs=0.1)


def test_channels_that_share_their_noise():
    rng = np.random.default_rng(0)
    shared = gaussian_filter(rng.standard_normal((200, 200)), 1)
    own = rng.standard_normal((200, 200, 3))
    table = found(np.array([3.0, 5.0, 8.0]) * own + (30 * shared)[..., None]).autocovariance()
    levels = table.diagonal(axis1=0, axis2=1)[0, 0]
    np.testing.assert_allclose(levels, np.array([9, 25, 64]) + 900 * shared.var(), rtol=0.2)
    assert table[0, 2, 0, 0] == pytest.approx(900 * shared.var(), rel=0.25)


def test_line_of_photon_counts():
    line = found(NOISY["poisson 30"](scene(256))).line()
    assert line.gain == pytest.approx(8.5, rel=0.2)


def test_structure_above_a_line_counts_less():
    mean = np.linspace(10, 100, 10)
    variance = 3 * mean + 20
    variance[6] *= 3
    line = fit_line(mean, variance)
    assert line.gain == pytest.approx(3, rel=0.1)


def test_noise_is_everywhere_and_texture_is_not():
    whole = np.ones((160, 160, 1), dtype=bool)
    assert evenness(np.random.default_rng(3).standard_normal((160, 160, 1)), whole) == pytest.approx(1, abs=0.1)
    assert evenness(add_correlated_noise(np.zeros((160, 160, 1)), 10, 1.0, 4), whole) == pytest.approx(1, abs=0.15)
    assert evenness(scene(160) + add_noise(np.zeros((160, 160, 1)), 0.3, 0), whole) > 0.7
    stripes = np.sin(np.arange(160) / 3) * np.linspace(0, 1, 160)[:, None] ** 3
    assert evenness(stripes[..., None], whole) < 0.7


def test_a_few_clipped_values_do_not_exclude_a_block():
    """Dark parts of a frame are clipped at zero here and there, and have the least structure."""
    whole = np.ones((128, 128, 1), dtype=bool)
    pixels = (25 + 12 * np.random.default_rng(7).standard_normal((128, 128, 1))).clip(min=0)
    clipped = pixels == 0
    assert 0.01 < clipped.mean() < 0.03
    assert blocks_of(pixels, whole & ~clipped).side < 12
    blocks = blocks_of(pixels, whole, clipped)
    assert blocks.side == 12
    assert blocks.line().variance.mean() == pytest.approx(144, rel=0.12)


def test_blocks_get_smaller_where_much_is_missing():
    pixels = np.random.default_rng(5).standard_normal((128, 128, 1))
    known = np.random.default_rng(6).uniform(size=pixels.shape) > 0.3
    blocks = blocks_of(pixels, known)
    assert blocks.side == 2
    assert blocks.line().variance.mean() == pytest.approx(1, rel=0.25)
    assert blocks_of(pixels, np.zeros(pixels.shape, dtype=bool)) is None
