"""Pictures as data: corruption, masks, patches, and every mistake in what is given."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from composing import checked

from tvae.config.recipe import prepare
from tvae.data.patches import extract, uniform_weights
from tvae.data.picture import add_noise, drop_pixels, drop_values
from tvae.errors import UserError
from tvae.io.image_file import read_image, write_image
from tvae.model.units import Units
from tvae.restoration.aggregation import Accumulator
from tvae.runs.session import train
from tvae.runs.setup import make_fit

SEED = np.random.default_rng(0)
GREY = SEED.integers(0, 256, (20, 16), dtype=np.uint8)
COLOUR = SEED.integers(0, 256, (20, 16, 3), dtype=np.uint8)


@pytest.fixture
def make(tmp_path):
    """Compose options, with a {tmp} in them replaced, into a configuration."""
    write_image(tmp_path / "grey.png", GREY)
    write_image(tmp_path / "colour.png", COLOUR)
    return lambda *overrides: checked(*(override.format(tmp=tmp_path) for override in overrides))


@pytest.fixture
def load(make):
    options = ("dataset=file", "dataset.patch_size=4", "dataset.train_stride=1")
    return lambda *overrides: prepare(make(*options, *overrides))[1]


def everything(source):
    """All data points of a source in their own units, and which of their values are observed."""
    reader = source.reader(range(source.n_points), Units(), torch.device("cpu"), torch.float64)
    return reader.take(torch.arange(source.n_points))


def test_corruptions_depend_on_their_seed_alone(load):
    options = ("image={tmp}/colour.png", "noise=20", "missing=0.3")
    both = load(*options).picture
    again = load(*options, "seed=5").picture
    other = load(*options, "corruption_seed=1").picture
    np.testing.assert_array_equal(both.noisy, again.noisy)
    np.testing.assert_array_equal(both.missing, again.missing)
    assert not np.array_equal(both.missing, other.missing)
    assert not np.array_equal(both.noisy, other.noisy)
    noise_alone, missing_alone = load(*options[:2]).picture, load(options[0], options[2]).picture
    np.testing.assert_array_equal(both.missing, missing_alone.missing)
    np.testing.assert_array_equal(both.noisy[~both.missing], noise_alone.noisy[~both.missing])
    np.testing.assert_array_equal(missing_alone.noisy[~both.missing], COLOUR[~both.missing])
    assert noise_alone.missing is None


def test_values_of_channels_are_dropped_on_request(load):
    options = ("image={tmp}/colour.png", "missing=0.5", "missing_per=channel")
    picture = load(*options).picture
    np.testing.assert_array_equal(picture.missing, drop_values((20, 16, 3), 0.5, 0))
    np.testing.assert_array_equal(picture.noisy, np.where(picture.missing, 0, COLOUR))
    _, observed = everything(load(*options, "dataset.patch_size=16", "dataset.train_stride=1").source)
    np.testing.assert_array_equal(observed[0].reshape(16, 16, 3), ~picture.missing[:16])


@pytest.mark.parametrize("name", ["grey", "colour"])
@pytest.mark.parametrize("train_stride", [1, 3])
def test_data_are_patches_of_the_picture(load, name, train_stride):
    dataset = load(f"image={{tmp}}/{name}.png", "noise=20", "missing=0.4", f"dataset.train_stride={train_stride}")
    picture, n_channels = dataset.picture, 1 if name == "grey" else 3
    assert dataset.shape == (4, 4, n_channels)
    data, observed = everything(dataset.source)
    assert observed is not None
    assert observed.shape == data.shape
    assert torch.isfinite(data).all()
    assert (data[~observed] == 0).all()
    assert torch.equal(data, extract(torch.from_numpy(picture.noisy), 4, train_stride))

    def averaged(patches):
        sums = Accumulator(picture.noisy.shape, 4, train_stride, uniform_weights(4))
        sums.add(torch.arange(len(patches)), patches, torch.zeros_like(patches))
        return sums.result()[0].numpy()

    np.testing.assert_allclose(averaged(data), picture.noisy)
    np.testing.assert_array_equal(averaged(observed.double()), np.repeat(~picture.missing[..., None], n_channels, -1))


def test_what_is_known_about_a_file(load):
    image = "image={tmp}/grey.png"
    alone = load(image)
    assert not alone.source.is_masked
    assert alone.picture.clean is None
    np.testing.assert_array_equal(alone.picture.noisy[..., 0], GREY)
    np.testing.assert_array_equal(load(image, "noise=5").picture.clean[..., 0], GREY)
    np.testing.assert_array_equal(load(image, "missing=0.2").picture.clean[..., 0], GREY)
    assert not load(image, "missing=0").source.is_masked


def test_clean_file(load, tmp_path):
    write_image(tmp_path / "clean.png", 255 - GREY)
    picture = load("image={tmp}/grey.png", "clean={tmp}/clean.png", "noise=1").picture
    np.testing.assert_array_equal(picture.clean[..., 0], 255.0 - GREY)
    assert picture.peak == 255


def test_clean_file_of_another_depth(load, tmp_path):
    write_image(tmp_path / "deep.png", GREY.astype(np.uint16) * 257)
    picture = load("image={tmp}/grey.png", "clean={tmp}/deep.png").picture
    np.testing.assert_allclose(picture.clean[..., 0], GREY)
    assert picture.peak == 255


def test_unclipped_noise_in_a_float_file_is_compared_in_the_clean_file_s_units(load, tmp_path):
    noisy = add_noise(GREY[..., None].astype(float), 50, 0)[..., 0].astype(np.float32)
    write_image(tmp_path / "noisy.tif", noisy)
    picture = load("image={tmp}/noisy.tif", "clean={tmp}/grey.png").picture
    np.testing.assert_array_equal(picture.clean[..., 0], GREY)
    np.testing.assert_array_equal(picture.noisy[..., 0], noisy)
    assert picture.peak == 255


@pytest.mark.parametrize("kind", ["bool", "grey", "colour", "RGBA", "TIFF"])
def test_mask_file(load, tmp_path, kind):
    marked = drop_pixels((20, 16), 0.3, seed=9)
    path = tmp_path / ("mask.tif" if kind in ("bool", "TIFF") else "mask.png")
    mask = marked.astype(np.uint8)
    if kind == "bool":
        tifffile.imwrite(path, marked)
    elif kind == "TIFF":
        write_image(path, np.where(marked, np.nan, 0).astype(np.float32))
    elif kind == "grey":
        write_image(path, mask)
    else:  # one channel is enough, and an opaque mask is not all marked
        channels = [mask * 0, mask, mask * 0] + ([mask * 0 + 255] if kind == "RGBA" else [])
        write_image(path, np.stack(channels, -1))
    picture = load("image={tmp}/colour.png", f"mask={path}").picture
    np.testing.assert_array_equal(picture.missing, marked)
    assert not picture.noisy[marked].any()
    assert picture.clean is None  # what is under the mask is not known
    union = load("image={tmp}/colour.png", f"mask={path}", "missing=0.5").picture
    np.testing.assert_array_equal(union.missing, marked | drop_pixels((20, 16), 0.5, 0))


def test_nan_pixels_are_not_observed(load, tmp_path):
    holes = GREY.astype(np.float32) / 255
    holes[3:5, 7] = np.nan
    write_image(tmp_path / "holes.tif", holes)
    dataset = load("image={tmp}/holes.tif")
    assert all(torch.isfinite(values).all() for values in everything(dataset.source))
    assert np.argwhere(dataset.picture.missing).tolist() == [[3, 7], [4, 7]]
    assert load("image={tmp}/holes.tif", "noise=5").picture.clean is None


def test_camera_is_a_data_set(make):
    dataset = prepare(make("dataset=camera", "noise=50", "dataset.patch_size=8", "dataset.train_stride=4"))[1]
    assert (dataset.source.n_points, dataset.source.n_values) == (63 * 63, 64)
    assert dataset.picture.clean.shape == (256, 256, 1)
    assert dataset.picture.noisy.std() > dataset.picture.clean.std()


@pytest.mark.parametrize("name", ["house", "barbara", "castle"])
def test_named_pictures_compose(make, name):
    config = make(f"dataset={name}", "noise=25", "missing=0.5")
    assert (config.dataset.name, config.dataset.standardise, config.noise, config.missing) == (name, True, 25, 0.5)


def test_a_picture_with_missing_pixels_can_be_trained_on(make):
    options = ("noise=20", "missing=0.3", "epochs=2", "states.n_states=16", "dataset.train_stride=4")
    fit = make_fit(*prepare(make("dataset=file", "image={tmp}/colour.png", *options)))
    assert all(np.isfinite(epoch.elbo) for epoch in fit.epochs())


@pytest.fixture
def n_reads(monkeypatch):
    """The number of times each file is read, by its name."""
    counts = Counter()

    def counted(path):
        counts[Path(path).name] += 1
        return read_image(path)

    for name, module in list(sys.modules.items()):
        if name.startswith("tvae.") and getattr(module, "read_image", None) is read_image:
            monkeypatch.setattr(module, "read_image", counted)
    return counts


SHORT = ("epochs=2", "model.n_latents=8", "states.n_states=8", "ea.n_parents=2", "restore_every=1", "threads=1")


def test_a_file_is_read_once_in_a_run(make, tmp_path, n_reads):
    """One reading serves the recipe, training, restorations and the record."""
    write_image(tmp_path / "mask.png", drop_pixels((20, 16), 0.2, seed=0).astype(np.uint8))
    write_image(tmp_path / "clean.png", 255 - GREY)
    files = ("image={tmp}/grey.png", "mask={tmp}/mask.png", "clean={tmp}/clean.png")
    metrics = train(make(*files, *SHORT), tmp_path / "run")
    assert metrics["psnr"] is not None
    assert n_reads == {"grey.png": 1, "mask.png": 1, "clean.png": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["image={tmp}/none.png"], "none.png: No such file"),
        (["image={tmp}/grey.png", "dataset.patch_size=17"], "16x20 pixels are smaller than a patch of 17x17"),
        (["image={tmp}/grey.png", "clean={tmp}/small.png"], "small.png: 5x6 pixels, but the image has 16x20$"),
        (["image={tmp}/grey.png", "clean={tmp}/colour.png"], "colour.png: 16x20x3 pixels, but the image has 16x20$"),
        (["image={tmp}/grey.png", "clean={tmp}/holes.tif"], "holes.tif: has missing pixels"),
        (["image={tmp}/grey.png", "mask={tmp}/small.png"], "small.png: 5x6 pixels, but the image has 16x20$"),
        (["image={tmp}/grey.png", "mask={tmp}/constant.png"], "grey.png: all pixels are missing"),
        (["image={tmp}/constant.png"], "constant.png: all known pixels are equal"),
        (["image={tmp}/spot.png", "mask={tmp}/spot.png"], "spot.png: all known pixels are equal"),
    ],
)
def test_mistakes_in_files(load, tmp_path, options, message):
    write_image(tmp_path / "small.png", GREY[:6, :5])
    write_image(tmp_path / "constant.png", np.full((20, 16), 7, np.uint8))
    write_image(tmp_path / "holes.tif", np.where(GREY > 200, np.nan, GREY).astype(np.float32))
    spot = np.zeros((20, 16), np.uint8)
    spot[3, 4] = 9
    write_image(tmp_path / "spot.png", spot)
    with pytest.raises(UserError, match=message) as caught:
        load(*options)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["dataset=file"], "image: no value was given"),
        (["dataset=house", "clean=a.png"], "clean=a.png: goes with image=FILE"),
        (["dataset=bars", "noise=5"], "noise=5.0: dataset=bars is not an image"),
        (["dataset=bars", "image=a.png"], "image=a.png: dataset=bars is not an image"),
        (["dataset=house", "noise=-1"], "noise=-1.0: must be at least 0"),
        (["dataset=house", "noise=inf"], "noise=inf: must be a finite number"),
        (["dataset=house", "noise=nan"], "noise=nan: must be a finite number"),
        (["dataset=house", "missing=1"], "missing=1.0: must be below 1"),
        (["dataset.patch_size=8", "dataset.stride=9"], "dataset.stride=9: must be at most dataset.patch_size=8"),
        (["dataset=house", "dataset.average=median"], "must be one of uniform, gaussian"),
        (["dataset=house", "dataset.name=lena"], "must be one of house, barbara"),
    ],
)
def test_mistakes_in_options(make, options, message):
    with pytest.raises(UserError, match=message):
        make(*options)
