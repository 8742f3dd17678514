"""The transform of a picture's noise, and its inverse on results."""

import json

import numpy as np
import pytest
from made_up_noise import NOISY, leaves, scene

from tvae.data.corruption import count_photons
from tvae.data.picture import Picture, add_noise
from tvae.errors import UserError
from tvae.io.image_file import Image, write_image
from tvae.noise.choice import step_of, with_noise_model
from tvae.noise.stabilise import Anscombe


def picture_of(noisy, missing=None):
    return Picture(Image(noisy, noisy.dtype, 255.0, 0.0), noisy, missing=missing)


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


def test_clipped_noise_around_stars_is_no_photon_counts():
    """On a dark sky the brightness of small blocks differs by noise alone, and clipping ties the variance to it."""
    pixels = np.full((128, 128), 30.0)
    pixels[8::16, 8::16] += 150
    noisy = np.rint((pixels + 25 * np.random.default_rng(0).standard_normal(pixels.shape)).clip(0, 255))
    assert (noisy == 0).mean() > 0.1
    assert with_noise_model(picture_of(noisy[..., None]), "auto", None).treatment is None


@pytest.mark.parametrize("photons", [4, 30])
def test_photon_counts_tell_their_gain(photons):
    picture = with_noise_model(picture_of(NOISY[f"poisson {photons}"](scene())), "auto", None)
    model = picture.noise_model
    assert model.kind == "poisson_gaussian"
    assert model.line.gain == pytest.approx(255 / photons, rel=0.15)
    assert model.bounds["photon counts"] > model.bounds["white"] + 0.03
    assert isinstance(picture.treatment.step, Anscombe)
    assert picture.seen.sigma == pytest.approx(1, rel=0.1)


def test_a_pedestal_makes_the_offset_negative():
    pixels = add_noise(10 * count_photons(scene(192), 30, 0) * 30 / 255 + 200, 5, 0)
    model = with_noise_model(picture_of(pixels), "auto", None).noise_model
    assert model.is_signal_dependent
    assert model.line.gain == pytest.approx(10, rel=0.15)
    assert model.line.offset == pytest.approx(25 - 10 * 200, rel=0.2)


def test_correlated_noise_is_in_the_model():
    noisy = NOISY["correlated"](scene(160))
    picture = with_noise_model(picture_of(noisy), "auto", None)
    model = picture.noise_model
    assert model.kind == "correlated"
    assert not model.is_signal_dependent
    true = np.exp(-(np.arange(4) ** 2) / 4)  # of noise blurred by a Gaussian of one pixel
    assert [model.covariance.lag(k) for k in (1, 2, 3)] == pytest.approx(true[1:], abs=0.1)
    assert picture.seen.covariance is model.covariance
    assert picture.seen.sigma == pytest.approx(25, rel=0.15)
    np.testing.assert_array_equal(picture.seen.noisy, noisy)
    json.dumps(model.facts(), allow_nan=False)
    assert "correlated" in str(model)


def test_missing_pixels_of_correlated_noise_are_filled_in_for_the_patches():
    noisy = NOISY["correlated"](scene())
    missing = np.zeros(noisy.shape[:2], dtype=bool)
    missing[5::40, 7::30] = True
    found = with_noise_model(picture_of(np.where(missing[..., None], 0, noisy), missing), "correlated", None)
    assert found.seen.known is None
    assert np.abs(found.seen.noisy - noisy)[missing].max() < 120
    np.testing.assert_array_equal(found.seen.noisy[~missing], noisy[~missing])


def test_photon_counts_are_told_with_many_missing_pixels():
    noisy = NOISY["poisson 30"](scene())
    missing = np.random.default_rng(0).uniform(size=noisy.shape[:2]) < 0.4
    picture = picture_of(np.where(missing[..., None], 0, noisy), missing)
    found = with_noise_model(picture, "poisson_gaussian", None)
    assert found.noise_model.line.gain == pytest.approx(8.5, rel=0.3)
    np.testing.assert_array_equal(found.seen.known, picture.known)


def test_a_level_for_each_channel():
    sigma = np.array([3.0, 8.0, 20.0])
    noisy = scene(160) + sigma * add_noise(np.zeros((160, 160, 3)), 1, 0)
    picture = with_noise_model(picture_of(noisy), "auto", None)
    assert picture.noise_model.kind == "gaussian"
    np.testing.assert_allclose(picture.treatment.step.sigma.ravel(), sigma, rtol=0.2)


@pytest.mark.parametrize("clean", [leaves(256), scene()])
def test_a_clean_picture_has_no_noise(clean):
    picture = with_noise_model(picture_of(np.rint(clean)), "auto", None)
    assert picture.treatment is None


def test_what_the_user_says_decides():
    picture = picture_of(NOISY["poisson 4"](scene()))
    assert with_noise_model(picture, "gaussian", None).treatment is None
    assert with_noise_model(picture, "correlated", None).treatment.covariance is not None


def test_a_picture_that_is_too_small_is_left_alone():
    small = picture_of(add_noise(np.full((12, 12, 1), 100.0), 5, 0))
    assert with_noise_model(small, "auto", None).noise_model is None
    with pytest.raises(UserError, match="too little of the picture is known"):
        with_noise_model(small, "correlated", None)


def test_steps_between_grey_levels():
    assert step_of(np.rint(scene())) == 1
    assert step_of(add_noise(scene(), 5, 0)) == 0
