"""Files of stacks: what was written is read, with axes, alpha, number of pages and orientation as declared."""

import io
import struct
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import tifffile
from PIL import Image as Pillow
from PIL import ImageOps

from tests.tiny import TINY, tiny_picture
from tvae.errors import UserError
from tvae.io.image_file import to_output
from tvae.io.layout import Layout
from tvae.io.scale import Scale
from tvae.io.stack_file import read_picture, write_picture

pytestmark = pytest.mark.usefixtures("in_folder")

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 65535, (4, 8, 9), dtype=np.uint16)
FRAMES = (GREY >> 8).astype(np.uint8)
COLOUR = RNG.integers(0, 255, (2, 8, 9, 3), dtype=np.uint8)
BANDS = RNG.integers(0, 255, (12, 10, 4), dtype=np.uint8)
STACK = RNG.integers(0, 255, (4, 12, 10), dtype=np.uint8)


def written_again(image):
    """The array that tifffile reads from again.tif, to which an image was written."""
    array = to_output(image.pixels, image)
    write_picture(Path("again.tif"), array, image.layout, image.scale, image.last_channel)
    return tifffile.imread("again.tif")


@pytest.mark.parametrize(
    "options", [{}, {"imagej": True}, {"metadata": {"axes": "TYX"}}, {"metadata": None}, {"ome": True}]
)
def test_grey_tiff(options):
    tifffile.imwrite("stack.tif", GREY, photometric="minisblack", **options)
    image = read_picture("stack.tif")
    assert (image.n_pages, image.pixels.shape, image.dtype) == (4, (32, 9, 1), np.uint16)
    np.testing.assert_array_equal(image.pixels[8:16, :, 0], GREY[1])
    np.testing.assert_array_equal(written_again(image), GREY)
    assert len(tifffile.TiffFile("again.tif").pages) == 4


def test_colour_tiff():
    tifffile.imwrite("stack.tif", COLOUR, photometric="rgb")
    image = read_picture("stack.tif")
    assert (image.n_pages, image.pixels.shape) == (2, (16, 9, 3))
    np.testing.assert_array_equal(written_again(image), COLOUR)
    assert read_picture("again.tif").n_pages == 2


def test_channels_of_a_microscope_are_pages_unless_they_are_three():
    tifffile.imwrite("five.tif", RNG.random((5, 8, 9), dtype=np.float32), imagej=True, metadata={"axes": "CYX"})
    assert read_picture("five.tif").n_pages == 5
    tifffile.imwrite("three.tif", RNG.random((3, 8, 9), dtype=np.float32), imagej=True, metadata={"axes": "CYX"})
    image = read_picture("three.tif")
    assert (image.n_pages, image.pixels.shape) == (1, (8, 9, 3))
    assert written_again(image).shape == (3, 8, 9)
    assert read_picture("three.tif", axes="ZYX").n_pages == 3


def test_some_pages():
    tifffile.imwrite("stack.tif", GREY, photometric="minisblack")
    image = read_picture("stack.tif", pages="2,0")
    np.testing.assert_array_equal(written_again(image), GREY[[2, 0]])
    with pytest.raises(UserError, match="the pages are 0 to 3"):
        read_picture("stack.tif", pages="4")


@pytest.mark.parametrize("ending", [".gif", ".png", ".webp"])
def test_animated_files(ending):
    frames = np.stack([np.full((12, 10, 3), 40 * i, np.uint8) for i in range(1, 4)])
    iio.imwrite(f"moving{ending}", frames, plugin="pillow", is_batch=True)
    image = read_picture(f"moving{ending}")
    assert (image.n_pages, image.pixels.shape[:2]) == (3, (36, 10))
    write_picture(Path(f"again{ending}"), to_output(image.pixels, image), image.layout)
    again = read_picture(f"again{ending}")
    assert again.n_pages == 3
    np.testing.assert_allclose(again.pixels[..., 0].mean(1), image.pixels[..., 0].mean(1), atol=6)


@pytest.mark.parametrize("ending", [".gif", ".png"])
def test_grey_frames_stay_grey_and_as_fast(ending):
    first, *others = [Pillow.fromarray(page) for page in FRAMES]
    first.save(f"moving{ending}", save_all=True, append_images=others, duration=120)
    image = read_picture(f"moving{ending}")
    np.testing.assert_array_equal(to_output(image.pixels, image), FRAMES)
    for kind in (".gif", ".png", ".webp"):
        write_picture(Path(f"again{kind}"), FRAMES, image.layout, image.scale)
        with Pillow.open(f"again{kind}") as again:
            again.seek(1)
            again.load()
            assert (again.n_frames, again.info["duration"], again.info["loop"]) == (len(FRAMES), 120, 0)
    write_picture(Path("again.tif"), FRAMES, image.layout, image.scale)
    with tifffile.TiffFile("again.tif") as file:
        assert file.imagej_metadata["finterval"] == 0.12
    for interval in (np.nan, np.inf, -1.0, "often"):
        write_picture(Path("again.gif"), FRAMES, image.layout, Scale(program="imagej", notes={"finterval": interval}))
    slow = Scale(program="imagej", notes={"finterval": 7200.0})
    write_picture(Path("slow.png"), FRAMES, image.layout, slow)
    assert read_picture("slow.png").n_pages == len(FRAMES)


def test_arrays():
    np.save("stack.npy", GREY)
    assert read_picture("stack.npy").n_pages == 4
    np.save("one.npy", COLOUR.astype(np.float32)[0].transpose(2, 0, 1))
    image = read_picture("one.npy", axes="CYX")
    assert (image.n_pages, image.pixels.shape) == (1, (8, 9, 3))
    with pytest.raises(UserError, match="2 axes, but the array has 3"):
        read_picture("stack.npy", axes="YX")


def test_one_picture_is_no_stack():
    tifffile.imwrite("one.tif", GREY[0])
    assert read_picture("one.tif").layout is None
    with pytest.raises(UserError, match="holds one picture"):
        read_picture("one.tif", pages="0")


def test_pictures_of_different_sizes_are_refused():
    with tifffile.TiffWriter("two.tif") as file:
        file.write(GREY[0])
        file.write(GREY[0, :5])
    with pytest.raises(UserError, match="different sizes"):
        read_picture("two.tif")


def scale_of(path):
    with tifffile.TiffFile(path) as file:
        tags = file.pages.first.tags
        per_unit = [tags[name].value[0] / tags[name].value[1] for name in ("XResolution", "YResolution")]
        return file, file.series[0].axes, per_unit, tags["ResolutionUnit"].value


def test_imagej_keeps_its_scale_and_its_interval():
    stack = RNG.integers(0, 65535, (3, 2, 8, 9), dtype=np.uint16)
    noted = {"axes": "TZYX", "unit": "um", "spacing": 2.5, "finterval": 0.5}
    tifffile.imwrite("stack.tif", stack, imagej=True, resolution=(4.0, 5.0), metadata=noted)
    np.testing.assert_array_equal(written_again(read_picture("stack.tif")), stack)
    file, axes, per_unit, unit = scale_of("again.tif")
    assert (file.is_imagej, axes, per_unit, unit) == (True, "TZYX", pytest.approx([4, 5]), 1)
    found = file.imagej_metadata
    assert [found[key] for key in ("unit", "spacing", "finterval", "frames", "slices")] == ["um", 2.5, 0.5, 3, 2]
    written_again(read_picture("stack.tif", pages="0,5"))
    found = tifffile.TiffFile("again.tif").imagej_metadata
    assert found["unit"] == "um"
    assert not {"spacing", "finterval"} & found.keys()


def test_ome_keeps_its_scale_and_its_interval():
    noted = {
        "axes": "TCYX", "PhysicalSizeX": 0.25, "PhysicalSizeXUnit": "nm", "PhysicalSizeY": 0.2,
        "PhysicalSizeYUnit": "nm", "TimeIncrement": 40.0, "TimeIncrementUnit": "ms",
    }  # fmt: skip
    stack = RNG.random((4, 2, 8, 9), dtype=np.float32)
    tifffile.imwrite("stack.tif", stack, ome=True, photometric="minisblack", metadata=noted)
    np.testing.assert_array_equal(written_again(read_picture("stack.tif")), stack)
    file, axes, per_unit, unit = scale_of("again.tif")
    assert (file.is_ome, axes, per_unit, unit) == (True, "TCYX", pytest.approx([4e7, 5e7]), 3)
    for key, value in noted.items():
        assert key == "axes" or f'{key}="{value}"' in file.ome_metadata


def test_what_imagej_cannot_hold_has_the_resolution():
    stack = RNG.normal(size=(3, 8, 9))
    tifffile.imwrite("stack.tif", stack.astype(np.float32), imagej=True, resolution=(4.0, 5.0), metadata={"unit": "um"})
    scale = read_picture("stack.tif").scale
    write_picture(Path("again.tif"), stack, Layout("TYX", stack.shape), scale)
    file, axes, per_unit, unit = scale_of("again.tif")
    assert (file.is_imagej, axes, per_unit, unit) == (False, "TYX", pytest.approx([4e4, 5e4]), 3)
    np.testing.assert_array_equal(tifffile.imread("again.tif"), stack)


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
    np.testing.assert_array_equal(written_again(image), array)
    page = tifffile.TiffFile("again.tif").pages.first
    assert [sample.name.lower() for sample in page.extrasamples] == [kind]
    assert page.planarconfig == (2 if planar else 1)


def test_premultiplied_colours_stay_within_their_alpha():
    """What is transparent has no light of its own; a colour that had more than its alpha may keep it."""
    alpha = np.linspace(0, 255, 12 * 10).reshape(12, 10).astype(np.uint8)
    array = np.minimum(BANDS[..., :4], alpha[..., None])
    array[0, 0, 0] = 9
    for colours in (array, np.stack([array, array])):
        tifffile.imwrite(
            "a.tif",
            np.append(colours[..., :3], np.broadcast_to(alpha[..., None], (*colours.shape[:-1], 1)), -1),
            photometric="rgb",
            extrasamples=["assocalpha"],
        )
        image = read_picture("a.tif")
        restored = to_output(image.pixels + 20, image)
        np.testing.assert_array_equal(restored[..., 3], np.broadcast_to(alpha, colours.shape[:-1]))
        limit = np.maximum(alpha[..., None], colours[..., :3])
        np.testing.assert_array_equal(restored[..., :3], np.minimum(colours[..., :3].astype(int) + 20, limit))


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


@pytest.mark.parametrize("program", ["imagej", "ome"])
@pytest.mark.parametrize("n_claimed", [1, 2, 5, 9])
def test_other_pages_than_there_are(program, n_claimed):
    tifffile.imwrite("a.tif", STACK, metadata={"axes": "ZYX"}, **{program: True})
    content = Path("a.tif").read_bytes()
    for note in (b'SizeZ="%d"', b"images=%d", b"slices=%d"):
        content = content.replace(note % 4, note % n_claimed)
    Path("a.tif").write_bytes(content)
    with pytest.raises(UserError, match=f"declares {n_claimed} pages and holds 4"):
        read_picture("a.tif")


def pages_one_after_the_other(pages):
    """A TIFF file as libtiff writes it: each page is followed by its directory, which leads to the next one."""
    content, link = bytearray(b"II*\0\0\0\0\0"), 4
    for page in pages:
        place = len(content)
        content += page.tobytes()
        content[link : link + 4] = len(content).to_bytes(4, "little")
        sizes = ((256, page.shape[1]), (257, page.shape[0]), (258, 8), (259, 1), (262, 1), (273, place), (277, 1))
        tags = (*sizes, (278, page.shape[0]), (279, page.size))
        content += struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, n) for tag, n in tags)
        link = len(content)
        content += bytes(4)
    return bytes(content)


def test_pages_that_were_cut_off():
    """No page is lost without a word, wherever the file was cut."""
    tifffile.imwrite("a.tif", STACK, imagej=True)
    n_at_end = 16  # bytes that hold the size of a pixel
    for content in (Path("a.tif").read_bytes()[:-n_at_end], pages_one_after_the_other(STACK)):
        Path("a.tif").write_bytes(content)
        assert read_picture("a.tif").n_pages == 4
        for length in range(8, len(content)):
            Path("a.tif").write_bytes(content[:length])
            with pytest.raises(UserError, match="damaged or truncated"):
                read_picture("a.tif")


@pytest.mark.parametrize("is_progressive", [False, True])
def test_a_jpeg_stream_without_its_end(is_progressive):
    """Zeros in the place of the end, which decoders show as grey; what follows the end does no harm."""
    exif = Pillow.Exif()
    exif[270] = "\xff\xd9" * 9  # as at the end of a thumbnail
    picture = Pillow.fromarray(np.kron(STACK[0], np.ones((8, 8), np.uint8)))
    picture.save("a.jpg", exif=exif, progressive=is_progressive)
    content = Path("a.jpg").read_bytes()
    Path("more.jpg").write_bytes(content + b"\0\0\xff\xda, and a program's own notes")
    assert read_picture("more.jpg").pixels.shape == (96, 80, 1)
    for share in (0.5, 0.8, 0.95, 0.999):
        length = int(share * len(content))
        Path("zeros.jpg").write_bytes(content[:length].ljust(len(content), b"\0"))
        with pytest.raises(UserError, match="damaged or truncated"):
            read_picture("zeros.jpg")


def test_a_jpeg_stream_in_a_tiff_without_its_end():
    tifffile.imwrite("a.tif", np.kron(STACK[0], np.ones((16, 16), np.uint8)), compression="jpeg", metadata=None)
    page = tifffile.TiffFile("a.tif").pages.first
    start, count = page.dataoffsets[0], page.databytecounts[0]
    content = bytearray(Path("a.tif").read_bytes())
    content[start + count * 4 // 5 : start + count] = bytes(count - count * 4 // 5)
    Path("a.tif").write_bytes(content)
    with pytest.raises(UserError, match="the end of the JPEG stream is missing"):
        read_picture("a.tif")


def test_damaged_stacks_are_called_so():
    first, *others = [Pillow.fromarray(page) for page in FRAMES]
    for kind in (".gif", ".png"):
        first.save(f"a{kind}", save_all=True, append_images=others)
        Path(f"a{kind}").write_bytes(Path(f"a{kind}").read_bytes()[:-40])
    tifffile.imwrite("a.tif", STACK, compression="zlib", photometric="minisblack", metadata=None)
    start = tifffile.TiffFile("a.tif").pages[2].dataoffsets[0]
    content = bytearray(Path("a.tif").read_bytes())
    content[start : start + 4] = b"nope"
    Path("a.tif").write_bytes(content)
    for kind in (".gif", ".png", ".tif"):
        with pytest.raises(UserError, match=rf"^a{kind}: damaged or truncated image"):
            read_picture(f"a{kind}")


@pytest.mark.parametrize("program", ["imagej", "ome", None])
def test_channels_without_a_scale_stay_channels(program):
    for stack, axes in ((GREY[:2], "CYX"), (GREY, "CYX"), (GREY.reshape(2, 2, 8, 9), "TCYX")):
        how = {} if program is None else {program: True}
        tifffile.imwrite("a.tif", stack, photometric="minisblack", metadata={"axes": axes}, **how)
        np.testing.assert_array_equal(written_again(read_picture("a.tif")), stack)
        with tifffile.TiffFile("again.tif") as file:
            assert (file.series[0].axes, file.is_imagej, file.is_ome) == (axes, program == "imagej", program == "ome")
        some = read_picture("a.tif", pages="1")
        np.testing.assert_array_equal(written_again(some).squeeze(), stack.reshape(-1, 8, 9)[1])
    tifffile.imwrite("a.tif", GREY, imagej=True, metadata={"axes": "CYX"})
    written_again(read_picture("a.tif", pages="0-2"))
    assert read_picture("again.tif").n_pages == 3, "three of four channels are no colours"


def test_nothing_but_the_picture_is_told(caplog):
    tifffile.imwrite("a.tif", STACK, photometric="minisblack", extratags=[(274, "H", 1, 0, False)])
    assert read_picture("a.tif").n_pages == 4
    assert caplog.records == []
