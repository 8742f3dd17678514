"""Kinds of PNG, JPEG and TIFF: compared with Pillow, tifffile and a PNG encoder of a dozen lines."""

import io
import itertools
import logging
import struct
import zlib

import numpy as np
import pytest
import tifffile
from PIL import Image as Pillow
from PIL import ImageOps

from tvae.errors import UserError
from tvae.io.image_codec import decode
from tvae.io.image_encoding import encode

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (8, 9), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (8, 9, 3), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, (8, 9, 3), dtype=np.uint16)
INDEXED = Pillow.fromarray(COLOUR).quantize(16)
COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # channels: the number in a PNG file
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


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
        np.testing.assert_array_equal(found, array)
    with Pillow.open(io.BytesIO(encode(array, ".tiff"))) as file:
        np.testing.assert_array_equal(np.asarray(file), flat)
        assert file.mode == {(): "L", (1,): "L", (2,): "LA", (3,): "RGB", (4,): "RGBA"}[shape[2:]]


@pytest.mark.parametrize("n_channels", [1, 2, 3, 4])
def test_deep_png(n_channels):
    array = RNG.integers(0, 65536, (8, 9, n_channels), dtype=np.uint16)
    flat = array[..., 0] if n_channels == 1 else array
    for content in (deep_png(array), deep_png(array, is_interlaced=True)):
        np.testing.assert_array_equal(decode(content), flat)
    for layout in (array, array[::-1, ::-1][::-1, ::-1], np.asfortranarray(array)):
        np.testing.assert_array_equal(decode(encode(layout, ".png")), flat)
    with Pillow.open(io.BytesIO(encode(array, ".png"))) as file:
        assert file.size == (9, 8)
        if n_channels != 2:  # which Pillow reads as RGBA
            np.testing.assert_array_equal(np.asarray(file), flat if n_channels == 1 else array >> 8)


def test_deep_png_with_a_transparent_colour():
    found = decode(deep_png(DEEP, (b"tRNS", DEEP[2, 3].astype(">u2").tobytes())))
    np.testing.assert_array_equal(found[..., :3], DEEP)
    assert np.argwhere(found[..., 3] == 0).tolist() == [[2, 3]]
    assert set(np.unique(found[..., 3])) == {0, 65535}


def test_libraries_log_nothing_while_they_read(caplog):
    decode(deep_png(DEEP, is_interlaced=True))  # imagecodecs would log a warning
    assert caplog.records == []
    for name in ("imagecodecs", "tifffile"):
        assert logging.getLogger(name).isEnabledFor(logging.ERROR)


def test_modes_of_pillow():
    np.testing.assert_array_equal(decode(saved(GREY)), GREY)
    np.testing.assert_array_equal(decode(saved(GREY > 99)), 255 * (GREY > 99))
    np.testing.assert_array_equal(decode(saved(INDEXED)), np.asarray(INDEXED.convert("RGB")))
    np.testing.assert_array_equal(decode(saved(INDEXED, transparency=0))[..., 3], 255 * (np.asarray(INDEXED) != 0))
    found = decode(saved(GREY, transparency=int(GREY[0, 0])))
    np.testing.assert_array_equal(found, np.dstack([GREY, 255 * (GREY[0, 0] != GREY)]))
    found = decode(saved(COLOUR, transparency=tuple(COLOUR[0, 0].tolist())))
    np.testing.assert_array_equal(found[..., :3], COLOUR)
    assert np.argwhere(found[..., 3] == 0).tolist() == [[0, 0]]


def test_many_pictures():
    for pictures in ((GREY, 255 - GREY), (GREY, GREY.T[:8], GREY[::2])):
        first, *others = (Pillow.fromarray(picture) for picture in pictures)
        with pytest.raises(UserError, match=f"holds {len(pictures)} pictures"):
            decode(saved(first, save_all=True, append_images=others))
    photo, preview = Pillow.fromarray(COLOUR), Pillow.fromarray(COLOUR[::2, ::2])
    mpo = saved(photo, "MPO", save_all=True, append_images=[preview])
    with Pillow.open(io.BytesIO(mpo)) as file:
        np.testing.assert_array_equal(decode(mpo), np.asarray(file))


def upright(content, mode=None):
    with Pillow.open(io.BytesIO(content)) as file:
        return np.asarray(ImageOps.exif_transpose(file).convert(mode or file.mode))


@pytest.mark.parametrize("orientation", range(10))
def test_photographs_are_turned_upright(orientation):
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    for array in (GREY, COLOUR, DEEP[..., 0]):
        np.testing.assert_array_equal(decode(saved(array, exif=exif)), upright(saved(array, exif=exif)))
    np.testing.assert_array_equal(decode(saved(INDEXED, exif=exif)), upright(saved(INDEXED, exif=exif), "RGB"))
    content = saved(COLOUR, "JPEG", exif=exif)
    np.testing.assert_array_equal(decode(content), upright(content))
    deep = deep_png(COLOUR.astype(np.uint16) * 257, (b"eXIf", exif.tobytes()[6:]))
    np.testing.assert_array_equal(decode(deep) // 257, upright(saved(COLOUR, exif=exif)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_tiff_is_turned_upright(orientation):
    for picture, compression in itertools.product((GREY, COLOUR, INDEXED), ("raw", "tiff_lzw")):
        content = saved(picture, "TIFF", compression=compression, tiffinfo={274: orientation})
        np.testing.assert_array_equal(decode(content), upright(content, "RGB" if picture is INDEXED else None))


@pytest.mark.parametrize("compression", [None, "lzw", "zlib", "packbits", "zstd"])
@pytest.mark.parametrize("byteorder", "<>")
def test_compressions_of_tiff(compression, byteorder):
    arrays = (GREY, COLOUR, DEEP, DEEP[..., 0], DEEP.astype(np.float32) / 9, DEEP[..., 0] / 7)
    for array in arrays:
        photometric = "minisblack" if array.ndim == 2 else "rgb"
        found = decode(tiff(array, photometric=photometric, compression=compression, byteorder=byteorder))
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_fax_jpeg_and_palette_in_tiff():
    bits = Pillow.fromarray(GREY > 99)
    for compression in ("raw", "group3", "group4", "tiff_ccitt", "packbits", "tiff_lzw"):
        np.testing.assert_array_equal(decode(saved(bits, "TIFF", compression=compression)), 255 * (GREY > 99))
    content = saved(bits, "TIFF", compression="group4", tiffinfo={274: 6})
    np.testing.assert_array_equal(decode(content), np.rot90(255 * (GREY > 99), -1))
    smooth = Pillow.fromarray(COLOUR).resize((32, 40), Pillow.Resampling.BICUBIC)
    for content in (saved(smooth, "TIFF", compression="jpeg"), tiff(np.asarray(smooth), compression="jpeg")):
        with Pillow.open(io.BytesIO(content)) as file:  # the second file is YCbCr
            np.testing.assert_allclose(decode(content).astype(int), np.asarray(file).astype(int), atol=2)
    for compression in ("raw", "tiff_lzw"):
        np.testing.assert_array_equal(decode(saved(INDEXED, "TIFF", compression=compression)), INDEXED.convert("RGB"))
        content = saved(INDEXED.convert("PA"), "TIFF", compression=compression)
        np.testing.assert_array_equal(decode(content), INDEXED.convert("RGBA"))


def test_photometric_interpretations():
    np.testing.assert_array_equal(decode(tiff(GREY, photometric="miniswhite")), 255 - GREY)
    np.testing.assert_array_equal(decode(tiff(DEEP[..., 0], photometric="miniswhite")), 65535 - DEEP[..., 0])
    np.testing.assert_array_equal(decode(tiff(GREY / 9, photometric="miniswhite")), GREY / 9)  # has no white
    np.testing.assert_array_equal(decode(tiff(GREY > 99)), 255 * (GREY > 99))
    negative = tiff(GREY > 99, photometric="miniswhite", metadata=None)  # not known to be an array of Booleans
    np.testing.assert_array_equal(decode(negative), 255 * (GREY <= 99))
    packed = GREY[:, :8] >> 4
    content = bytearray(tiff(packed[:, ::2] << 4 | packed[:, 1::2], photometric="minisblack", metadata=None))
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        tags = file.pages[0].tags
        offsets = {tags["ImageWidth"].valueoffset: 8, tags["BitsPerSample"].valueoffset: 4}
    for offset, value in offsets.items():
        content[offset] = value
    np.testing.assert_array_equal(decode(bytes(content)), packed * 17)  # 0..15 becomes 0..255


def test_layouts_of_tiff():
    planes = np.moveaxis(DEEP, -1, 0)
    np.testing.assert_array_equal(decode(tiff(planes, photometric="rgb", planarconfig="separate")), DEEP)
    for n_channels in (2, 3, 4):
        pages = RNG.random((8, 9, n_channels), dtype=np.float32)
        np.testing.assert_array_equal(decode(tiff(pages, photometric="minisblack")), pages)  # 8 pages
    np.testing.assert_array_equal(decode(tiff(GREY, bigtiff=True)), GREY)
    for sizes in itertools.permutations((1, 2)):  # a thumbnail before or behind it
        buffer = io.BytesIO()
        with tifffile.TiffWriter(buffer) as file:
            for step in sizes:
                file.write(GREY[::step, ::step], photometric="minisblack", subfiletype=step - 1)
        np.testing.assert_array_equal(decode(buffer.getvalue()), GREY)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tiff(np.zeros((5, 8, 9), np.uint8), photometric="minisblack"), "holds 5 pictures"),
        (tiff(np.zeros((2, 3, 8, 9), np.uint8), imagej=True), "holds 6 pictures"),
        (tiff(np.zeros((5, 32, 32), np.uint8), volumetric=True, tile=(16, 16, 16)), "holds 5 pictures"),
        (tiff(np.zeros((8, 9, 4), np.uint8), photometric="separated"), "colours of kind SEPARATED"),
        (tiff(COLOUR, photometric="cielab"), "colours of kind CIELAB"),
    ],
)
def test_pictures_that_are_not_read(content, message):
    with pytest.raises(UserError, match=message):
        decode(content)
