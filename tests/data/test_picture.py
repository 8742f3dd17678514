"""Corruption of a clean picture."""

import math

import numpy as np
import pytest

from tvae.data.picture import Picture, add_noise, drop_pixels, drop_values
from tvae.io.image_file import from_array
from tvae.noise.level import known_values


def test_noise_has_the_wanted_statistics():
    pixels = np.full((200, 200, 3), 100.0)
    noisy = add_noise(pixels, 50, seed=0)
    noise = (noisy - pixels).ravel()
    assert abs(noise.mean()) < 4 * 50 / np.sqrt(noise.size)
    assert noise.std() == pytest.approx(50, rel=4 / np.sqrt(2 * noise.size))
    assert noisy.min() < 0  # not clipped
    assert noisy.max() > 255
    channels = np.corrcoef((noisy - pixels).reshape(-1, 3).T)
    assert np.abs(channels - np.eye(3)).max() < 4 / np.sqrt(40000)
    assert (pixels == 100).all()


def test_noise_is_in_grey_levels_whatever_the_peak():
    pixels = np.zeros((9, 9, 1))
    np.testing.assert_allclose(add_noise(pixels, 25, 3, peak=65535.0), 257 * add_noise(pixels, 25, 3))
    np.testing.assert_allclose(add_noise(pixels, 25, 3, peak=1.0), add_noise(pixels, 25, 3) / 255)


@pytest.mark.parametrize("missing", [0, 0.1, 0.5, 0.8])
def test_dropped_pixels_are_counted_exactly_and_spread(missing):
    dropped = drop_pixels((60, 40), missing, seed=0)
    assert (dropped.shape, dropped.dtype) == ((60, 40), bool)
    assert dropped.sum() == round(missing * 60 * 40)
    halves = dropped[:30].mean(), dropped[:, :20].mean()
    np.testing.assert_allclose(halves, missing, atol=4 * np.sqrt(missing * (1 - missing) / 1200) + 1e-9)


def test_the_range_of_floating_point_hardly_depends_on_noise_and_missing_pixels():
    """The same picture clean, noisy and incomplete: noise is compared with about the same range."""
    clean = np.zeros((60, 60, 1))
    clean[:30], clean[30:, :30], clean[30:, 30:] = 20, 120, 220
    noisy = add_noise(clean, 25, seed=0)
    for pixels, missing in ((clean, None), (noisy, None), (noisy, drop_pixels((60, 60), 0.5, 0))):
        image = from_array(pixels.astype(np.float32))
        pixels = pixels if missing is None else np.where(missing[..., None], 0, pixels)
        found = Picture(image, pixels, missing=missing).grey_range
        assert 200 <= found <= 245
    assert from_array(noisy.astype(np.float32)).peak > 290
    eight_bit = from_array(clean.astype(np.uint8))
    assert Picture(eight_bit, noisy).grey_range == 255


def picture_of(array, missing=None):
    image = from_array(array)
    noisy = image.pixels if missing is None else np.where(missing[..., None], 0, image.pixels)
    return Picture(image, noisy, missing=missing)


@pytest.mark.parametrize("missing", [0.0, 0.5])
@pytest.mark.parametrize("noise", [0, 25, 50])
def test_the_grey_range_of_floating_point_values_is_hardly_that_of_the_noise(noise, missing):
    rows, columns = np.mgrid[:80, :90]
    clean = 500 + 255 * (rows // 20 % 2) * (columns > 40)
    noisy = add_noise(clean[..., None].astype(float), noise, seed=0)[..., 0]
    mask = drop_pixels(clean.shape, missing, seed=1) if missing else None
    assert picture_of(noisy, mask).grey_range == pytest.approx(255, rel=0.5 if noise else 1e-9)
    assert noise < 50 or picture_of(noisy).image.peak > 500


def test_the_grey_range_of_a_type_is_its_own():
    assert picture_of(np.full((9, 9), 3, np.uint8)).grey_range == 255
    assert picture_of(np.full((9, 9), 60000, np.uint16)).grey_range == 65535
    assert picture_of(np.full((9, 9), 0.3)).grey_range == 1


@pytest.mark.parametrize("shape", [(4, 40), (1, 1), (3, 3)])
def test_without_a_block_the_grey_range_is_that_of_the_values(shape):
    values = 10 * np.arange(np.prod(shape), dtype=float).reshape(shape)
    picture = picture_of(values)
    assert picture.grey_range == picture.image.peak


def test_a_regular_pattern_has_a_grey_range():
    """All its blocks have the same mean."""
    picture = picture_of(np.tile([0.1, 7.3, 2.9, 5.7, 3.3], (40, 8)))
    assert picture.grey_range >= 0.01 * picture.image.peak


def test_channels_are_dropped_one_by_one():
    dropped = drop_values((40, 30, 3), 0.5, 7)
    assert dropped.sum() == 1800
    shares = dropped.reshape(-1, 3).mean(0)
    assert np.abs(shares - 0.5).max() < 4 * 0.5 / math.sqrt(1200)
    assert 0.06 < dropped.all(-1).mean() < 0.19  # independent: an eighth of the pixels has lost all three
    np.testing.assert_array_equal(drop_values((40, 30), 0.5, 7), drop_pixels((40, 30, 3), 0.5, 7))


def test_known_values_of_pixels_and_of_channels():
    by_pixel, by_channel = np.zeros((2, 3), bool), np.zeros((2, 3, 3), bool)
    by_pixel[0, 1] = by_channel[1, 2, 0] = True
    assert np.argwhere(~known_values(by_pixel, (2, 3, 3))).tolist() == [[0, 1, 0], [0, 1, 1], [0, 1, 2]]
    assert np.argwhere(~known_values(by_channel, (2, 3, 3))).tolist() == [[1, 2, 0]]
