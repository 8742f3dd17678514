"""The table of pictures that a restoration leaves in the run directory."""

import numpy as np
import pytest
from PIL import Image as Pillow

from tvae.data.picture import Picture
from tvae.io.image_file import from_array, read_image
from tvae.restoration.posterior_mean import Restored
from tvae.runs.callbacks.output_pictures import OUTPUT_PICTURES, as_shown, uncertainty_scale, write_pictures

KINDS = [("uint8", ()), ("uint16", ()), ("float32", ()), ("uint8", (3,)), ("uint16", (3,)), ("float64", (3,))]


@pytest.fixture(params=KINDS, ids=str)
def image(request):
    dtype, colours = request.param
    values = np.random.default_rng(0).random((9, 7, *colours))
    return from_array((values * (1 if dtype.startswith("float") else np.iinfo(dtype).max)).astype(dtype))


@pytest.fixture
def restoration(image):
    """A picture, and something of its shape as the restored one."""
    rng = np.random.default_rng(1)
    noisy = image.pixels + 0.1 * image.peak * rng.normal(size=image.pixels.shape)
    restored = Restored(image.pixels * 0.5, 0.2 * image.peak * rng.random(image.pixels.shape))
    return Picture(image, noisy, image.pixels), restored


def test_all_pictures_of_the_table_are_written_and_no_others(tmp_path, image, restoration):
    write_pictures(tmp_path, *restoration)
    found = {path.name for path in tmp_path.iterdir()}
    absent = {"restored.tiff"} if image.dtype.kind != "f" else set()
    absent |= {"restored_preview.png"} if image.dtype == np.uint8 else set()
    assert found == {*OUTPUT_PICTURES} - absent
    for name in found:
        assert read_image(str(tmp_path / name)).pixels.shape[:2] == (9, 7)


def test_a_picture_more_is_one_entry_more(tmp_path, restoration, monkeypatch):
    monkeypatch.setitem(OUTPUT_PICTURES, "half.png", lambda picture, restored: np.zeros((4, 3), dtype=np.uint8))
    monkeypatch.setitem(OUTPUT_PICTURES, "none.png", lambda picture, restored: None)
    write_pictures(tmp_path, *restoration)
    assert (tmp_path / "half.png").is_file()
    assert not (tmp_path / "none.png").exists()


def test_what_the_files_hold(tmp_path, image, restoration):
    picture, restored = restoration
    write_pictures(tmp_path, picture, restored)
    same_range = read_image(str(tmp_path / ("restored.tiff" if image.dtype.kind == "f" else "restored.png")))
    assert same_range.dtype == image.dtype
    np.testing.assert_allclose(same_range.pixels, restored.pixels, atol=1e-6 if image.dtype.kind == "f" else 0.5)
    uncertainty = read_image(str(tmp_path / "uncertainty.tiff")).pixels
    np.testing.assert_allclose(uncertainty, restored.uncertainty, rtol=1e-6)
    shown = read_image(str(tmp_path / "uncertainty.png")).pixels[..., 0]
    assert shown.max() == 255
    scale = uncertainty_scale(restored)
    np.testing.assert_allclose(shown * scale / 255, restored.uncertainty.mean(-1), atol=0.51 * scale / 255)


def test_a_dark_picture_can_be_seen(tmp_path):
    """16 bit of which little is used, with a few hot pixels, as 8 bit from black to white."""
    rng = np.random.default_rng(0)
    values = rng.integers(400, 900, (40, 50)).astype(np.uint16)
    values.flat[:2] = 60000
    picture = Picture(from_array(values), values[..., None].astype(float))
    restored = Restored(picture.noisy, np.ones(picture.noisy.shape))
    write_pictures(tmp_path, picture, restored)
    shown = np.asarray(Pillow.open(tmp_path / "restored_preview.png"))
    assert (shown.dtype, shown.shape) == (np.uint8, (40, 50))
    assert shown.min() == 0
    assert 110 < np.median(shown) < 145
    np.testing.assert_array_equal(np.asarray(Pillow.open(tmp_path / "restored.png")), values)
    assert 0.4 < np.median(as_shown(picture, picture.noisy)) < 0.6


def test_an_uncertainty_of_zero_is_black(image):
    restored = Restored(image.pixels, np.zeros_like(image.pixels))
    picture = Picture(image, image.pixels)
    assert uncertainty_scale(restored) == 1.0
    assert OUTPUT_PICTURES["uncertainty.png"](picture, restored).max() == 0


def test_on_a_screen(image, restoration):
    picture, restored = restoration
    shown = as_shown(picture, restored.pixels)
    assert shown.shape == (9, 7, 3 if image.pixels.shape[-1] == 3 else 1)
    assert 0 <= shown.min() <= shown.max() <= 1
