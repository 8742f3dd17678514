"""Structure that noise does not explain stays in the result."""

import numpy as np
import pytest

from scripts.pictures.harmless import PICTURES, lowest_star, noisy_version
from tvae import denoise
from tvae.restoration.metrics import psnr
from tvae.restoration.unexplained import keep_unexplained, templates, threshold


def test_pure_noise_is_explained():
    rng = np.random.default_rng(0)
    for sigma in (0.5, 20.0):
        flat = np.full((200, 200, 3), 7.0)
        np.testing.assert_array_equal(keep_unexplained(flat + sigma * rng.normal(size=flat.shape), flat, sigma), flat)


def test_false_alarms_are_as_rare_as_stated():
    """About one in twenty of 400 pictures of pure noise has a false alarm; four standard errors are 18."""
    rng, flat = np.random.default_rng(1), np.zeros((48, 48, 1))
    n_alarms = sum(keep_unexplained(rng.normal(size=flat.shape), flat, 1.0).any() for _ in range(400))
    assert n_alarms <= 20 + 18


def test_a_star_and_a_faint_line_are_put_back():
    rng, truth = np.random.default_rng(2), np.zeros((64, 64, 1))
    truth[20, 30] = 9.0
    truth[40, 10:50] = 3.0  # each pixel within the noise, the line is not
    noisy = truth + rng.normal(size=truth.shape)
    found = keep_unexplained(noisy, np.zeros_like(truth), 1.0)
    assert found[20, 30] == pytest.approx(noisy[20, 30])
    assert found[40, 12:48].mean() == pytest.approx(3.0, abs=0.5)
    far = np.ones(truth.shape, dtype=bool)
    far[30:51], far[19:22, 29:32] = False, False
    assert not found[far].any()


def test_unknown_pixels_are_not_put_back_and_pages_are_apart():
    noisy, restored = np.zeros((40, 20, 1)), np.zeros((40, 20, 1))
    noisy[3, 3], noisy[19, 5] = 50.0, 50.0
    known = np.ones(noisy.shape, dtype=bool)
    known[3, 3] = False
    found = keep_unexplained(noisy, restored, 1.0, known, n_pages=2)
    assert found[3, 3] == 0
    assert found[19, 5] == 50
    assert not found[20:].any()


def test_without_noise_the_picture_stays_as_it_was():
    noisy = np.random.default_rng(3).normal(size=(16, 16, 1))
    np.testing.assert_array_equal(keep_unexplained(noisy, np.zeros_like(noisy), 0.0), noisy)


def test_templates_are_symmetric_and_the_threshold_grows_with_the_picture():
    assert all((each == each.flip(0, 1)).all() for each in templates())
    assert threshold(10**4) < threshold(10**7) < 7


@pytest.mark.parametrize("sigma", [0.0, 5.0])
@pytest.mark.parametrize("name", ["stars_pixel", "rules_grey", "dots"])
def test_stars_rules_and_dots_survive(name, sigma):
    clean = PICTURES[name](64)
    noisy = noisy_version(clean, sigma)
    restored = denoise(noisy, effort="fast")
    found, plain = (
        min(psnr(clean[..., None], each[..., None].astype(float), 255.0), 99.0)
        for each in (restored, denoise(noisy, effort="fast", noise_model="gaussian"))
    )
    assert found >= plain - 0.1
    assert found > (50 if sigma == 0 else 38)
    if name == "stars_pixel":
        assert lowest_star(restored, clean) > 0.9
