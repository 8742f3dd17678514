"""The transform of a picture's noise, and its inverse on results."""

import numpy as np
import pytest
from made_up_noise import NOISY, scene

from tvae.data.corruption import add_correlated_noise
from tvae.data.picture import Picture, add_noise
from tvae.errors import UserError
from tvae.io.image_file import Image, write_image
from tvae.noise.choice import with_noise_model
from tvae.noise.stabilise import Anscombe, Scaling


def picture_of(noisy, missing=None):
    return Picture(Image(noisy, noisy.dtype, 255.0, 0.0), noisy, None, missing, 255.0)


def test_a_known_noise_level_for_each_pixel_makes_noise_even(tmp_path):
    clean = np.full((96, 96, 1), 100.0)
    sigma = np.linspace(5, 40, 96).round()[None, :, None] * np.ones((96, 1, 1))
    noisy = clean + sigma * add_noise(np.zeros(clean.shape), 1, 0)
    path = tmp_path / "sigma.png"
    write_image(path, sigma[..., 0].astype(np.uint8))
    picture = with_noise_model(picture_of(noisy), "auto", str(path))
    assert picture.seen.sigma == 1
    noise = picture.seen.noisy - clean / sigma
    assert noise[:, :30].std() == pytest.approx(1, rel=0.05)
    assert noise[:, -30:].std() == pytest.approx(1, rel=0.05)
    back, uncertainty = picture.treatment.back(picture.seen.noisy, np.ones(clean.shape))
    np.testing.assert_allclose(back, noisy)
    np.testing.assert_allclose(uncertainty, sigma)


def test_a_noise_level_must_fit_the_picture_and_be_above_zero(tmp_path):
    small, zero = tmp_path / "small.png", tmp_path / "zero.png"
    write_image(small, np.ones((10, 10), dtype=np.uint8))
    write_image(zero, np.zeros((96, 96), dtype=np.uint8))
    picture = picture_of(add_noise(np.full((96, 96, 1), 100.0), 5, 0))
    with pytest.raises(UserError, match=r"small\.png: 10x10 pixels, but the image has 96x96"):
        with_noise_model(picture, "auto", str(small))
    with pytest.raises(UserError, match=r"zero\.png: a noise level must be above zero"):
        with_noise_model(picture, "auto", str(zero))


def test_white_noise_is_left_as_it_is():
    picture = with_noise_model(picture_of(NOISY["gaussian 25"](scene())), "auto", None)
    assert picture.treatment is None
    assert picture.seen is picture


@pytest.mark.parametrize(("gain", "first"), [(2.0, Anscombe), (40.0, Scaling)])
def test_symmetric_noise_on_few_counts_is_divided_by_its_deviation(gain, first):
    """The root of values that are often below zero would be of no use."""
    clean = scene(160)
    noisy = clean + np.sqrt(gain * clean) * add_correlated_noise(np.zeros(clean.shape), 1, 1.0, 0)
    picture = with_noise_model(picture_of(noisy), "auto", None)
    scale, _ = picture.treatment.steps
    assert isinstance(scale, first)
    if first is Scaling:
        inside = slice(40, 60), slice(100, 130)  # flat, away from edges
        assert np.median(scale.sigma[inside]) == pytest.approx(np.sqrt(gain * np.median(clean[inside])), rel=0.25)


def test_with_many_missing_pixels_nothing_is_found_out():
    missing = np.zeros((96, 96), dtype=bool)
    missing[::2] = True
    noisy = np.where(missing[..., None], 0, add_noise(np.full((96, 96, 1), 100.0), 5, 0))
    picture = with_noise_model(picture_of(noisy, missing), "auto", None)
    assert picture.noise_model is picture.treatment is None
