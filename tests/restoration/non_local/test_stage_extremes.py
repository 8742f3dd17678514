"""Pictures that are small, clean, constant in parts, clipped, or nearly all missing, refined by Gaussian residuals."""

from dataclasses import replace

import numpy as np
import pytest
from refinement_samples import NOISE, blurred, error, noisy_picture, refined, waves

from tvae.data.named import camera
from tvae.restoration.metrics import psnr
from tvae.restoration.posterior_mean import Restored


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (5, 6), (8, 8), (15, 90)])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_pictures_too_small_for_covariances_stay_as_they_are(shape, missing):
    picture = noisy_picture(waves(*shape), missing=missing)
    first = blurred(picture)
    assert refined(picture, first=first) is first


@pytest.mark.parametrize("shape", [(16, 16), (16, 50), (17, 16)])
@pytest.mark.parametrize(("missing", "keep_observed"), [(0.0, False), (0.4, False), (0.4, True)])
def test_small_pictures(shape, missing, keep_observed):
    picture = noisy_picture(waves(*shape), noise=60, missing=missing)
    found = refined(picture, keep_observed)
    assert np.isfinite(found.pixels).all()
    assert np.isfinite(found.uncertainty).all()
    assert keep_observed or error(picture, found) < 60


CLEAN_PICTURES = {
    "waves": waves(70, 70),
    "stripes": np.where(np.mgrid[:40, :40][1] // 4 % 2, 60.0, 190.0)[..., None],
    "halves": np.where(np.mgrid[:70, :70][0] < 20, 0.0, 255.0)[..., None],
    "photograph": camera().pixels[100:148, 100:148],
}


@pytest.mark.parametrize("name", CLEAN_PICTURES)
def test_clean_pictures_are_not_destroyed(name):
    """Fine texture of a photograph passes for noise in part."""
    picture = noisy_picture(CLEAN_PICTURES[name], noise=0.0)
    found = refined(picture, first=Restored(picture.noisy, picture.noisy))
    assert psnr(picture.clean, found.pixels, 255) > (38 if name == "photograph" else 70)


def test_constant_regions_beside_noise():
    """Black parts of a clipped picture."""
    clean = waves(64, 64)
    clean[:40] = -200
    picture = replace(noisy_picture(clean), clean=clean.clip(0))
    picture.noisy[:40] = 0
    found = refined(picture)
    assert found.noise_level == pytest.approx(NOISE, rel=0.15)
    assert np.abs(found.pixels[:34]).max() < 1
    assert np.std((found.pixels - picture.clean)[46:]) < 0.5 * NOISE


def test_noise_that_was_clipped_is_still_removed():
    """A dark photograph that was saved in 8 bit."""
    picture = noisy_picture(camera().pixels[40:240, 40:240], noise=30)
    picture = replace(picture, noisy=np.rint(picture.noisy).clip(0, 255))
    assert 0.05 < (picture.noisy == 0).mean() < 0.3
    found = refined(picture)
    assert found.noise_level == pytest.approx(30, rel=0.1)


@pytest.mark.parametrize("share", [0.95, 0.999])
@pytest.mark.parametrize("keep_observed", [False, True])
def test_all_but_few_pixels_missing(share, keep_observed):
    picture = noisy_picture(waves(), noise=0.0, missing=share)
    assert 0 < (~picture.missing).sum() < 80
    found = refined(picture, keep_observed)
    assert np.isfinite(found.pixels).all()
    assert np.isfinite(found.uncertainty).all()
    assert error(picture, found) < 1.3 * error(picture, blurred(picture))
