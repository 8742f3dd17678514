"""Diagnosis of known noise."""

import json

import numpy as np
import pytest
from made_up_noise import NOISY, leaves, scene

from tvae.data.corruption import add_correlated_noise, compress, count_photons
from tvae.data.picture import add_noise
from tvae.noise.diagnosis import diagnose, has_jpeg_blocks, step_of


def found(name, known=None):
    return diagnose(NOISY[name](scene()), known, 255.0)


@pytest.mark.parametrize("name", [name for name in NOISY if name.startswith("gaussian")])
def test_white_noise_raises_no_alarm(name):
    model = found(name)
    assert (model.kind, model.outliers) == ("gaussian", None)
    assert model.line.level**0.5 == pytest.approx(float(name.split()[1]), rel=0.1)
    assert abs(model.lag(1)) < 0.1


@pytest.mark.parametrize("photons", [4, 30])
def test_photon_counts_tell_their_gain(photons):
    model = found(f"poisson {photons}")
    assert (model.kind, model.outliers) == ("poisson_gaussian", None)
    assert model.line.gain == pytest.approx(255 / photons, rel=0.15)
    assert abs(model.lag(1)) < 0.1


def test_a_pedestal_makes_the_offset_negative():
    pixels = 10 * count_photons(scene(192), 30, 0) * 30 / 255 + 200
    pixels = add_noise(pixels, 5, 0)
    model = diagnose(pixels, None, 500.0)
    assert model.is_signal_dependent
    assert model.line.gain == pytest.approx(10, rel=0.15)
    assert model.line.offset == pytest.approx(25 - 10 * 200, rel=0.2)


def test_correlated_noise_tells_its_lags_and_its_level():
    model = found("correlated")
    assert model.kind == "correlated"
    assert not model.is_signal_dependent
    true = np.exp(-(np.arange(4) ** 2) / 4)  # of noise blurred by a Gaussian of one pixel
    assert [model.lag(k) for k in (1, 2, 3)] == pytest.approx(true[1:], abs=0.1)
    assert model.line.level**0.5 == pytest.approx(25, rel=0.1)
    assert model.binning_ratio < 1.5 < found("gaussian 25").binning_ratio


def test_texture_all_over_hides_neither_kind_of_noise():
    assert diagnose(add_noise(leaves(), 20, 0), None, 255.0).kind == "gaussian"
    model = diagnose(add_correlated_noise(leaves(), 25, 1.0, 0), None, 255.0)
    assert model.kind == "correlated"
    assert model.lag(1) == pytest.approx(np.exp(-1 / 4), abs=0.1)


def test_the_correlation_of_texture_is_not_that_of_white_noise():
    """Texture is in all blocks; its correlation in the others is taken off that in the flattest (0.17 without that)."""
    lags = [diagnose(add_noise(leaves(192), 15, seed), None, 255.0).lag(1) for seed in range(4)]
    assert abs(np.mean(lags)) < 0.1


def test_a_small_flat_part_tells_the_level_of_correlated_noise():
    """Each brightness has more texture than flat blocks."""
    clean = leaves()
    clean[:48, :48] = 120
    model = diagnose(add_correlated_noise(clean, 25, 1.0, 0), None, 255.0)
    assert model.kind == "correlated"
    assert model.line.level**0.5 == pytest.approx(25, rel=0.1)
    assert np.median(model.line.variance) ** 0.5 > 1.2 * 25


def test_photon_counts_that_are_correlated_are_both():
    clean = scene(192)
    unit = add_correlated_noise(np.zeros(clean.shape), 1, 1.0, 0)
    model = diagnose(clean + np.sqrt(8 * clean) * unit, None, 255.0)
    assert (model.kind, model.is_signal_dependent) == ("correlated", True)
    assert model.line.gain == pytest.approx(8, rel=0.2)


def test_salt_and_pepper_is_found_and_does_not_disturb():
    model = found("saltpepper")
    assert model.kind == "gaussian"
    noisy = NOISY["saltpepper"](scene())
    is_salt = (noisy == 0) | (noisy == 255)
    assert not (model.outliers & ~is_salt).any()
    assert model.outliers.sum() > 0.8 * is_salt.sum()
    assert model.line.level**0.5 == pytest.approx(15, rel=0.1)


def test_what_is_missing_does_not_count():
    known = np.ones((128, 128, 1), dtype=bool)
    known[40:48, 40:50] = False
    model = diagnose(np.where(known, NOISY["poisson 30"](scene()), 0), known, 255.0)
    assert model.kind == "poisson_gaussian"
    assert model.line.gain == pytest.approx(8.5, rel=0.15)
    assert model.outliers is None
    assert diagnose(np.zeros((128, 128, 1)), np.zeros((128, 128, 1), dtype=bool), 255.0) is None
    assert diagnose(NOISY["poisson 30"](scene())[:32], None, 255.0) is None


def test_jpeg_blocks_are_seen_and_nothing_else_is_said():
    clean = np.rint(scene())
    compressed = compress(add_noise(clean, 10, 0), 30)
    assert has_jpeg_blocks(compressed)
    assert not has_jpeg_blocks(np.rint(add_noise(clean, 5, 0)))
    assert not has_jpeg_blocks(clean)
    assert not has_jpeg_blocks(compressed[3:, 5:])  # blocks elsewhere are not looked for
    assert diagnose(compressed, None, 255.0).kind == "gaussian"


def test_step_between_grey_levels():
    assert step_of(np.rint(NOISY["gaussian 25"](scene()))) == 1
    assert step_of(NOISY["poisson 4"](scene())) == pytest.approx(255 / 4)
    assert step_of(NOISY["gaussian 25"](scene())) == 0


def test_facts_and_the_line_for_the_log():
    model = found("poisson 30")
    facts = model.facts()
    assert facts["kind"] == "poisson_gaussian"
    assert facts["gain"] == model.line.gain
    assert str(model).startswith("photon counts, variance 8")


@pytest.mark.parametrize("share", [1e-4, 3e-3, 2e-2])
def test_a_few_bright_pixels_on_black_are_no_noise_to_speak_of(share):
    pixels = np.where(np.random.default_rng(0).random((96, 96, 1)) < share, 255.0, 0.0)
    model = diagnose(pixels, None, 255.0)
    if model is not None:
        json.dumps(model.facts(), allow_nan=False)


@pytest.mark.parametrize("name", [*NOISY, "clean", "flat"])
def test_facts_can_be_written(name):
    """Also those of whole grey levels, without noise, and of nothing at all."""
    clean = scene()
    pixels = {"clean": np.rint(clean), "flat": np.full_like(clean, 7)}.get(name)
    model = diagnose(np.rint(NOISY[name](clean)) if pixels is None else pixels, None, 255)
    if model is not None:
        json.dumps(model.facts(), allow_nan=False)


def test_smooth_pictures_without_noise_are_not_taken_for_correlated_noise():
    """Noise below a step or two between grey levels may be the picture itself."""
    y, x = np.mgrid[:128, :128] / 128
    smooth = np.rint(100 + 30 * np.sin(9 * x) * np.cos(7 * y))[..., None]
    assert diagnose(smooth, None, 255.0).kind != "correlated"


def test_texture_that_grows_with_brightness_is_not_taken_for_photon_counts():
    """Texture is slow, so that its lower cosines grow by far more than its higher ones; noise grows alike in all."""
    clean = np.linspace(0.2, 1.0, 192)[None, :, None] * leaves(192)
    assert diagnose(add_noise(clean, 6, 0), None, 255.0).kind == "gaussian"
    assert diagnose(count_photons(clean, 10, 0), None, 255.0).kind == "poisson_gaussian"
