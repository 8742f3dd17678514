"""PSNR and SSIM against scikit-image, and what a run says of a restored picture."""

import math

import numpy as np
import pytest
import torch
from skimage import metrics as reference

from tvae.data.picture import Picture
from tvae.io.image_file import from_array
from tvae.restoration import metrics
from tvae.restoration.metrics import METRICS, METRICS_OVER_TIME, UNKNOWN, psnr, quality, ssim
from tvae.restoration.posterior_mean import Restored


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    clean = rng.uniform(0, 255, (20, 16, 3))
    return clean, clean + rng.normal(0, 30, clean.shape)


@pytest.mark.parametrize("peak", [1.0, 255.0, 65535.0])
def test_psnr_equals_scikit_image(pair, peak):
    clean, noisy = pair
    assert psnr(clean, noisy, peak) == pytest.approx(reference.peak_signal_noise_ratio(clean, noisy, data_range=peak))


def test_psnr_is_not_clipped():
    assert psnr(np.zeros((2, 2, 1)), np.full((2, 2, 1), 255.0 * 10), 255.0) == pytest.approx(-20)


def test_psnr_of_equal_images_is_infinite(pair):
    assert psnr(pair[0], pair[0], 255.0) == math.inf


def test_unsigned_values_do_not_wrap():
    low, high = np.zeros((8, 8, 1), np.uint8), np.full((8, 8, 1), 255, np.uint8)
    assert psnr(low, high, 255.0) == pytest.approx(0)
    assert ssim(low, high, 255.0) == pytest.approx(ssim(low.astype(float), high.astype(float), 255.0))


@pytest.mark.parametrize("n_channels", [1, 3])
def test_ssim_equals_scikit_image(pair, n_channels):
    clean, noisy = (image[..., :n_channels] for image in pair)
    expected = [
        reference.structural_similarity(clean[..., c], noisy[..., c], data_range=255) for c in range(n_channels)
    ]
    assert ssim(clean, noisy, 255.0) == pytest.approx(np.mean(expected))


@pytest.mark.parametrize(("side", "window"), [(8, 7), (6, 5), (4, 3), (3, 3)])
def test_ssim_of_small_images_takes_the_largest_window(pair, side, window):
    clean, noisy = (image[:side, :, :1] for image in pair)
    expected = reference.structural_similarity(clean[..., 0], noisy[..., 0], data_range=255, win_size=window)
    assert ssim(clean, noisy, 255.0) == pytest.approx(expected)


@pytest.mark.parametrize("side", [1, 2])
def test_ssim_of_tiny_images_is_defined(pair, side):
    clean, noisy = (image[:side, :side] for image in pair)
    assert ssim(clean, clean, 255.0) == pytest.approx(1)
    assert 0 < ssim(clean, noisy, 255.0) < 1


def test_tensors_are_taken_and_nothing_is_modified(pair):
    before = [image.copy() for image in pair]
    tensors = [torch.from_numpy(image) for image in pair]
    assert psnr(*tensors, 255.0) == psnr(*pair, 255.0)
    assert ssim(*tensors, 255.0) == ssim(*pair, 255.0)
    for image, copy in zip(pair, before, strict=True):
        np.testing.assert_array_equal(image, copy)


def restored(pixels):
    return Restored(pixels, np.zeros_like(pixels))


def picture_of(clean, noisy, missing=None):
    return Picture(from_array(noisy), noisy, clean, missing, 255.0)


def test_quality_has_every_metric(pair):
    clean, noisy = pair
    better = (clean + noisy) / 2
    found = quality(picture_of(clean, noisy), restored(better))
    expected = {
        "psnr": psnr(clean, better, 255),
        "psnr_input": psnr(clean, noisy, 255),
        "ssim": ssim(clean, better, 255),
    }
    assert found == expected
    assert list(found) == list(METRICS) == list(UNKNOWN)
    assert METRICS_OVER_TIME == ("psnr", "ssim")


def test_quality_is_unknown_without_a_clean_picture(pair):
    assert quality(picture_of(None, pair[1]), restored(pair[1])) == dict.fromkeys(METRICS)


def test_what_is_not_finite_is_not_said(pair):
    """The PSNR of a perfect restoration, and of an input whose missing pixels have no value."""
    clean, noisy = pair
    found = quality(picture_of(clean, noisy, np.ones(clean.shape[:2], dtype=bool)), restored(clean))
    assert found == {"psnr": None, "psnr_input": None, "ssim": pytest.approx(1)}


def test_a_metric_is_one_entry_of_the_table(pair, monkeypatch):
    monkeypatch.setitem(metrics.METRICS, "largest", lambda picture, found: float(found.pixels.max()))
    assert quality(picture_of(*pair), restored(pair[0]))["largest"] == pair[0].max()
