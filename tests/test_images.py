"""Image files: what goes in comes out in the same form, and every unsuitable file gets one clear line."""

import io

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from tvae import png16
from tvae.config import UserError
from tvae.images import read_image, to_output, to_png, write_image, write_tiff

PEAKS = {"uint8": 255, "uint16": 65535, "float32": 1, "float64": 1, "float16": 1}
SHAPES = {"grey": (7, 11), "grey+alpha": (7, 11, 2), "RGB": (7, 11, 3), "RGBA": (7, 11, 4)}


def random_array(dtype, shape, seed=0):
    return (np.random.default_rng(seed).random(shape) * PEAKS[dtype]).astype(dtype)


def problem(path):
    """The one line that a user sees."""
    with pytest.raises(UserError) as caught:
        read_image(path)
    (line,) = caught.value.problems
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("dtype", "ending"),
    [(d, "tif") for d in PEAKS] + [("uint8", "png"), ("uint16", "png"), ("uint8", "tiff"), ("uint8", "PNG")],
)
def test_round_trip(tmp_path, dtype, ending, shape):
    array, path = random_array(dtype, shape), tmp_path / f"a.{ending}"
    write_image(path, array)
    image = read_image(path)
    n_channels = 1 if len(shape) == 2 or shape[2] == 2 else 3
    assert image.pixels.shape == (7, 11, n_channels)
    assert image.pixels.dtype == np.float64
    assert (image.dtype, image.peak, image.missing) == (np.dtype(dtype), PEAKS[dtype], None)
    assert (image.alpha is not None) == (shape[-1] in (2, 4))
    output = to_output(image.pixels, image)
    assert output.dtype == array.dtype
    np.testing.assert_array_equal(output, array)
    write_image(path, output)
    np.testing.assert_array_equal(to_output(read_image(path).pixels, image), array)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("shape", [(7, 11), (7, 11, 3)])
def test_jpeg_round_trip(tmp_path, shape):
    first, second = tmp_path / "a.jpg", tmp_path / "b.png"
    write_image(first, random_array("uint8", shape))
    image = read_image(first)
    write_image(second, to_output(image.pixels, image))
    again = read_image(second)
    assert (image.dtype, image.peak) == (np.uint8, 255)
    assert to_output(again.pixels, again).shape == shape
    np.testing.assert_array_equal(again.pixels, image.pixels)


@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (1, 1), (5, 5, 1)])
def test_odd_shapes_of_tiff(tmp_path, shape):
    array = random_array("uint8", shape)
    write_image(tmp_path / "a.tif", array)
    image = read_image(tmp_path / "a.tif")
    np.testing.assert_array_equal(to_output(image.pixels, image), array)


@pytest.mark.parametrize("n_channels", [1, 2, 3, 4])
def test_deep_png_as_pillow_sees_it(n_channels):
    array = random_array("uint16", (5, 6, n_channels))
    content = png16.encode(array)
    with Pillow.open(io.BytesIO(content)) as file:
        assert file.size == (6, 5)
        assert png16.is_deep(file) == (n_channels > 1)
        if n_channels != 2:  # which Pillow reads as RGBA
            high = np.asarray(file).reshape(array.shape)
            np.testing.assert_array_equal(high, array if n_channels == 1 else array >> 8)
    if n_channels > 1:
        np.testing.assert_array_equal(png16.decode(content), array)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(["png", "jpg", "tif"]), st.sampled_from(["grey", "RGB"]), st.floats(0, 1, exclude_max=True))
def test_truncated_file_is_refused_or_complete(tmp_path_factory, ending, kind, part):
    path = tmp_path_factory.mktemp("truncated") / f"a.{ending}"
    write_image(path, random_array("uint8", SHAPES[kind]))
    whole, content = read_image(path), path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    try:
        found = read_image(path)
    except UserError:
        problem(path)
    else:
        np.testing.assert_array_equal(found.pixels, whole.pixels)


def test_unreadable_files(tmp_path):
    assert problem(tmp_path / "none.png").endswith("No such file or directory")
    assert problem(tmp_path).endswith("Is a directory")
    path = tmp_path / "a.png"
    path.write_bytes(b"")
    assert problem(path).endswith("the file is empty")
    for content in (b"hello", b"%PDF-1.4", b"GIF89a" + bytes(20)):
        path.write_bytes(content)
        assert problem(path).endswith("not a PNG, JPEG or TIFF image")
    path.write_bytes(b"II*\0" + bytes(30))
    assert "damaged or truncated" in problem(path)
    Pillow.fromarray(random_array("uint8", (32, 32))).save(path)
    path.write_bytes(path.read_bytes()[:300])
    assert "damaged or truncated" in problem(path)


def test_damaged_tiff_says_nothing_else(tmp_path, capfd):
    write_image(tmp_path / "a.tif", random_array("uint16", (20, 20)))
    (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:200])
    problem(tmp_path / "a.tif")
    assert capfd.readouterr() == ("", "")


def test_kinds_of_pixels_pillow_knows(tmp_path):
    grey, path = random_array("uint8", (8, 9)), tmp_path / "a.png"
    Pillow.fromarray(grey).convert("1").save(path)
    image = read_image(path)
    assert (set(np.unique(image.pixels)), image.dtype) == ({0.0, 255.0}, np.uint8)

    colours = Pillow.fromarray(random_array("uint8", (8, 9, 3))).quantize(16)
    colours.save(path)
    image = read_image(path)
    np.testing.assert_array_equal(image.pixels, np.asarray(colours.convert("RGB")))
    assert image.alpha is None

    colours.save(path, transparency=0)
    np.testing.assert_array_equal(read_image(path).alpha, np.where(np.asarray(colours) == 0, 0, 255))

    Pillow.fromarray(grey).save(path, transparency=int(grey[0, 0]))
    np.testing.assert_array_equal(read_image(path).alpha, np.where(grey == grey[0, 0], 0, 255))

    Pillow.fromarray(random_array("uint8", (8, 9, 3))).convert("CMYK").save(tmp_path / "a.jpg")
    assert "colours of kind CMYK" in problem(tmp_path / "a.jpg")

    Pillow.fromarray(grey).save(path, save_all=True, append_images=[Pillow.fromarray(255 - grey)])
    assert "holds 2 pictures" in problem(path)


def test_photographs_are_turned_upright(tmp_path):
    photo = Pillow.fromarray(random_array("uint8", (8, 16, 3)))
    exif = Pillow.Exif()
    exif[0x0112] = 6  # to be shown turned by 90 degrees
    photo.save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").pixels.shape == (16, 8, 3)


def test_kinds_of_tiff(tmp_path):
    grey, path = random_array("uint8", (8, 9)), tmp_path / "a.tif"
    for compression in ("tiff_lzw", "tiff_deflate", "packbits"):
        Pillow.fromarray(grey).save(path, compression=compression)
        np.testing.assert_array_equal(read_image(path).pixels[..., 0], grey)
    planes = random_array("uint16", (3, 8, 9))
    tifffile.imwrite(path, planes, photometric="rgb", planarconfig="separate")
    np.testing.assert_array_equal(read_image(path).pixels, np.moveaxis(planes, 0, -1))
    pages = random_array("float32", (8, 9, 3))
    tifffile.imwrite(path, pages, photometric="minisblack")  # 8 pages
    np.testing.assert_array_equal(read_image(path).pixels, pages)
    tifffile.imwrite(path, grey, photometric="miniswhite")
    np.testing.assert_array_equal(read_image(path).pixels[..., 0], 255 - grey)
    tifffile.imwrite(path, grey > 99)
    np.testing.assert_array_equal(read_image(path).pixels[..., 0], 255.0 * (grey > 99))
    tifffile.imwrite(path, grey.astype(">u2"), byteorder=">")
    assert read_image(path).dtype == np.dtype("uint16")
    with tifffile.TiffWriter(path) as file:
        file.write(grey, photometric="minisblack")
        file.write(grey[::2, ::2], photometric="minisblack", subfiletype=1)  # a thumbnail
    np.testing.assert_array_equal(read_image(path).pixels[..., 0], grey)


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (np.zeros((5, 8, 9), np.uint8), {"photometric": "minisblack"}, "holds 5 pictures"),
        (np.zeros((2, 3, 8, 9), np.uint8), {"imagej": True}, "holds 6 pictures"),
        (np.zeros((8, 9), np.int32), {}, "pixels of type int32"),
        (np.zeros((8, 9), np.complex64), {}, "pixels of type complex64"),
        (np.zeros((8, 9, 5), np.uint8), {"planarconfig": "contig", "photometric": "minisblack"}, r"shape (8, 9, 5)"),
        (np.zeros((8, 9, 4), np.uint8), {"photometric": "separated"}, "colours of kind SEPARATED"),
        (np.full((8, 9), np.nan, np.float32), {}, "all pixels are missing"),
        (np.full((8, 9), np.inf, np.float32), {}, "holds infinite values"),
        (np.full((8, 9), -np.inf), {}, "holds infinite values"),
    ],
)
def test_unsuitable_tiff(tmp_path, array, options, message):
    tifffile.imwrite(tmp_path / "a.tif", array, **options)
    assert message in problem(tmp_path / "a.tif")


def test_deep_colour_in_a_compression_that_is_not_read(tmp_path):
    write_image(tmp_path / "a.tif", random_array("uint16", (4, 4, 3)))
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as file:
        file.pages[0].tags["Compression"].overwrite(5)  # LZW
    assert "save it uncompressed" in problem(tmp_path / "a.tif")


def test_floating_point_range(tmp_path):
    array = random_array("float32", (8, 9))
    for low, high, peak, is_bounded in (
        (0, 1, 1, True),
        (0.2, 0.4, 1, True),
        (-0.5, 0.5, 1, False),
        (10, 90, 80, False),
    ):
        scaled = (array - array.min()) / np.ptp(array) * (high - low) + low
        write_image(tmp_path / "a.tif", scaled.astype(np.float32).clip(low, high))
        image = read_image(tmp_path / "a.tif")
        assert image.peak == pytest.approx(peak)
        assert image.is_bounded == is_bounded
        beyond = to_output(image.pixels + 1000, image)
        assert beyond.dtype == np.float32
        assert (beyond.max() == 1) == is_bounded
        shown = to_png(image.pixels, image)
        assert (shown.dtype, shown.shape) == (np.uint8, (8, 9))
        if not is_bounded:
            assert (shown.min(), shown.max()) == (0, 255)


def test_nan_is_missing(tmp_path):
    array = random_array("float64", (8, 9, 3))
    array[2, 3] = np.nan
    array[4, 5, 1] = np.nan  # one channel is enough
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb")
    image = read_image(tmp_path / "a.tif")
    assert image.missing is not None
    assert np.argwhere(image.missing).tolist() == [[2, 3], [4, 5]]
    assert not image.pixels[image.missing].any()
    np.testing.assert_array_equal(image.pixels[~image.missing], array[~image.missing])


def test_output_is_rounded_and_clipped(tmp_path):
    write_image(tmp_path / "a.png", np.array([[0, 255]], np.uint8))
    image = read_image(tmp_path / "a.png")
    pixels = np.array([[-3.0, 270.0]])[..., None]
    np.testing.assert_array_equal(to_output(pixels, image), [[0, 255]])
    np.testing.assert_array_equal(to_output(pixels * 0 + 7.6, image), [[8, 8]])
    np.testing.assert_array_equal(to_png(pixels * 0 + 7.6, image), [[8, 8]])
    np.testing.assert_array_equal(pixels[..., 0], [[-3, 270]])


def test_float_tiff(tmp_path):
    pixels = random_array("float64", (5, 6, 3)) * 300 - 20
    write_tiff(tmp_path / "a.tif", pixels)
    image = read_image(tmp_path / "a.tif")
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image.pixels, pixels.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("a.png", "float32", (4, 4)),
        ("a.jpg", "uint16", (4, 4)),
        ("a.jpg", "uint8", (4, 4, 4)),
        ("a.xyz", "uint8", (4, 4)),
    ],
)
def test_files_that_cannot_hold_it(tmp_path, name, dtype, shape):
    with pytest.raises(UserError, match="cannot hold"):
        write_image(tmp_path / name, random_array(dtype, shape))
    assert not list(tmp_path.iterdir())
