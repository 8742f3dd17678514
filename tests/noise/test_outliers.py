"""Outliers: pixels that have nothing to do with the picture."""

import numpy as np
from made_up_noise import NOISY, scene

from tvae.data.corruption import add_salt_and_pepper, count_photons
from tvae.data.picture import add_noise
from tvae.noise.outliers import find_outliers, neighbours, replace_outliers


def test_hot_and_dead_pixels_among_noise():
    noisy = add_noise(scene(), 5, 0)
    places = [(10, 20), (60, 64), (100, 30), (40, 90), (90, 90)]
    for i, (row, column) in enumerate(places):
        noisy[row, column] += 150 if i % 2 else -150
    found = find_outliers(noisy, 5.0, 0.0, 255.0)
    assert {tuple(place) for place in np.argwhere(found[..., 0]).tolist()} == set(places[:4])  # the last is in stripes


def test_no_outliers_in_noise_edges_and_texture():
    for name, sigma in (("gaussian 5", 5.0), ("gaussian 25", 25.0), ("gaussian 50", 50.0)):
        noisy = NOISY[name](scene())
        assert not find_outliers(noisy, sigma, 0.0, 255.0).any()
        assert not find_outliers(np.rint(noisy.clip(0, 255)), sigma, 1.0, 255.0).any()


def test_single_photons_on_black_are_no_outliers():
    dark = count_photons(np.full((96, 96, 1), 3.0), 4, 0)
    assert 0 < (dark > 0).mean() < 0.1
    assert not find_outliers(dark, 0.0, 255 / 4, 255.0).any()


def test_salt_and_pepper_also_where_the_picture_is_nearly_black():
    noisy = add_salt_and_pepper(add_noise(np.full((96, 96, 1), 70.0), 15, 0), 0.04, 1)
    is_salt = (noisy == 0) | (noisy == 255)
    found = find_outliers(noisy, 15.0, 0.0, 255.0)
    assert (found & is_salt).sum() > 0.9 * is_salt.sum()
    assert not (found & ~is_salt).any()


def test_black_parts_of_a_picture_are_no_pepper():
    clipped = (add_noise(scene(), 15, 0) - 30).clip(0, 255).round()
    assert (clipped == 0).mean() > 0.01
    assert not find_outliers(clipped, 15.0, 1.0, 255.0).any()


def test_replaced_by_the_median_of_the_neighbours():
    pixels = np.arange(25.0).reshape(5, 5, 1)
    outliers = np.zeros(pixels.shape, dtype=bool)
    outliers[2, 2] = outliers[2, 3] = True
    found = replace_outliers(pixels, outliers)
    assert found[2, 2, 0] == np.median([6, 7, 8, 11, 16, 17, 18])
    np.testing.assert_array_equal(found[~outliers], pixels[~outliers])
    assert pixels[2, 2, 0] == 12


def test_neighbours_leave_out_the_place_itself():
    values = np.arange(12.0).reshape(3, 4)
    assert sorted(neighbours(values, 1, np.array([1]), np.array([1]))[:, 0]) == [0, 1, 2, 4, 6, 8, 9, 10]
