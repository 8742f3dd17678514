"""A model that was trained on one picture restores others, from memory or from a file; stacks as Python calls."""

import os

import numpy as np
import pytest

import tvae
from tvae.data.picture import add_noise
from tvae.errors import Failure, UserError

OPTIONS = ["dataset.patch_size=4", "model.n_latents=8", "states.n_states=16", "epochs=2", "effort=fast", "threads=1"]


def waves(shift=0.0, height=24, width=22):
    rows, columns = np.mgrid[:height, :width]
    return 120 + 60 * np.sin((columns + shift) / 4) + 30 * np.cos(rows / 3)


def noisy(clean, seed=0):
    return np.rint(add_noise(clean, 15, seed)).clip(0, 255).astype(np.uint8)


def error(clean, found):
    return np.sqrt(np.mean((found.astype(float) - clean) ** 2))


@pytest.fixture(scope="module")
def model():
    return tvae.fit(noisy(waves()), overrides=OPTIONS)


def test_another_picture_is_restored(model):
    """Pictures of another size are restored; the array given is not modified."""
    clean = waves(2.0, 30, 26)
    given = noisy(clean, seed=1)
    before = given.copy()
    found, uncertainty = model.restore(given, return_uncertainty=True)
    assert (found.shape, found.dtype, uncertainty.shape) == (given.shape, given.dtype, given.shape)
    assert error(clean, found) < 0.6 * error(clean, given)
    np.testing.assert_array_equal(given, before)
    np.testing.assert_array_equal(model.restore(given), found)


def test_from_a_file_it_is_the_same(model, tmp_path):
    given = noisy(waves(5.0), seed=2)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(tvae.load(tmp_path / "model").restore(given), model.restore(given))
    damaged = (tmp_path / "model").read_bytes()
    (tmp_path / "model").write_bytes(damaged[:500] + b"x" + damaged[501:])
    with pytest.raises(Failure, match="checksum"):
        tvae.load(tmp_path / "model")
    with pytest.raises(UserError, match="no such file"):
        tvae.load(tmp_path / "none")


def test_only_a_model_is_saved_over(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    model.save("mine.tvae")
    model.save("mine.tvae")
    os.mkfifo("pipe")
    for path, told in {
        "mine.txt": "exists already and is not a model", "pipe": "exists already and is not a model",
        ".": "is a folder; name a file in it", "nowhere/a.tvae": "there is no folder nowhere",
    }.items():  # fmt: skip
        with pytest.raises(UserError, match=told):
            model.save(path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    for path, told in {
        ".": "a folder; must be a file",
        "pipe": "a pipe or device",
        "x": "no such file",
    }.items():
        with pytest.raises(UserError, match=told):
            tvae.load(path)


def test_parameters_are_not_trained_further(model):
    before = {name: value.clone() for name, value in model._trained.model.parameters_by_name().items()}
    model.restore(noisy(waves(1.0), seed=3))
    for name, value in model._trained.model.parameters_by_name().items():
        assert value.equal(before[name])


def test_pictures_of_another_kind_are_refused(model):
    with pytest.raises(UserError, match="3 channels, but the model was trained on pictures with 1"):
        model.restore(np.stack([noisy(waves(shift)) for shift in (0.0, 1.0, 2.0)], -1), channel_axis=-1)


def test_a_grey_picture_with_three_channels_is_for_models_of_both_kinds(model):
    given = noisy(waves(1.0), seed=3)
    copies = np.stack([given] * 3, -1)
    of_grey = model.restore(given)
    np.testing.assert_array_equal(model.restore(copies, channel_axis=-1), np.stack([of_grey] * 3, -1))
    in_colour = tvae.fit(np.stack([given, given[::-1], given], -1), channel_axis=-1, overrides=OPTIONS)
    assert in_colour.restore(copies, channel_axis=-1).shape == copies.shape


def test_a_stack_as_a_call(model):
    clean = np.stack([waves(shift, 20, 18) for shift in (0.0, 3.0)], -1)
    given = noisy(clean)
    for found in (tvae.denoise(given, axes="YXT", overrides=OPTIONS), model.restore(given, axes="YXT")):
        assert (found.shape, found.dtype) == (given.shape, given.dtype)
        assert (
            np.sqrt(np.mean((found - clean) ** 2, (0, 1))) < 0.65 * np.sqrt(np.mean((given - clean) ** 2, (0, 1)))
        ).all()


@pytest.mark.parametrize(
    ("options", "problem"),
    [({}, "axes for a stack"), ({"axes": "TYX", "channel_axis": 0}, "one of them"), ({"axes": "YX"}, "2 axes")],
)
def test_axes_that_do_not_fit(options, problem):
    with pytest.raises((ValueError, UserError), match=problem):
        tvae.denoise(np.zeros((3, 20, 18), np.uint8), **options)
