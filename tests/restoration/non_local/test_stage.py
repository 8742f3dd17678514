"""Pictures refined by local groups: kinds of pictures, what stays as it is, bands, ranks, and whole runs."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
from processes import run
from refinement_samples import NOISE, blurred, error, noisy_picture, refined, waves

import tvae
from tests.conftest import small_config
from tvae.config.recipe import prepare
from tvae.data.dataset import RestorationConfig
from tvae.data.named import camera
from tvae.data.picture import Picture, add_noise
from tvae.data.sets.image import ImageConfig
from tvae.io.image_file import read_image, write_image
from tvae.model.vae import ModelConfig
from tvae.restoration import tiling
from tvae.restoration.metrics import psnr
from tvae.restoration.non_local import block_matching, stage
from tvae.restoration.non_local.effort import REFINEMENTS, Refinement
from tvae.restoration.posterior_mean import Plan, Restored, restore
from tvae.runs.session import Session


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("n_channels", [1, 3])
@pytest.mark.parametrize(
    ("dtype", "peak"), [(np.uint8, 255.0), (np.uint16, 65535.0), (np.float32, 1.0), (np.float64, 1e-3)]
)
def test_all_kinds_of_pictures(dtype, peak, n_channels, missing):
    """Arguments are not modified either."""
    picture = noisy_picture(waves(28, 26, n_channels), missing=missing, dtype=dtype, peak=peak)
    first = blurred(picture)
    arrays = [picture.noisy, picture.clean, picture.image.pixels, first.pixels, first.uncertainty]
    before = [array.copy() for array in arrays]
    found = refined(picture, first=first)
    for array in (found.pixels, found.uncertainty):
        assert (array.shape, array.dtype) == ((28, 26, n_channels), np.float64)
    assert error(picture, found) < 0.95 * error(picture, first)
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


def test_known_pixels_are_kept_to_the_last_bit():
    picture = noisy_picture(waves(), noise=0.0, missing=0.5)
    found, missing = refined(picture, keep_observed=True), picture.missing
    np.testing.assert_array_equal(found.pixels[~missing], picture.noisy[~missing])
    assert (found.uncertainty[~missing] == 0).all()
    assert (found.uncertainty[missing] > 0).all()
    assert error(picture, found) < 0.4 * error(picture, blurred(picture))
    assert found.noise_level is None, "nobody looked for it"


def test_without_missing_pixels_nothing_is_kept():
    picture = noisy_picture(waves())
    np.testing.assert_array_equal(refined(picture, True).pixels, refined(picture, False).pixels)


@pytest.mark.parametrize("effort", REFINEMENTS)
@pytest.mark.parametrize("noise", [5, 20, 60])
def test_every_effort_gains_at_every_noise_and_knows_how_sure_it_is(effort, noise):
    picture = noisy_picture(waves(64, 64), noise=noise)
    found = refined(picture, effort=effort, first=refined(picture))  # the pilot is a restored picture, not a blur
    assert error(picture, found) < 0.5 * noise
    assert 0.4 < np.sqrt(np.mean(found.uncertainty**2)) / error(picture, found) < 2.5
    assert found.noise_level == pytest.approx(noise, rel=0.1)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_bands_make_no_difference(missing, monkeypatch):
    """Results agree to the last bit."""
    plan = Refinement(((3, 8), (4, 6)), is_repeated=True, step=2, radius=4, n_fill_passes=2, fill=((3, 8), (4, 6)))
    monkeypatch.setitem(REFINEMENTS, "fast", plan)
    monkeypatch.setattr(block_matching, "ROWS", 3)
    picture = noisy_picture(waves(50, 21), missing=missing)
    whole = refined(picture)
    monkeypatch.setattr(tiling, "ROWS_MAX", 19)
    found = refined(picture)
    np.testing.assert_array_equal(found.pixels, whole.pixels)
    np.testing.assert_array_equal(found.uncertainty, whole.uncertainty)
    assert found.noise_level == whole.noise_level


def test_the_first_estimate_is_let_go(monkeypatch):
    """A large picture takes 16 bytes a value."""
    picture, alive = noisy_picture(waves()), []

    def first():
        made = blurred(picture)
        alive.extend(weakref.ref(each) for each in (made, made.pixels, made.uncertainty))
        return made

    def of_band(*args):
        assert not any(reference() is not None for reference in alive)
        return by_local_groups(*args)

    by_local_groups = stage.by_local_groups
    monkeypatch.setattr(stage, "by_local_groups", of_band)
    found = stage.refine_restored(picture, first, False, "fast")
    assert len(alive) == 3
    np.testing.assert_array_equal(found.pixels, refined(picture).pixels)


def test_two_processes_refine_one_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_image(tmp_path / "noisy.png", np.rint(add_noise(waves(130, 24), 20, 0)).clip(0, 255).astype(np.uint8))
    options = ["image=noisy.png", "dataset.patch_size=4", "model.n_latents=8", "states.n_states=16", "epochs=1"]
    for name, n_ranks in (("alone", 1), ("pair", 2)):
        codes, out = run(name, *options, "precision=float64", "effort=fast", command="denoise", n_ranks=n_ranks)
        assert set(codes) == {0}, out
    pictures = [read_image(tmp_path / name / "restored.png").pixels for name in ("alone", "pair")]
    np.testing.assert_allclose(*pictures, atol=1)


def session_of(method, picture):
    config = small_config(
        dataset=ImageConfig(name="file", patch_size=4, train_stride=2, standardise=True),
        model=ModelConfig(n_latents=8, hidden=[6]),
        restoration=RestorationConfig(method, keep_unexplained=False),
        image="made.png",
        epochs=1,
        effort="fast",
    )
    session = Session(*prepare(config, picture))
    session.loop()
    session.finish()
    return session


def test_the_posterior_mean_is_the_restoration_by_states():
    picture = noisy_picture(waves())
    session = session_of("posterior_mean", picture)
    by_states = restore(session.fit, picture, Plan(4, 2, n_rounds=session.config.restoration.n_rounds))
    found = session.record.restored
    np.testing.assert_array_equal(found.pixels, by_states.pixels)
    np.testing.assert_array_equal(found.uncertainty, by_states.uncertainty)
    assert found.noise_level is None


def test_the_nonlocal_stage_starts_from_the_restoration_by_states():
    picture = noisy_picture(waves())
    session = session_of("nonlocal", picture)
    wanted = refined(picture, first=restore(session.fit, picture, Plan(4, 2, n_rounds=0)))
    np.testing.assert_array_equal(session.record.restored.pixels, wanted.pixels)
    assert session.record.facts["noise_level"] == wanted.noise_level


def test_the_nonlocal_stage_is_worth_it_on_a_photograph():
    clean = camera().pixels[90:160, 90:160, 0]
    noisy = add_noise(clean[..., None], 25, seed=0)[..., 0]
    options = [
        "model=deep",
        "dataset.patch_size=6",
        "model.n_latents=32",
        "states.n_states=16",
        "epochs=12",
        "lr.max=0.02",
    ]
    nonlocal_, without = (
        psnr(clean, tvae.denoise(noisy, overrides=[*options, "lr.max=0.02", f"restoration={method}"]), 255)
        for method in ("nonlocal", "posterior_mean")
    )
    assert nonlocal_ > without + 0.5
    assert nonlocal_ > psnr(clean, noisy, 255) + 6
