"""Image files: pixels come back in the same form, and an unsuitable file gets one clear line.

PNG, JPEG and TIFF are compared with Pillow, tifffile and a PNG encoder of a dozen lines.
"""

import io
import itertools
import logging
import struct
import zlib

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from PIL import Image as Pillow
from PIL import ImageOps

from tests.conftest import small_config
from tvae.data.picture import read_mask
from tvae.data.sets.image import ImageConfig
from tvae.errors import UserError
from tvae.io.formats import decode, encode
from tvae.io.image_file import (
    from_array,
    read_image,
    to_output,
    to_png,
    to_screen,
    without_copies,
    write_image,
    write_tiff,
)
from tvae.io.scale import Scale, read_scale

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (8, 9), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (8, 9, 3), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, (8, 9, 3), dtype=np.uint16)
BITS = GREY > 99
INDEXED = Pillow.fromarray(COLOUR).quantize(16)
PEAKS = {"uint8": 255, "uint16": 65535, "float32": 1, "float64": 1, "float16": 1}
SHAPES = {"grey": (7, 11), "grey+alpha": (7, 11, 2), "RGB": (7, 11, 3), "RGBA": (7, 11, 4)}
OTHER_FILES = (b"hello", b"%PDF-1.4", b"RIFF" + bytes(20))
HEADS = (b"GIF89a", b"II*\0", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # channels: the number in a PNG file
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def random_array(dtype, shape, seed=0):
    return (np.random.default_rng(seed).random(shape) * PEAKS[dtype]).astype(dtype)


def reread(path, array):
    write_image(path, array)
    return read_image(path)


def problem(path):
    """The one line that a user sees."""
    with pytest.raises(UserError) as caught:
        read_image(path)
    (line,) = caught.value.problems
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line


def saved(picture, kind="PNG", **options):
    """The file that Pillow makes of a picture."""
    buffer = io.BytesIO()
    (picture if isinstance(picture, Pillow.Image) else Pillow.fromarray(picture)).save(buffer, kind, **options)
    return buffer.getvalue()


def tiff(array, **options):
    """The file that tifffile makes of an array."""
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, array, **options)
    return buffer.getvalue()


def deep_png(array, *chunks, is_interlaced=False):
    """A PNG file of (H, W, C) uint16, with more chunks before its pixels."""
    height, width, n_channels = array.shape
    passes = [array[y::dy, x::dx] for y, x, dy, dx in ADAM7] if is_interlaced else [array]
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for part in passes if part.size for line in part)
    header = struct.pack(">IIBBBBB", width, height, 16, COLOUR_TYPES[n_channels], 0, 0, is_interlaced)
    chunks = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("dtype", "ending"),
    [(d, "tif") for d in PEAKS] + [("uint8", "png"), ("uint16", "png"), ("uint8", "tiff"), ("uint8", "PNG")],
)
def test_round_trip(tmp_path, dtype, ending, shape):
    array, path = random_array(dtype, shape), tmp_path / f"a.{ending}"
    image = reread(path, array)
    n_channels = 1 if len(shape) == 2 or shape[2] == 2 else 3
    assert image.pixels.shape == (7, 11, n_channels)
    assert image.pixels.dtype == np.float64
    assert (image.dtype, image.peak, image.missing) == (np.dtype(dtype), PEAKS[dtype], None)
    assert (image.alpha is not None) == (shape[-1] in (2, 4))
    output = to_output(image.pixels, image)
    assert output.dtype == array.dtype
    assert_array_equal(output, array)
    write_image(path, output)
    assert_array_equal(to_output(read_image(path).pixels, image), array)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "int64", "uint32", "uint64", "float16", "float64"])
@pytest.mark.parametrize("ending", ["npy", "tif"])
def test_types_round_trip(tmp_path, dtype, ending):
    array = (RNG.normal(size=(8, 9)) * 50 + (0 if dtype[0] in "if" else 300)).astype(dtype)
    array = array > 300 if dtype == "bool" else array
    image = from_array(array)
    assert image.dtype == dtype
    assert_array_equal(to_output(image.pixels, image), array)
    found = reread(tmp_path / f"a.{ending}", array)
    expected = 255 * array.astype(np.uint8) if (dtype, ending) == ("bool", "tif") else array
    assert_array_equal(to_output(found.pixels, found), expected)
    shown = to_screen(image.pixels, image)
    assert (shown.min(), shown.max()) == (0, 255) or image.is_bounded


@pytest.mark.parametrize(("ending", "array"), [("bmp", GREY), ("bmp", COLOUR), ("webp", COLOUR), ("gif", GREY)])
def test_8_bit_files_round_trip(tmp_path, ending, array):
    image = reread(tmp_path / f"a.{ending}", array)
    assert_array_equal(to_output(image.pixels, image), array)
    assert image.dtype == np.uint8


@pytest.mark.parametrize("array", [GREY, COLOUR])
def test_jpeg_pixels_survive_as_png(tmp_path, array):
    image = reread(tmp_path / "a.jpg", array)
    again = reread(tmp_path / "b.png", to_output(image.pixels, image))
    assert (image.dtype, image.peak) == (np.uint8, 255)
    assert to_output(again.pixels, again).shape == array.shape
    assert_array_equal(again.pixels, image.pixels)


@pytest.mark.parametrize("shape", [(1, 9), (9, 1), (1, 1), (5, 5, 1), (3, 9, 1), (4, 9)])
@pytest.mark.parametrize("ending", ["tif", "png"])
def test_odd_shapes(tmp_path, ending, shape):
    array = random_array("uint8", shape)
    image = reread(tmp_path / f"a.{ending}", array)
    assert_array_equal(image.pixels, array.reshape(*shape[:2], 1))
    assert image.is_2d == (ending == "png" or len(shape) == 2)


@pytest.mark.parametrize(("n_channels", "ending"), [(2, "tif"), (3, "png"), (3, "jpg"), (3, "bmp"), (4, "png")])
def test_equal_channels_are_read_as_one_and_written_as_before(tmp_path, n_channels, ending):
    grey = np.full((8, 9), 7, np.uint8) if ending == "jpg" else GREY  # which JPEG keeps
    array = np.dstack([grey] * n_channels)
    if n_channels == 4:
        array[..., 3] = GREY[::-1]  # alpha
    image = from_array(array) if n_channels == 2 else reread(tmp_path / f"a.{ending}", array)
    image = without_copies(image)
    assert_array_equal(image.pixels, grey[..., None])
    assert (image.n_equal, image.n_channels) == (min(n_channels, 3), min(n_channels, 3))
    assert_array_equal(to_output(image.pixels, image), array)
    array[3, 4, 1] += 1
    one_differs = without_copies(from_array(array[..., :3]))
    assert one_differs.n_equal == 1
    assert_array_equal(to_output(np.zeros((8, 9, 1)), one_differs), np.zeros((8, 9, min(n_channels, 3))))


def test_a_clean_picture_may_have_no_colours(tmp_path):
    write_image(tmp_path / "noisy.png", COLOUR)
    write_image(tmp_path / "clean.png", np.dstack([GREY] * 3))
    config = small_config(
        dataset=ImageConfig(name="file"), image=str(tmp_path / "noisy.png"), clean=str(tmp_path / "clean.png")
    )
    assert_array_equal(config.dataset.open(config).clean, np.dstack([GREY] * 3))
    write_image(tmp_path / "noisy.png", np.dstack([GREY[::-1]] * 3))
    assert_array_equal(config.dataset.open(config).clean, GREY[..., None])
    write_image(tmp_path / "clean.png", COLOUR)
    with pytest.raises(UserError, match="9x8x3 pixels, but the image has 9x8"):
        config.dataset.open(config)


@pytest.mark.parametrize("ending", ["png", "bmp", "gif"])
def test_a_palette_of_greys_is_grey(tmp_path, ending):
    indexed = Pillow.fromarray(GREY).convert("P")
    indexed.save(tmp_path / f"a.{ending}")
    assert_array_equal(read_image(tmp_path / f"a.{ending}").pixels, GREY[..., None])
    indexed.putpalette([value for i in range(256) for value in (i, i, 255 - i)])
    indexed.save(tmp_path / f"b.{ending}")
    colours = np.dstack([GREY, GREY, 255 - GREY])
    assert_array_equal(read_image(tmp_path / f"b.{ending}").pixels, colours)


@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 1), (8, 9, 2), (8, 9, 3), (8, 9, 4)])
def test_files_are_those_of_pillow_and_tifffile(shape):
    array = RNG.integers(0, 256, shape, dtype=np.uint8)
    flat = array[..., 0] if shape[2:] == (1,) else array
    assert encode(array, ".png") == saved(flat)
    if shape[2:] in ((), (1,), (3,)):
        assert encode(array, ".JPG") == saved(flat, "JPEG", quality=95)
    for dtype in ("uint8", "uint16", "float16", "float32", "float64"):
        content = encode(array.astype(dtype), ".tif")
        found = tifffile.imread(io.BytesIO(content))
        assert found.dtype == dtype
        assert_array_equal(found, array)
    with Pillow.open(io.BytesIO(encode(array, ".tiff"))) as file:
        assert_array_equal(np.asarray(file), flat)
        assert file.mode == {(): "L", (1,): "L", (2,): "LA", (3,): "RGB", (4,): "RGBA"}[shape[2:]]


@pytest.mark.parametrize("n_channels", [1, 2, 3, 4])
def test_deep_png(n_channels):
    array = RNG.integers(0, 65536, (8, 9, n_channels), dtype=np.uint16)
    flat = array[..., 0] if n_channels == 1 else array
    for content in (deep_png(array), deep_png(array, is_interlaced=True)):
        assert_array_equal(decode(content), flat)
    for layout in (array, array[::-1, ::-1][::-1, ::-1], np.asfortranarray(array)):
        assert_array_equal(decode(encode(layout, ".png")), flat)
    with Pillow.open(io.BytesIO(encode(array, ".png"))) as file:
        assert file.size == (9, 8)
        if n_channels != 2:  # which Pillow reads as RGBA
            assert_array_equal(np.asarray(file), flat if n_channels == 1 else array >> 8)


def test_deep_png_with_a_transparent_colour():
    found = decode(deep_png(DEEP, (b"tRNS", DEEP[2, 3].astype(">u2").tobytes())))
    assert_array_equal(found[..., :3], DEEP)
    assert np.argwhere(found[..., 3] == 0).tolist() == [[2, 3]]
    assert set(np.unique(found[..., 3])) == {0, 65535}


def test_libraries_log_nothing_while_they_read(caplog):
    decode(deep_png(DEEP, is_interlaced=True))  # imagecodecs would log a warning
    assert caplog.records == []
    for name in ("imagecodecs", "tifffile"):
        assert logging.getLogger(name).isEnabledFor(logging.ERROR)


def test_modes_of_pillow():
    assert_array_equal(decode(saved(GREY)), GREY)
    assert_array_equal(decode(saved(BITS)), 255 * BITS)
    assert_array_equal(decode(saved(INDEXED)), np.asarray(INDEXED.convert("RGB")))
    assert_array_equal(decode(saved(INDEXED, transparency=0))[..., 3], 255 * (np.asarray(INDEXED) != 0))
    found = decode(saved(GREY, transparency=int(GREY[0, 0])))
    assert_array_equal(found, np.dstack([GREY, 255 * (GREY[0, 0] != GREY)]))
    found = decode(saved(COLOUR, transparency=tuple(COLOUR[0, 0].tolist())))
    assert_array_equal(found[..., :3], COLOUR)
    assert np.argwhere(found[..., 3] == 0).tolist() == [[0, 0]]


def test_cmyk_becomes_rgb():
    content = io.BytesIO()
    flat = Pillow.fromarray(np.tile(np.array([[[200, 100, 50]]], np.uint8), (16, 16, 1)))
    flat.convert("CMYK").save(content, "JPEG", quality=100)
    with Pillow.open(io.BytesIO(content.getvalue())) as file:
        expected = np.asarray(file.convert("RGB"))
    assert_array_equal(decode(content.getvalue()), expected)
    np.testing.assert_allclose(expected[8, 8], [200, 100, 50], atol=4)


def test_many_pictures():
    for pictures in ((GREY, 255 - GREY), (GREY, GREY.T[:8], GREY[::2])):
        first, *others = (Pillow.fromarray(picture) for picture in pictures)
        with pytest.raises(UserError, match=f"holds {len(pictures)} pictures"):
            decode(saved(first, save_all=True, append_images=others))
    photo, preview = Pillow.fromarray(COLOUR), Pillow.fromarray(COLOUR[::2, ::2])
    mpo = saved(photo, "MPO", save_all=True, append_images=[preview])
    with Pillow.open(io.BytesIO(mpo)) as file:
        assert_array_equal(decode(mpo), np.asarray(file))


def upright(content, mode=None):
    with Pillow.open(io.BytesIO(content)) as file:
        return np.asarray(ImageOps.exif_transpose(file).convert(mode or file.mode))


@pytest.mark.parametrize("orientation", range(10))
def test_photographs_are_turned_upright(orientation):
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    for array in (GREY, COLOUR, DEEP[..., 0]):
        assert_array_equal(decode(saved(array, exif=exif)), upright(saved(array, exif=exif)))
    assert_array_equal(decode(saved(INDEXED, exif=exif)), upright(saved(INDEXED, exif=exif), "RGB"))
    content = saved(COLOUR, "JPEG", exif=exif)
    assert_array_equal(decode(content), upright(content))
    deep = deep_png(COLOUR.astype(np.uint16) * 257, (b"eXIf", exif.tobytes()[6:]))
    assert_array_equal(decode(deep) // 257, upright(saved(COLOUR, exif=exif)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_tiff_is_turned_upright(orientation):
    for picture, compression in itertools.product((GREY, COLOUR, INDEXED), ("raw", "tiff_lzw")):
        content = saved(picture, "TIFF", compression=compression, tiffinfo={274: orientation})
        assert_array_equal(decode(content), upright(content, "RGB" if picture is INDEXED else None))


@pytest.mark.parametrize("compression", [None, "lzw", "zlib", "packbits", "zstd"])
@pytest.mark.parametrize("byteorder", "<>")
def test_compressions_of_tiff(compression, byteorder):
    arrays = (GREY, COLOUR, DEEP, DEEP[..., 0], DEEP.astype(np.float32) / 9, DEEP[..., 0] / 7)
    for array in arrays:
        photometric = "minisblack" if array.ndim == 2 else "rgb"
        found = decode(tiff(array, photometric=photometric, compression=compression, byteorder=byteorder))
        assert found.dtype == array.dtype
        assert_array_equal(found, array)


def test_fax_jpeg_and_palette_in_tiff():
    bits = Pillow.fromarray(BITS)
    for compression in ("raw", "group3", "group4", "tiff_ccitt", "packbits", "tiff_lzw"):
        assert_array_equal(decode(saved(bits, "TIFF", compression=compression)), 255 * BITS)
    content = saved(bits, "TIFF", compression="group4", tiffinfo={274: 6})
    assert_array_equal(decode(content), np.rot90(255 * BITS, -1))
    smooth = Pillow.fromarray(COLOUR).resize((32, 40), Pillow.Resampling.BICUBIC)
    for content in (saved(smooth, "TIFF", compression="jpeg"), tiff(np.asarray(smooth), compression="jpeg")):
        with Pillow.open(io.BytesIO(content)) as file:  # the second file is YCbCr
            np.testing.assert_allclose(decode(content).astype(int), np.asarray(file).astype(int), atol=2)
    for compression in ("raw", "tiff_lzw"):
        assert_array_equal(decode(saved(INDEXED, "TIFF", compression=compression)), INDEXED.convert("RGB"))
        content = saved(INDEXED.convert("PA"), "TIFF", compression=compression)
        assert_array_equal(decode(content), INDEXED.convert("RGBA"))


def test_photometric_interpretations():
    assert_array_equal(decode(tiff(GREY, photometric="miniswhite")), 255 - GREY)
    assert_array_equal(decode(tiff(DEEP[..., 0], photometric="miniswhite")), 65535 - DEEP[..., 0])
    assert_array_equal(decode(tiff(GREY / 9, photometric="miniswhite")), GREY / 9)  # has no white
    assert_array_equal(decode(tiff(BITS)), 255 * BITS)
    negative = tiff(BITS, photometric="miniswhite", metadata=None)  # not known to be an array of Booleans
    assert_array_equal(decode(negative), 255 * ~BITS)
    packed = GREY[:, :8] >> 4
    content = bytearray(tiff(packed[:, ::2] << 4 | packed[:, 1::2], photometric="minisblack", metadata=None))
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        tags = file.pages[0].tags
        offsets = {tags["ImageWidth"].valueoffset: 8, tags["BitsPerSample"].valueoffset: 4}
    for offset, value in offsets.items():
        content[offset] = value
    assert_array_equal(decode(bytes(content)), packed * 17)  # 0..15 becomes 0..255


def test_layouts_of_tiff():
    planes = np.moveaxis(DEEP, -1, 0)
    assert_array_equal(decode(tiff(planes, photometric="rgb", planarconfig="separate")), DEEP)
    for n_channels in (2, 3, 4):
        pages = RNG.random((8, 9, n_channels), dtype=np.float32)
        assert_array_equal(decode(tiff(pages, photometric="minisblack")), pages)  # 8 pages
    assert_array_equal(decode(tiff(GREY, bigtiff=True)), GREY)
    for sizes in itertools.permutations((1, 2)):  # a thumbnail before or behind it
        buffer = io.BytesIO()
        with tifffile.TiffWriter(buffer) as file:
            for step in sizes:
                file.write(GREY[::step, ::step], photometric="minisblack", subfiletype=step - 1)
        assert_array_equal(decode(buffer.getvalue()), GREY)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tiff(np.zeros((5, 8, 9), np.uint8), photometric="minisblack"), "holds 5 pictures"),
        (tiff(np.zeros((2, 3, 8, 9), np.uint8), imagej=True), "holds 6 pictures"),
        (tiff(np.zeros((5, 32, 32), np.uint8), volumetric=True, tile=(16, 16, 16)), "holds 5 pictures"),
        (tiff(np.zeros((8, 9, 4), np.uint8), photometric="separated"), "colours of kind SEPARATED"),
        (tiff(COLOUR, photometric="cielab"), "colours of kind CIELAB"),
        (saved(GREY, "GIF", save_all=True, append_images=[Pillow.fromarray(GREY[::-1])]), "holds 2 pictures"),
    ],
)
def test_pictures_that_are_not_read(content, message):
    with pytest.raises(UserError, match=message):
        decode(content)


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
        assert_array_equal(found.pixels, whole.pixels)


def test_unreadable_files(tmp_path, monkeypatch):
    assert problem(tmp_path / "none.png").endswith("No such file or directory")
    assert problem(tmp_path).endswith("a folder; must be a file")
    path, whole = tmp_path / "a.png", saved(random_array("uint8", (32, 32)))
    for content, message in (
        (b"", "the file is empty"),
        *((each, "not a PNG, JPEG, TIFF, BMP, WebP, GIF or NumPy file") for each in OTHER_FILES),
        *((head + bytes(30), "damaged or truncated") for head in HEADS),
        (whole[:300], "damaged or truncated image (image file is truncated)"),
    ):
        path.write_bytes(content)
        assert message in problem(path)
    path.write_bytes(whole)
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


@pytest.mark.parametrize(
    "array", [*map(np.zeros, ((0, 3), 4, (2, 2, 2, 2))), 1j * DEEP, np.array([["a"]]), np.full((3, 3), 2**60)]
)
def test_unsuitable_arrays(array):
    with pytest.raises(UserError, match=r"is not a picture|are not read|too large to be exact"):
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
    assert_array_equal(image.pixels[~image.missing], array[~image.missing])


@pytest.mark.parametrize(
    ("array", "pixels", "expected"),
    [
        (np.array([[0, 255]], np.uint8), [[-3.0, 270.0], [7.6, 7.4]], [[0, 255], [8, 7]]),
        (np.array([[-30000, 32000]], np.int16), [[-40000.0, 99.6], [0.4, 50000.0]], [[-32768, 100], [0, 32767]]),
        (np.array([[True, False]]), [[1.3, 0.4]], [[True, False]]),
    ],
)
def test_output_is_rounded_and_stays_within_its_type(array, pixels, expected):
    image, given = from_array(array), np.array(pixels)[..., None]
    assert_array_equal(to_output(given, image), expected)
    assert_array_equal(given[..., 0], pixels)  # not modified
    if array.dtype == np.uint8:
        assert_array_equal(to_png(given, image), expected)


@pytest.mark.parametrize(("highest", "peak"), [(200, 255), (1000, 1023), (4095, 4095), (4096, 16383), (20000, 65535)])
def test_the_bits_of_16_bit_files_are_those_that_are_used(highest, peak):
    assert from_array(np.array([[0, highest]], np.uint16)).peak == peak


def test_a_clean_picture_with_fewer_bits_has_the_same_units(tmp_path):
    noisy, clean = np.full((8, 9), 5000, np.uint16), np.full((8, 9), 4000, np.uint16)
    noisy[0, 0] = clean[0, 0] = 10
    write_image(tmp_path / "noisy.png", noisy)
    write_image(tmp_path / "clean.png", clean)
    config = small_config(
        dataset=ImageConfig(name="file"), image=str(tmp_path / "noisy.png"), clean=str(tmp_path / "clean.png")
    )
    picture = config.dataset.open(config)
    assert picture.peak == 16383
    assert_array_equal(picture.clean[..., 0], clean)


def test_float_tiff(tmp_path):
    pixels = random_array("float64", (5, 6, 3)) * 300 - 20
    write_tiff(tmp_path / "a.tif", pixels)
    image = read_image(tmp_path / "a.tif")
    assert image.dtype == np.float32
    assert_array_equal(image.pixels, pixels.astype(np.float32))


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
