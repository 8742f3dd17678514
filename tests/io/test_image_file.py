"""Image files: what goes in comes out in the same form, and every unsuitable file gets one clear line."""

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from tvae.errors import UserError
from tvae.io.image_file import from_array, read_image, to_output, to_png, write_image, write_tiff

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


@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (1, 1), (5, 5, 1), (3, 9, 1), (4, 9)])
@pytest.mark.parametrize("ending", ["tif", "png"])
def test_odd_shapes(tmp_path, ending, shape):
    array = random_array("uint8", shape)
    write_image(tmp_path / f"a.{ending}", array)
    image = read_image(tmp_path / f"a.{ending}")
    np.testing.assert_array_equal(image.pixels, array.reshape(*shape[:2], 1))
    assert image.is_2d == (ending == "png" or len(shape) == 2)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["png", "jpg", "tif"]),
    st.sampled_from(["grey", "RGB"]),
    st.sampled_from(["uint8", "uint16"]),
    st.floats(0, 1, exclude_max=True),
)
def test_truncated_file_is_refused_or_complete(tmp_path_factory, ending, kind, dtype, part):
    path = tmp_path_factory.mktemp("truncated") / f"a.{ending}"
    write_image(path, random_array("uint8" if ending == "jpg" else dtype, SHAPES[kind]))
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
    assert problem(tmp_path).endswith("a folder, where a file is wanted")
    path = tmp_path / "a.png"
    path.write_bytes(b"")
    assert problem(path).endswith("the file is empty")
    for content in (b"hello", b"%PDF-1.4", b"RIFF" + bytes(20)):
        path.write_bytes(content)
        assert problem(path).endswith("not a PNG, JPEG, TIFF, BMP, WebP, GIF or NumPy file")
    path.write_bytes(b"GIF89a" + bytes(20))
    assert "damaged or truncated image" in problem(path)


def test_damaged_files(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    for head in (b"II*\0", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"):
        path.write_bytes(head + bytes(30))
        assert "damaged or truncated" in problem(path)
    Pillow.fromarray(random_array("uint8", (32, 32))).save(path)
    path.write_bytes(path.read_bytes()[:300])
    assert problem(path).endswith("damaged or truncated image (image file is truncated)")
    Pillow.fromarray(random_array("uint8", (32, 32))).save(path)
    monkeypatch.setattr(Pillow, "MAX_IMAGE_PIXELS", 500)
    assert "exceeds limit of 1000 pixels" in problem(path)  # what Pillow says, not imageio


def test_damaged_tiff_says_nothing_else(tmp_path, capfd, caplog):
    write_image(tmp_path / "a.tif", random_array("uint16", (20, 20)))
    (tmp_path / "a.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:200])
    problem(tmp_path / "a.tif")
    assert (capfd.readouterr(), caplog.records) == (("", ""), [])


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (np.zeros((8, 9), np.complex64), {}, "pixels of type complex64"),
        (np.zeros((8, 9, 5), np.uint8), {"planarconfig": "contig", "photometric": "minisblack"}, r"shape (8, 9, 5)"),
        (np.full((8, 9), np.nan, np.float32), {}, "all pixels are missing"),
        (np.full((8, 9), np.inf, np.float32), {}, "holds infinite values"),
        (np.full((8, 9), -np.inf), {}, "holds infinite values"),
    ],
)
def test_unsuitable_values(tmp_path, array, options, message):
    tifffile.imwrite(tmp_path / "a.tif", array, **options)
    assert message in problem(tmp_path / "a.tif")


def test_unsuitable_arrays():
    for array in (np.zeros((0, 3)), np.zeros(4), np.zeros((2, 2, 2, 2)), np.zeros((2, 2), complex)):
        with pytest.raises(ValueError, match=r"is no picture|pixels of type complex128"):
            from_array(array)


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
        ("a.png", "uint8", (4, 4, 5)),
        ("a.png", "uint16", (4, 4, 5)),
        ("a.jpg", "uint16", (4, 4)),
        ("a.jpg", "uint8", (4, 4, 4)),
        ("a.xyz", "uint8", (4, 4)),
        ("a", "uint8", (4, 4)),
    ],
)
def test_files_that_cannot_hold_it(tmp_path, name, dtype, shape):
    with pytest.raises(UserError, match=rf"{name}: such a file cannot hold {dtype}"):
        write_image(tmp_path / name, random_array(dtype, shape))
    assert not list(tmp_path.iterdir())
