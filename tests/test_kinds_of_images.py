"""Results of the Python calls: of the kind that was given, typed, also where there is nothing to learn."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image as Pillow

import tvae
from tests.tiny import TINY, tiny_picture
from tvae.io.image_file import write_image

SMALL = {"epochs": 2, "n_latents": 8, "n_states": 8, "n_parents": 2, "n_children": 2, "train_stride": 4, "threads": 1}
GREY = tiny_picture()
COLOUR = np.dstack([GREY, GREY.T, 255 - GREY])

TYPED = """
from typing import Any
import numpy as np
import torch
from numpy.typing import NDArray
import tvae

image: NDArray[np.uint8] = np.zeros((9, 9), np.uint8)
reveal_type(tvae.denoise(image))
reveal_type(tvae.denoise(image, return_uncertainty=True))
reveal_type(tvae.inpaint(torch.zeros(9, 9), image))
reveal_type(tvae.fit(image).restore(image, return_uncertainty=True)[1])
reveal_type(tvae.fit(image).history)
"""


@pytest.fixture(scope="module")
def expected():
    return tvae.denoise(GREY, effort="fast", **SMALL)


def test_tensors_and_pil_images_come_back_in_kind(expected):
    tensor = tvae.denoise(torch.from_numpy(GREY), effort="fast", **SMALL)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.uint8
    np.testing.assert_array_equal(tensor.numpy(), expected)
    coarse = tvae.denoise(torch.from_numpy(GREY).to(torch.bfloat16), effort="fast", **SMALL)
    assert coarse.dtype == torch.bfloat16
    assert (coarse.float() - tensor).abs().max() <= 2
    picture, uncertainty = tvae.denoise(Pillow.fromarray(GREY), effort="fast", return_uncertainty=True, **SMALL)
    assert isinstance(picture, Pillow.Image)
    assert picture.mode == "L"
    np.testing.assert_array_equal(np.asarray(picture), expected)
    assert (type(uncertainty), uncertainty.shape) == (np.ndarray, GREY.shape)
    in_colour = tvae.denoise(Pillow.fromarray(COLOUR), effort="fast", **SMALL)
    assert in_colour.mode == "RGB"
    as_array = tvae.denoise(COLOUR, channel_axis=2, effort="fast", **SMALL)
    np.testing.assert_array_equal(np.asarray(in_colour), as_array)
    with pytest.raises(TypeError, match="a PIL image of mode P; convert it to one of L, RGB"):
        tvae.denoise(Pillow.fromarray(GREY).convert("P"))


def test_equal_channels_give_the_grey_result(command):
    copies = np.dstack([GREY] * 3)
    grey = tvae.denoise(GREY, effort="fast", return_uncertainty=True, **SMALL)
    found = tvae.denoise(copies, channel_axis=2, effort="fast", return_uncertainty=True, **SMALL)
    for one, three in zip(grey, found, strict=True):
        np.testing.assert_array_equal(three, np.dstack([one] * 3))
    write_image(Path("a.png"), GREY)
    write_image(Path("b.png"), copies)
    for name in "ab":
        command.ok("denoise", f"{name}.png", *TINY, f"output={name}.tif", f"hydra.run.dir={name}")
    np.testing.assert_array_equal(tifffile.imread("b.tif"), np.dstack([tifffile.imread("a.tif")] * 3))
    assert Pillow.open("b/restored.png").mode == "RGB"
    filled = tvae.inpaint(copies, GREY > 150, channel_axis=2, overrides=TINY)
    np.testing.assert_array_equal(filled, np.dstack([tvae.inpaint(GREY, GREY > 150, overrides=TINY)] * 3))


@pytest.mark.parametrize("n_channels", [2, 4])
def test_two_channels_and_four_come_the_way_of_three(n_channels):
    """Two dyes of a microscope, and a camera with infrared; each channel has its own structure."""
    y, x = np.mgrid[:48, :48]
    clean = np.stack([120 + 60 * np.sin(x / (3 + c) + c) * np.cos(y / 5) for c in range(n_channels)], -1)
    noisy = clean + 20 * np.random.default_rng(0).normal(size=clean.shape)
    found = tvae.denoise(noisy, channel_axis=2, effort="fast", threads=1)
    assert found.shape == clean.shape
    assert (np.std(found - clean, axis=(0, 1)) < 0.5 * np.std(noisy - clean, axis=(0, 1))).all()


def test_a_constant_picture_comes_back():
    """A tile of the sky in a service; a mistake in the options is told all the same."""
    for image, axis in (
        (np.full((20, 24), 7, np.uint8), None), (np.zeros((20, 24), np.float32), None), (np.ones((9, 9, 3)), 2),
    ):  # fmt: skip
        found, uncertainty = tvae.denoise(image, channel_axis=axis, return_uncertainty=True)
        np.testing.assert_array_equal(found, image)
        assert (found.dtype, uncertainty.max()) == (image.dtype, 0)
    holed = np.full((20, 24), 7.0)
    holed[3:5, 4] = np.nan
    np.testing.assert_array_equal(tvae.inpaint(holed), np.full((20, 24), 7.0))
    with pytest.raises(ValueError, match="epochs=0"):
        tvae.denoise(np.zeros((20, 24)), epochs=0)
    with pytest.raises(ValueError, match="all pixels are missing"):
        tvae.inpaint(GREY, np.ones(GREY.shape))


def test_what_a_model_tells_of_itself(tmp_path):
    model = tvae.fit(tiny_picture(64), effort="fast", **SMALL)
    assert [row["epoch"] for row in model.history] == [1, 2]
    assert model.elbo == pytest.approx(model.history[-1]["elbo"], rel=0.2)
    assert model.sigma == pytest.approx(model.history[-1]["sigma"])
    assert model.noise_model is None or "kind" in model.noise_model
    assert repr(model) == (f"<tvae.Model: 8 latents, patches of 8x8, ELBO {model.elbo:.4f}, sigma {model.sigma:.4g}>")
    model.save(tmp_path / "model.tvae")
    again = tvae.load(tmp_path / "model.tvae")
    for name in ("elbo", "sigma", "history", "noise_model"):
        assert getattr(again, name) == getattr(model, name)
    assert repr(again) == repr(model)
    constant = np.full((20, 24), 7, np.uint8)
    np.testing.assert_array_equal(model.restore(constant), constant)


def test_the_uncertainty_of_a_grey_picture_has_two_axes(command):
    write_image(Path("a.png"), GREY)
    command.ok("denoise", "a.png", *TINY, "hydra.run.dir=run")
    assert tifffile.imread("run/uncertainty.tiff").shape == GREY.shape
    assert tvae.denoise(GREY, effort="fast", return_uncertainty=True, **SMALL)[1].shape == GREY.shape


def test_types_are_shipped(tmp_path):
    assert files("tvae").joinpath("py.typed").is_file()
    (tmp_path / "use.py").write_text(TYPED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent", "use.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    told = [line.partition("Revealed type is ")[2].replace("builtins.", "") for line in done.stdout.splitlines()]
    told = [line for line in told if line]
    assert ["ndarray" in line for line in told[:2]] == [True, True], done.stdout
    assert [line.strip('"').startswith("tuple[") for line in told[:2]] == [False, True], done.stdout
    assert "Tensor" in told[2]
    assert "float" in told[3]
    assert "list[dict" in told[4]


def test_lists_that_are_no_array_are_called_by_the_name_of_the_argument():
    with pytest.raises(TypeError, match=r"^image: must be an array \("):
        tvae.denoise([[1, 2], [3]])


def test_the_noise_of_a_dark_16_bit_picture_with_hot_pixels():
    """Hot pixels make the range that of the type; the least level to be told is not a 255th of it."""
    rows, columns = np.mgrid[:64, :64]
    noisy = 300 + 120 * np.sin(columns / 9) * np.cos(rows / 11) + np.random.default_rng(0).normal(0, 15, rows.shape)
    noisy[[5, 40], [9, 50]] = 60000
    model = tvae.fit(noisy.round().astype(np.uint16), noise_model="gaussian", effort="fast", epochs=2, threads=1)
    assert model.sigma == pytest.approx(15, rel=0.2)
