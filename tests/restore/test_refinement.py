"""Pictures refined by Gaussian residuals: kinds of pictures, what stays as it is, extremes, ranks, and whole runs."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import small_config
from processes import run
from scipy.ndimage import gaussian_filter

import tvae
from tvae.core.model import ModelConfig
from tvae.data.image_file import from_array, read_image, write_image
from tvae.data.named import camera
from tvae.data.picture import Picture, add_noise, drop_pixels
from tvae.data.sets.image import ImageConfig
from tvae.options.recipe import prepare
from tvae.restore import bands, completion, refinement, similar
from tvae.restore.effort import REFINEMENTS, Refinement
from tvae.restore.metrics import psnr
from tvae.restore.refinement import refine_restored
from tvae.restore.restoration import Plan, Restored, restore
from tvae.run.session import Session

NOISE = 20.0


def waves(height=40, width=36, n_channels=1):
    """(H, W, C) in 0..255, smooth, with one edge."""
    rows, columns = np.mgrid[:height, :width]
    grey = 110 + 50 * np.sin(columns / 5) + 25 * np.cos(rows / 4) + 40 * (rows > columns)
    return np.stack([grey * (1 - 0.2 * k) for k in range(n_channels)], -1)


def noisy_picture(clean, noise=NOISE, missing=0.0, dtype=np.uint8, peak=255.0):
    """Values of `clean` in 0..255 become those of `dtype` with that peak."""
    noisy = add_noise(clean, noise, seed=0) * peak / 255
    mask = drop_pixels(clean.shape, missing, seed=1) if missing else None
    if mask is not None:
        noisy[mask] = 0
    image = replace(from_array((clean * peak / 255).astype(dtype)), peak=peak)
    return Picture(image, noisy, clean * peak / 255, mask, peak)


def blurred(picture):
    """A first estimate that any restoration surpasses; missing pixels get the mean."""
    filled = picture.noisy
    if picture.missing is not None:
        filled = np.where(picture.missing[..., None], filled[~picture.missing].mean(), filled)
    pixels = gaussian_filter(filled, (1.0, 1.0, 0.0))
    return Restored(pixels, np.ones_like(pixels))


def refined(picture, keep_observed=False, effort="fast", seed=0, first=None):
    return refine_restored(picture, first or blurred(picture), keep_observed, effort, seed)


def error(picture, restored):
    return np.sqrt(np.mean((restored.pixels - picture.clean) ** 2))


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("n_channels", [1, 3])
@pytest.mark.parametrize(
    ("dtype", "peak"), [(np.uint8, 255.0), (np.uint16, 65535.0), (np.float32, 1.0), (np.float64, 1e-3)]
)
def test_all_kinds_of_pictures(dtype, peak, n_channels, missing):
    """And none of what is given is modified."""
    picture = noisy_picture(waves(28, 26, n_channels), missing=missing, dtype=dtype, peak=peak)
    first = blurred(picture)
    arrays = [picture.noisy, picture.clean, picture.image.pixels, first.pixels, first.uncertainty]
    before = [array.copy() for array in arrays]
    found = refined(picture, first=first)
    for array in (found.pixels, found.uncertainty):
        assert (array.shape, array.dtype) == ((28, 26, n_channels), np.float64)
    assert error(picture, found) < 0.9 * error(picture, first)
    assert (found.uncertainty > 0).all()
    assert found.noise_level == pytest.approx(NOISE * peak / 255, rel=0.25)
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_units_make_no_difference(missing):
    """Multiples of the same picture, and a bright one, which single precision could not tell apart."""
    picture = noisy_picture(waves(), missing=missing)
    wanted = refined(picture)
    for scale, offset in ((1e-6, 0.0), (1e6, 0.0), (1.0, 1e6)):
        moved = Picture(
            replace(picture.image, peak=scale * 255),
            np.where(picture.noisy == 0, 0, picture.noisy * scale + offset),
            None,
            picture.missing,
            scale * 255,
        )
        first = Restored(blurred(picture).pixels * scale + offset, wanted.uncertainty)
        found = refined(moved, first=first)
        np.testing.assert_allclose((found.pixels - offset) / scale, wanted.pixels, atol=0.5)
        np.testing.assert_allclose(found.uncertainty / scale, wanted.uncertainty, atol=0.5)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_seed_decides(missing):
    picture = noisy_picture(waves(), missing=missing)
    first, again, other = (refined(picture, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.pixels, again.pixels)
    np.testing.assert_array_equal(first.uncertainty, again.uncertainty)
    assert not np.array_equal(first.pixels, other.pixels)


def test_known_pixels_are_kept_to_the_last_bit():
    picture = noisy_picture(waves(), noise=0.0, missing=0.5)
    found, missing = refined(picture, keep_observed=True), picture.missing
    np.testing.assert_array_equal(found.pixels[~missing], picture.noisy[~missing])
    assert (found.uncertainty[~missing] == 0).all()
    assert (found.uncertainty[missing] > 0).all()
    assert error(picture, found) < 0.3 * error(picture, blurred(picture))
    assert found.noise_level is None, "nobody looked for it"
    assert refined(picture).noise_level == pytest.approx(1), "grey level, the least"


def test_without_missing_pixels_nothing_is_kept():
    picture = noisy_picture(waves())
    np.testing.assert_array_equal(refined(picture, True).pixels, refined(picture, False).pixels)


@pytest.mark.parametrize("effort", REFINEMENTS)
@pytest.mark.parametrize("noise", [5, 20, 60])
def test_every_effort_gains_at_every_noise_and_knows_how_sure_it_is(effort, noise):
    picture = noisy_picture(waves(64, 64), noise=noise)
    found = refined(picture, effort=effort)
    assert error(picture, found) < 0.5 * noise
    assert 0.4 < np.sqrt(np.mean(found.uncertainty**2)) / error(picture, found) < 2.5
    assert found.noise_level == pytest.approx(noise, rel=0.1)


def test_a_mixture_of_large_pictures_is_fitted_to_some_patches(monkeypatch):
    picture = noisy_picture(waves(64, 60))
    by_all = refined(picture)
    monkeypatch.setattr(refinement, "N_FITTED", 400)
    by_some = refined(picture)
    assert not np.array_equal(by_some.pixels, by_all.pixels)
    assert error(picture, by_some) < 1.3 * error(picture, by_all)


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
    """Of a photograph, some of the finest texture passes for noise."""
    picture = noisy_picture(CLEAN_PICTURES[name], noise=0.0)
    found = refined(picture, first=Restored(picture.noisy, picture.noisy))
    assert psnr(picture.clean, found.pixels, 255) > (38 if name == "photograph" else 70)


def test_constant_regions_beside_noise():
    """As where a picture is black and was clipped."""
    clean = waves(64, 64)
    clean[:40] = -200
    picture = replace(noisy_picture(clean), clean=clean.clip(0))
    picture.noisy[:40] = 0
    found = refined(picture)
    assert found.noise_level == pytest.approx(NOISE, rel=0.15)
    assert np.abs(found.pixels[:34]).max() < 1
    assert np.std((found.pixels - picture.clean)[46:]) < 0.5 * NOISE


def test_noise_that_was_clipped_is_still_removed():
    """Of a dark photograph that was saved in 8 bit."""
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


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_bands_make_no_difference(missing, monkeypatch):
    """To the last bit."""
    plan = Refinement(1, ((3, 8), (4, 6)), is_repeated=True, step=2, radius=4, n_fill_rounds=2)
    monkeypatch.setitem(REFINEMENTS, "fast", plan)
    monkeypatch.setattr(similar, "ROWS", 3)
    for module in (refinement, completion):
        monkeypatch.setattr(module, "CHUNK", 150)
    picture = noisy_picture(waves(50, 21), missing=missing)
    whole = refined(picture)
    monkeypatch.setattr(bands, "ROWS_MAX", 19)
    found = refined(picture)
    np.testing.assert_array_equal(found.pixels, whole.pixels)
    np.testing.assert_array_equal(found.uncertainty, whole.uncertainty)
    assert found.noise_level == whole.noise_level


def test_two_processes_refine_one_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_image(tmp_path / "noisy.png", np.rint(add_noise(waves(130, 24), 20, 0)).clip(0, 255).astype(np.uint8))
    options = ["image=noisy.png", "dataset.patch_size=4", "model.n_latents=8", "states.n_states=16", "epochs=1"]
    for name, n_ranks in (("alone", 1), ("pair", 2)):
        codes, out = run(name, *options, "precision=float64", "effort=fast", command="denoise", n_ranks=n_ranks)
        assert set(codes) == {0}, out
    pictures = [read_image(tmp_path / name / "restored.png").pixels for name in ("alone", "pair")]
    np.testing.assert_allclose(*pictures, atol=1)


def session_of(residual, picture):
    config = small_config(
        dataset=ImageConfig(name="file", patch_size=4, train_stride=2, standardise=True),
        model=ModelConfig(n_latents=8, hidden=[6], residual=residual),
        image="made.png",
        epochs=1,
        effort="fast",
    )
    session = Session(*prepare(config, picture))
    session.loop()
    session.finish()
    return session


def test_without_residual_it_is_the_restoration_by_states():
    picture = noisy_picture(waves())
    session = session_of("none", picture)
    by_states = restore(session.fit, picture, Plan(4, 2, n_rounds=session.config.restore_rounds))
    found = session.record.restored
    np.testing.assert_array_equal(found.pixels, by_states.pixels)
    np.testing.assert_array_equal(found.uncertainty, by_states.uncertainty)
    assert found.noise_level is None


def test_with_residual_it_starts_from_the_restoration_by_states():
    picture = noisy_picture(waves())
    session = session_of("grouped", picture)
    wanted = refined(picture, first=restore(session.fit, picture, Plan(4, 2, n_rounds=0)))
    np.testing.assert_array_equal(session.record.restored.pixels, wanted.pixels)
    assert session.record.facts["noise_level"] == wanted.noise_level


def test_residuals_are_worth_it_on_a_photograph():
    clean = camera().pixels[90:160, 90:160, 0]
    noisy = add_noise(clean[..., None], 25, seed=0)[..., 0]
    options = ["dataset.patch_size=6", "model.n_latents=32", "states.n_states=16", "epochs=12", "lr.max=0.02"]
    with_residual, without = (
        psnr(clean, tvae.denoise(noisy, overrides=[*options, f"model.residual={residual}"]), 255)
        for residual in ("grouped", "none")
    )
    assert with_residual > without + 0.5
    assert with_residual > psnr(clean, noisy, 255) + 6
