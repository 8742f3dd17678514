"""Missing pixels: those that count as missing, those that stay as they are, the message if there are none."""

from pathlib import Path

import numpy as np
import pytest

import tvae
from tests.tiny import TINY, tiny_picture
from tvae.errors import UserError
from tvae.io.image_file import read_image, write_image, write_tiff

pytestmark = pytest.mark.usefixtures("_no_figures")

PICTURE = tiny_picture()
HOLE = np.zeros(PICTURE.shape, bool)
HOLE[8:12, 9:14] = True
ALPHA = np.where(HOLE, 0, 200).astype(np.uint8)


def write_pictures():
    write_image(Path("a.png"), PICTURE)
    write_image(Path("zero.png"), np.zeros_like(PICTURE))
    write_image(Path("in_alpha.png"), np.dstack([np.zeros_like(PICTURE), np.where(HOLE, 255, 0).astype(np.uint8)]))
    write_image(Path("hole.png"), np.dstack([PICTURE, ALPHA]))
    write_image(Path("clear.png"), np.dstack([PICTURE, np.zeros_like(PICTURE)]))
    write_tiff(Path("nan.tiff"), np.where(HOLE, np.nan, PICTURE / 255))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["image=a.png"], "a.png: no pixel is missing, so there is nothing to fill in"),
        (["image=a.png", "mask=zero.png"], "zero.png: no pixel is missing, so there is nothing to fill in"),
        (["image=a.png", "mask=in_alpha.png"], "in_alpha.png: no pixel is missing, so there is nothing to fill in"),
        (["image=a.png", "missing=0"], "a.png: no pixel is missing"),
        (["image=a.png", "noise=10", "corruption=gaussian"], "a.png: no pixel is missing"),
        (["image=clear.png"], "clear.png: all pixels are missing"),
    ],
)
def test_nothing_to_fill_in_is_a_mistake(command, options, message):
    write_pictures()
    code, out = command("inpaint", *options, *TINY, "hydra.run.dir=run")
    assert (code, out.count("error: ")) == (2, 1), out
    assert f"error: {message}" in out
    assert not Path("run/config.yaml").exists()


@pytest.mark.parametrize("array", [PICTURE, PICTURE / 255, np.ma.array(PICTURE)], ids=["uint8", "float", "masked"])
@pytest.mark.parametrize("mask", [None, np.zeros(PICTURE.shape)], ids=["none", "zeros"])
def test_nothing_to_fill_in_is_a_mistake_in_a_call(array, mask):
    with pytest.raises(UserError, match="the image: no pixel is missing"):
        tvae.inpaint(array, mask, overrides=TINY)


def test_a_transparent_hole_is_filled_in_and_opaque_and_all_else_stays_byte_for_byte(command):
    write_pictures()
    out = command.ok("inpaint", "image=hole.png", *TINY, "hydra.run.dir=run")
    assert "20 pixels are transparent: they count as missing, and will be opaque" in out
    restored = read_image("run/restored.png")
    assert np.array_equal(restored.pixels[~HOLE, 0], PICTURE[~HOLE])
    assert np.array_equal(restored.alpha, np.where(HOLE, 255, ALPHA))
    assert (restored.pixels[HOLE, 0] != PICTURE[HOLE]).any()


def test_to_denoise_leaves_alpha_alone_and_says_so(command):
    write_pictures()
    out = command.ok("denoise", "image=hole.png", *TINY, "hydra.run.dir=run")
    assert "20 pixels are transparent: they are treated as any others, and stay transparent" in out
    assert np.array_equal(read_image("run/restored.png").alpha, ALPHA)
    command.ok("denoise", "image=a.png", *TINY, "hydra.run.dir=opaque")
    assert np.array_equal(read_image("run/restored.png").pixels, read_image("opaque/restored.png").pixels)


def test_known_pixels_are_changed_only_if_that_is_asked_for(command):
    write_pictures()
    kept = []
    for name, options in {"kept": [], "changed": ["keep_known=false"]}.items():
        command.ok("inpaint", "image=nan.tiff", *TINY, *options, f"hydra.run.dir={name}")
        pixels, before = (read_image(f"{file}.tiff").pixels[~HOLE] for file in (f"{name}/restored", "nan"))
        kept.append((pixels == before).mean())
    assert kept[0] == 1
    assert kept[1] < 0.1
    code, out = command("denoise", "image=a.png", "keep_known=true", "hydra.run.dir=refused")
    assert (code, out) == (2, "error: keep_known=true: is for inpaint; to denoise is to change known pixels\n")


def test_what_is_masked_in_an_array_is_missing():
    hidden = np.where(HOLE, 255, PICTURE).astype(np.uint8)
    masked = tvae.inpaint(np.ma.array(hidden, mask=HOLE), overrides=TINY)
    assert np.array_equal(masked, tvae.inpaint(PICTURE, HOLE, overrides=TINY))
    assert np.array_equal(masked[~HOLE], PICTURE[~HOLE])
    infinite = np.where(HOLE, np.inf, PICTURE / 255)  # what numpy.ma.masked_invalid is for
    with_nan = np.where(HOLE, np.nan, PICTURE / 255)
    found = [tvae.denoise(array, overrides=TINY) for array in (np.ma.masked_invalid(infinite), with_nan)]
    assert np.array_equal(*found)
    assert not np.ma.isMaskedArray(found[0])
    colour = np.ma.array(np.stack([PICTURE] * 3), mask=np.stack([HOLE, HOLE & False, HOLE & False]))
    filled = tvae.inpaint(colour, channel_axis=0, overrides=TINY)
    assert np.array_equal(filled[:, ~HOLE], colour.data[:, ~HOLE])


def test_what_is_masked_in_a_mask_is_missing():
    unsure = np.ma.array(np.zeros(PICTURE.shape), mask=HOLE)
    assert np.array_equal(tvae.inpaint(PICTURE, unsure, overrides=TINY), tvae.inpaint(PICTURE, HOLE, overrides=TINY))


@pytest.mark.parametrize(
    "word",
    [
        "image=b.png", "dataset=house", "dataset.name=house", "hydra.run.dir=there", "+hydra.x=1", "seed=3",
        "task=train", "checkpoint_seconds=1", "restore_every=2", "experiment=house_15",
        "experiment=castle_50", "keep_known=true", "output=b.png",
    ],
)  # fmt: skip
def test_what_a_call_cannot_honour_is_refused(word):
    with pytest.raises(UserError, match=r"has no meaning for an array|is for inpaint"):
        tvae.denoise(PICTURE, overrides=[*TINY, word])


@pytest.mark.parametrize("word", ["epochs=many", "epohcs=3", "epochs=[1", "noise=1,2"])
def test_what_cannot_be_composed_is_told_in_a_call_as_well(word):
    with pytest.raises(UserError) as caught:
        tvae.denoise(PICTURE, overrides=[word])
    assert len(caught.value.problems) == 1


def test_channels_are_dropped_one_by_one_only_where_some_are_dropped(command):
    write_image(Path("a.png"), np.dstack([PICTURE, PICTURE, 255 - PICTURE]))
    write_image(Path("mask.png"), HOLE.astype(np.uint8))
    words = ["image=a.png", "mask=mask.png", "missing_per=channel", *TINY, "hydra.run.dir=run"]
    code, out = command("inpaint", *words)
    assert (code, out) == (2, "error: missing_per=channel: goes with missing=FRACTION\n")
    command.ok("inpaint", *words, "missing=0.1")
