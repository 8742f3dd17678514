"""Files of stacks: what was written is read, with its axes."""

from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import tifffile
from PIL import Image as Pillow

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


def written_again(path, image):
    """Contents of a file after its picture was read and written."""
    write_picture(Path("again.tif"), to_output(image.pixels, image), image.layout, image.scale)
    return tifffile.imread("again.tif")


@pytest.mark.parametrize(
    "options", [{}, {"imagej": True}, {"metadata": {"axes": "TYX"}}, {"metadata": None}, {"ome": True}]
)
def test_grey_tiff(options):
    tifffile.imwrite("stack.tif", GREY, photometric="minisblack", **options)
    image = read_picture("stack.tif")
    assert (image.n_pages, image.pixels.shape, image.dtype) == (4, (32, 9, 1), np.uint16)
    np.testing.assert_array_equal(image.pixels[8:16, :, 0], GREY[1])
    np.testing.assert_array_equal(written_again("stack.tif", image), GREY)
    assert len(tifffile.TiffFile("again.tif").pages) == 4


def test_colour_tiff():
    tifffile.imwrite("stack.tif", COLOUR, photometric="rgb")
    image = read_picture("stack.tif")
    assert (image.n_pages, image.pixels.shape) == (2, (16, 9, 3))
    np.testing.assert_array_equal(written_again("stack.tif", image), COLOUR)
    assert read_picture("again.tif").n_pages == 2


def test_channels_of_a_microscope_are_pages_unless_they_are_three():
    tifffile.imwrite("five.tif", RNG.random((5, 8, 9), dtype=np.float32), imagej=True, metadata={"axes": "CYX"})
    assert read_picture("five.tif").n_pages == 5
    tifffile.imwrite("three.tif", RNG.random((3, 8, 9), dtype=np.float32), imagej=True, metadata={"axes": "CYX"})
    image = read_picture("three.tif")
    assert (image.n_pages, image.pixels.shape) == (1, (8, 9, 3))
    assert written_again("three.tif", image).shape == (3, 8, 9)
    assert read_picture("three.tif", axes="ZYX").n_pages == 3


def test_some_pages():
    tifffile.imwrite("stack.tif", GREY, photometric="minisblack")
    image = read_picture("stack.tif", pages="2,0")
    np.testing.assert_array_equal(written_again("stack.tif", image), GREY[[2, 0]])
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
    np.testing.assert_array_equal(written_again("stack.tif", read_picture("stack.tif")), stack)
    file, axes, per_unit, unit = scale_of("again.tif")
    assert (file.is_imagej, axes, per_unit, unit) == (True, "TZYX", pytest.approx([4, 5]), 1)
    found = file.imagej_metadata
    assert [found[key] for key in ("unit", "spacing", "finterval", "frames", "slices")] == ["um", 2.5, 0.5, 3, 2]
    written_again("stack.tif", read_picture("stack.tif", pages="0,5"))
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
    np.testing.assert_array_equal(written_again("stack.tif", read_picture("stack.tif")), stack)
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
