"""Declarations in a file: its alpha channel, its number of pages, its orientation."""

import io
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image as Pillow
from PIL import ImageOps

from tests.tiny import TINY, tiny_picture
from tvae.errors import UserError
from tvae.io.image_file import to_output
from tvae.io.stack_file import read_picture, write_picture

pytestmark = pytest.mark.usefixtures("in_folder")

RNG = np.random.default_rng(0)
BANDS = RNG.integers(0, 255, (12, 10, 4), dtype=np.uint8)
STACK = RNG.integers(0, 255, (4, 12, 10), dtype=np.uint8)


def written_again(image):
    """The first page of a file that an image was written to, and the array that tifffile reads from it."""
    array = to_output(image.pixels, image)
    write_picture(Path("again.tif"), array, image.layout, image.scale, image.last_channel)
    with tifffile.TiffFile("again.tif") as file:
        return file.pages.first, file.asarray()


@pytest.mark.parametrize("kind", ["unassalpha", "assocalpha", "unspecified"])
@pytest.mark.parametrize("n_channels", [2, 4])
@pytest.mark.parametrize("planar", [False, True])
def test_only_what_a_tiff_declares_as_alpha_is_alpha(kind, n_channels, planar):
    array = BANDS[..., :n_channels]
    array = np.ascontiguousarray(array.transpose(2, 0, 1)) if planar else array
    how = {"planarconfig": "separate" if planar else "contig", "extrasamples": [kind]}
    tifffile.imwrite("a.tif", array, photometric="rgb" if n_channels == 4 else "minisblack", **how)
    image = read_picture("a.tif")
    has_alpha = kind != "unspecified"
    assert image.pixels.shape == (12, 10, n_channels - has_alpha)
    assert (image.alpha is not None) == has_alpha
    page, again = written_again(image)
    np.testing.assert_array_equal(again, array)
    assert [sample.name.lower() for sample in page.extrasamples] == [kind]
    assert page.planarconfig == (2 if planar else 1)


def test_channels_of_arrays_are_no_alpha():
    for axes, array in (("YXC", BANDS), ("TYXC", np.stack([BANDS, BANDS[::-1]])), ("YXC", BANDS[..., :2])):
        np.save("a.npy", array)
        image = read_picture("a.npy", axes=axes if array.ndim == 4 else None)
        assert (image.alpha, image.pixels.shape[2]) == (None, array.shape[-1])
        np.testing.assert_array_equal(to_output(image.pixels, image), array)


@pytest.mark.usefixtures("_no_figures")
def test_every_channel_is_restored(command):
    """A fourth band, and both of a planar file; a PNG file cannot hold them."""
    band = tiny_picture()
    for name, array, how in (
        ("four.tif", np.dstack([band, band.T, 255 - band, band[::-1]]), {"photometric": "rgb"}),
        ("two.tif", np.stack([band, band.T]), {"photometric": "minisblack", "planarconfig": "separate"}),
    ):
        extra = {"extrasamples": ["unspecified"]}
        tifffile.imwrite(name, array, **how, **extra)
        command.ok("denoise", name, f"done_{name}", *TINY, "dataset.patch_size=4", f"hydra.run.dir=run_{name}")
        found = tifffile.imread(f"done_{name}")
        assert found.shape == array.shape
        axes = tuple(np.argsort(array.shape)[1:])  # rows and columns
        assert (found != array).mean(axes).min() > 0.3, "every channel has changed"
        code, out = command("denoise", name, "done.png", *TINY, f"hydra.run.dir=other_{name}")
        assert (code, out.count("\n")) == (2, 1)
        assert "a .png file cannot hold" in out


def test_pages_that_are_declared_and_missing():
    tifffile.imwrite("a.tif", STACK, ome=True, metadata={"axes": "ZYX"})
    Path("more.tif").write_bytes(Path("a.tif").read_bytes().replace(b'SizeZ="4"', b'SizeZ="9"'))
    with pytest.raises(UserError, match=r"more.tif: .*declares 9 pages and holds 4"):
        read_picture("more.tif")
    tifffile.imwrite("a.tif", STACK, imagej=True, metadata={"axes": "ZYX"})
    noted = Path("a.tif").read_bytes()
    assert noted.count(b"images=4") == noted.count(b"slices=4") == 1
    fewer = noted.replace(b"images=4", b"images=3").replace(b"slices=4", b"slices=3")
    Path("fewer.tif").write_bytes(fewer)
    with pytest.raises(UserError, match=r"fewer.tif: .*declares 3 pages and holds 4"):
        read_picture("fewer.tif")
    assert read_picture("a.tif").n_pages == 4


def test_a_tiff_that_was_cut_off():
    """Whatever its compression, at any length: it is refused, or all of it is there."""
    large = np.kron(STACK[0], np.ones((16, 16), np.uint8))
    for compression in ("jpeg", "zlib", "lzw", None):
        tifffile.imwrite("a.tif", large, compression=compression, metadata=None)
        content, whole = Path("a.tif").read_bytes(), read_picture("a.tif").pixels
        for share in np.linspace(0.3, 0.999, 15):
            Path("cut.tif").write_bytes(content[: int(share * len(content))])
            with pytest.raises(UserError, match="damaged or truncated"):
                read_picture("cut.tif")
        assert whole.shape == (192, 160, 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_stacks_are_turned_upright(orientation):
    tag = (274, "H", 1, orientation, False)
    tifffile.imwrite("a.tif", STACK, photometric="minisblack", extratags=[tag])
    exif = Pillow.Exif()
    exif[274] = orientation
    frames = [Pillow.fromarray(np.dstack([page] * 3)) for page in STACK]
    frames[0].save("a.png", save_all=True, append_images=frames[1:], exif=exif)
    for path in ("a.tif", "a.png"):
        image = read_picture(path)
        for page, found in zip(STACK, np.split(image.pixels[..., 0], 4), strict=True):
            Pillow.fromarray(page).save(buffer := io.BytesIO(), "PNG", exif=exif)
            np.testing.assert_array_equal(found, np.asarray(ImageOps.exif_transpose(Pillow.open(buffer))))
    assert read_picture("a.tif", axes="ZYX").pixels.shape == (*image.pixels.shape[:2], 1)
