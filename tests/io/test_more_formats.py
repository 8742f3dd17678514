"""Kinds of files and of numbers beyond PNG, JPEG and TIFF of 8 and 16 bit: what comes out is what went in."""

import io
import logging

import numpy as np
import pytest
import tifffile
from PIL import Image as Pillow

from tests.conftest import small_config
from tvae.data.picture import read_mask
from tvae.data.sets.image import ImageConfig
from tvae.errors import UserError
from tvae.io.image_codec import decode
from tvae.io.image_encoding import encode
from tvae.io.image_file import from_array, read_image, to_output, to_screen, write_image
from tvae.io.scale import Scale, read_scale

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (9, 12), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (9, 12, 3), dtype=np.uint8)


@pytest.mark.parametrize("ending", ["png", "bmp", "gif"])
def test_a_palette_of_greys_is_grey(tmp_path, ending):
    indexed = Pillow.fromarray(GREY).convert("P")
    indexed.save(tmp_path / f"a.{ending}")
    np.testing.assert_array_equal(read_image(tmp_path / f"a.{ending}").pixels, GREY[..., None])
    indexed.putpalette([value for i in range(256) for value in (i, i, 255 - i)])
    indexed.save(tmp_path / f"b.{ending}")
    colours = np.dstack([GREY, GREY, 255 - GREY])
    np.testing.assert_array_equal(read_image(tmp_path / f"b.{ending}").pixels, colours)


@pytest.mark.parametrize(("ending", "array"), [("bmp", GREY), ("bmp", COLOUR), ("webp", COLOUR), ("gif", GREY)])
def test_8_bit_files_round_trip(tmp_path, ending, array):
    write_image(tmp_path / f"a.{ending}", array)
    image = read_image(tmp_path / f"a.{ending}")
    np.testing.assert_array_equal(to_output(image.pixels, image), array)
    assert image.dtype == np.uint8


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "int64", "uint32", "uint64", "float16", "float64"])
@pytest.mark.parametrize("ending", ["npy", "tif"])
def test_types_round_trip(tmp_path, dtype, ending):
    array = (RNG.normal(size=(9, 12)) * 50 + (0 if dtype[0] in "if" else 300)).astype(dtype)
    array = array > 300 if dtype == "bool" else array
    image = from_array(array)
    assert image.dtype == dtype
    np.testing.assert_array_equal(to_output(image.pixels, image), array)
    write_image(tmp_path / f"a.{ending}", array)
    found = read_image(tmp_path / f"a.{ending}")
    expected = 255 * array.astype(np.uint8) if (dtype, ending) == ("bool", "tif") else array
    np.testing.assert_array_equal(to_output(found.pixels, found), expected)
    shown = to_screen(image.pixels, image)
    assert (shown.min(), shown.max()) == (0, 255) or image.is_bounded


def test_integers_are_rounded_and_stay_within_their_type():
    image = from_array(np.array([[-30000, 100], [0, 32000]], dtype=np.int16))
    pixels = np.array([[-40000.0, 99.6], [0.4, 50000.0]])[..., None]
    np.testing.assert_array_equal(to_output(pixels, image), [[-32768, 100], [0, 32767]])
    image = from_array(np.array([[True, False]]))
    np.testing.assert_array_equal(to_output(np.array([[1.3, 0.4]])[..., None], image), [[True, False]])


@pytest.mark.parametrize("array", [np.ones((3, 3), complex), np.array([["a"]]), np.full((3, 3), 2**60)])
def test_what_is_no_picture(array):
    with pytest.raises(UserError, match=r"are not read|too large to be exact"):
        from_array(array)


@pytest.mark.parametrize(("highest", "peak"), [(200, 255), (1000, 1023), (4095, 4095), (4096, 16383), (20000, 65535)])
def test_the_bits_of_16_bit_files_are_those_that_are_used(highest, peak):
    assert from_array(np.array([[0, highest]], np.uint16)).peak == peak


def test_a_clean_picture_with_fewer_bits_has_the_same_units(tmp_path):
    noisy, clean = np.full((9, 12), 5000, np.uint16), np.full((9, 12), 4000, np.uint16)
    noisy[0, 0] = clean[0, 0] = 10
    write_image(tmp_path / "noisy.png", noisy)
    write_image(tmp_path / "clean.png", clean)
    config = small_config(
        dataset=ImageConfig(name="file"), image=str(tmp_path / "noisy.png"), clean=str(tmp_path / "clean.png")
    )
    picture = config.dataset.open(config)
    assert picture.peak == 16383
    np.testing.assert_array_equal(picture.clean[..., 0], clean)


def test_cmyk_becomes_rgb():
    content = io.BytesIO()
    flat = Pillow.fromarray(np.tile(np.array([[[200, 100, 50]]], np.uint8), (16, 16, 1)))
    flat.convert("CMYK").save(content, "JPEG", quality=100)
    with Pillow.open(io.BytesIO(content.getvalue())) as file:
        expected = np.asarray(file.convert("RGB"))
    np.testing.assert_array_equal(decode(content.getvalue()), expected)
    np.testing.assert_allclose(expected[8, 8], [200, 100, 50], atol=4)


def test_an_animation_is_no_picture(tmp_path):
    frames = [Pillow.fromarray(GREY), Pillow.fromarray(GREY[::-1])]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(UserError, match="holds 2 pictures"):
        read_image(tmp_path / "a.gif")


def test_pixel_size_is_carried_over():
    for options, expected in (
        ({"resolution": (300, 150), "resolutionunit": "INCH"}, Scale(300, 150, 2)),
        ({"imagej": True, "resolution": (5, 4), "metadata": {"unit": "um"}}, Scale(5e4, 4e4, 3)),
        ({"ome": True, "metadata": {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.25}}, Scale(2e4, 4e4, 3)),
        ({}, None),
    ):
        buffer = io.BytesIO()
        tifffile.imwrite(buffer, GREY, **options)
        found = read_scale(io.BytesIO(buffer.getvalue()))
        assert (found is None) == (expected is None)
        if expected is not None:
            again = read_scale(io.BytesIO(encode(GREY, ".tif", found)))
            for size in (found, again):
                assert (size.across, size.down) == pytest.approx((expected.across, expected.down), rel=1e-6)
                assert size.unit == expected.unit
    assert read_scale(io.BytesIO(b"II*\0 broken")) is None
    assert read_scale(io.BytesIO(encode(GREY, ".png"))) is None


def test_a_mask_that_is_a_jpeg_is_warned_of(tmp_path, caplog):
    mask = np.zeros((32, 32), np.uint8)
    mask[8:20, 8:20] = 255
    write_image(tmp_path / "mask.jpg", mask)
    write_image(tmp_path / "mask.png", mask)
    image = from_array(np.zeros((32, 32), np.uint8))
    with caplog.at_level(logging.WARNING):
        read_mask(str(tmp_path / "mask.png"), image)
        assert caplog.messages == []
        read_mask(str(tmp_path / "mask.jpg"), image)
    (line,) = caplog.messages
    assert "a JPEG file does not keep its values" in line
    assert line.endswith("save the mask as PNG")
