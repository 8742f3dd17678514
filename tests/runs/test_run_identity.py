"""Identity of a run directory: the given options, the command, and the data."""

import os
from pathlib import Path

import numpy as np
import pytest
import tifffile

from tests.processes import SMALL
from tests.tiny import TINY, tiny_picture
from tvae.data.picture import Picture
from tvae.io.image_file import write_image, write_tiff
from tvae.io.stack_file import read_picture

pytestmark = pytest.mark.usefixtures("_no_figures")

PICTURE = tiny_picture()
HOLE = np.zeros(PICTURE.shape, bool)
HOLE[8:12, 9:14] = True


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_changed_picture_is_told_as_such_and_not_by_what_the_recipe_makes_of_it(command):
    options = ["image=a.png", "restoration=posterior_mean", "epochs=1", "threads=1", "hydra.run.dir=run"]
    write_image(Path("a.png"), PICTURE)
    command.ok("denoise", *options)
    before = contents("run")
    noisy = PICTURE + 60 * np.random.default_rng(1).normal(size=PICTURE.shape)
    write_image(Path("a.png"), noisy.clip(0, 255).astype(np.uint8))  # for which the recipe takes larger patches
    code, out = command("denoise", *options)
    assert (code, out.count("\n")) == (2, 1)
    assert "/run: the picture has changed since that run (image=a.png); name another hydra.run.dir" in out
    out = command.refused("denoise", *options, "sigma=10")
    assert "belongs to another configuration (sigma=None there, 10.0 here);" in out
    code, out = command("denoise", "run=run", "hydra.run.dir=again")
    assert (code, out.count("\n")) == (2, 1)
    assert out == "error: run=run: the picture has changed since that run (image=a.png); train on it anew\n"
    assert not Path("again/restored.png").exists()
    assert contents("run") == before
    command.ok("denoise", *options, "restart=true")


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("mask.png", np.roll(HOLE, 3, 0).astype(np.uint8)),
        ("clean.png", 255 - PICTURE),
        ("a.png", np.dstack([PICTURE, PICTURE])),  # only its alpha
    ],
)
def test_every_file_that_results_follow_from_counts(command, file, changed):
    alpha = np.full_like(PICTURE, 255)
    files = {"a.png": np.dstack([PICTURE, alpha]), "mask.png": HOLE.astype(np.uint8), "clean.png": PICTURE}
    for name, pixels in files.items():
        write_image(Path(name), pixels)
    options = ["image=a.png", "mask=mask.png", "clean=clean.png", *TINY, "hydra.run.dir=run"]
    command.ok("inpaint", *options)
    assert "finished already" in command("inpaint", *options)[1]
    write_image(Path(file), changed)
    out = command.refused("inpaint", *options)
    assert "the picture has changed since that run (image=a.png, mask=mask.png, clean=clean.png)" in out


@pytest.mark.parametrize(
    "changed",
    [PICTURE.astype(np.uint16), PICTURE.astype(np.float32), PICTURE.reshape(18, 32), PICTURE[..., None]],
    ids=["uint16", "float32", "reshaped", "channel axis"],
)
def test_type_and_shape_of_the_file_count(command, changed):
    """The values are the same, one after the other."""
    np.save("a.npy", PICTURE)
    options = ["image=a.npy", *TINY, "dataset.patch_size=4", "hydra.run.dir=run"]
    command.ok("denoise", *options)
    before = contents("run")
    np.save("a.npy", changed)
    code, out = command("denoise", *options)
    assert (code, out.count("\n")) == (2, 1), out
    assert "/run: the picture has changed since that run (image=a.npy)" in out
    assert contents("run") == before


@pytest.mark.usefixtures("in_folder")
def test_what_alpha_is_declared_to_be_counts():
    found = set()
    for kind in ("unassalpha", "assocalpha", "unspecified"):
        tifffile.imwrite("a.tif", np.dstack([PICTURE, PICTURE // 2]), photometric="minisblack", extrasamples=[kind])
        image = read_picture("a.tif")
        found.add(Picture(image, image.pixels).fingerprint())
    assert len(found) == 3


def test_a_changed_map_of_the_noise_counts(command):
    write_image(Path("a.png"), PICTURE)
    write_tiff(Path("sigma.tiff"), 2 + PICTURE / 50)
    options = ["image=a.png", "sigma_map=sigma.tiff", *TINY, "hydra.run.dir=run"]
    command.ok("denoise", *options)
    assert "finished already" in command("denoise", *options)[1]
    write_tiff(Path("sigma.tiff"), 3 + PICTURE / 50)
    out = command.refused("denoise", *options)
    assert "the picture has changed since that run (image=a.png, sigma_map=sigma.tiff)" in out
    code, out = command("denoise", "image=a.png", "sigma_map=a.png", *TINY, "hydra.run.dir=other")
    assert (code, out) == (2, "error: a.png: divided by it, the picture is the same everywhere\n")


def test_other_data_that_have_changed(command):
    np.save("a.npy", np.random.default_rng(0).normal(size=(40, 9)))
    options = ["dataset=array", "dataset.file=a.npy", "epochs=1", "model.n_latents=8", "ea.n_children=2"]
    options += ["hydra.run.dir=run"]
    command.ok("train", *options)
    np.save("a.npy", np.random.default_rng(1).normal(size=(40, 9)))
    out = command.refused("train", *options)
    assert "the data have changed since that run (dataset=array)" in out


def test_what_was_asked_for_belongs_to_a_run(command):
    write_tiff(Path("a.tiff"), np.where(HOLE, np.nan, PICTURE / 255))
    options = ["image=a.tiff", *TINY, "hydra.run.dir=run"]
    command.ok("denoise", *options)
    before = contents("run")
    for name in ("inpaint", "train"):
        out = command.refused(name, *options)
        assert f"belongs to another configuration (task=denoise there, {name} here)" in out
        assert ("restores from it into another directory" in out) == (name != "train")
    assert "finished already" in command("denoise", *options)[1]
    assert contents("run") == before
    code, out = command("denoise", *options, "task=inpaint")
    assert (code, out) == (2, "error: task=inpaint: set by the command python -m tvae.inpaint\n")


def test_a_run_from_before_commands_were_noted(command):
    """The configuration of such a run says that the command was train."""
    write_image(Path("a.png"), PICTURE)
    options = ["image=a.png", *TINY]
    command.ok("denoise", *options, "hydra.run.dir=run")
    text = Path("run/config.yaml").read_text()
    for changed in (text.replace("task: denoise", "task: train"), text.replace("task: denoise\n", "")):
        Path("run/config.yaml").write_text(changed)
        code, out = command("denoise", *options, "hydra.run.dir=run")
        assert (code, out.count("\n")) == (2, 1)
        assert "if it was made by an earlier version, or by train, run=" in out
    command.ok("denoise", "run=run", "hydra.run.dir=again")
    assert Path("again/restored.png").read_bytes() == Path("run/restored.png").read_bytes()


def test_a_run_can_be_restored_in_both_ways_but_not_into_one_directory(command):
    write_tiff(Path("a.tiff"), np.where(HOLE, np.nan, PICTURE / 255))
    command.ok("denoise", "image=a.tiff", *TINY, "hydra.run.dir=run")
    command.ok("denoise", "run=run", "hydra.run.dir=denoised")
    command.ok("inpaint", "run=run", "hydra.run.dir=filled")
    results = [Path(name, "restored.tiff").read_bytes() for name in ("run", "denoised", "filled")]
    assert results[0] == results[1] != results[2]
    out = command.refused("inpaint", "run=run", "hydra.run.dir=denoised")
    assert "belongs to another configuration" in out
    write_image(Path("whole.png"), PICTURE)
    command.ok("denoise", "image=whole.png", *TINY, "hydra.run.dir=whole")
    out = command.refused("inpaint", "run=whole", "hydra.run.dir=nothing")
    assert out.startswith("error: run=whole: no pixel is missing, so there is nothing to fill in")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"0" * 63, None], ids=["empty", "binary", "cut", "gone"])
def test_a_fingerprint_that_cannot_be_read(command, content):
    options = [*SMALL, "epochs=1", "hydra.run.dir=run"]
    command.ok("train", *options)
    Path("run/data.sha256").unlink()
    if content is not None:
        Path("run/data.sha256").write_bytes(content)
    code, out = command("train", *options)
    assert (code, out.count("\n")) == (2, 1)
    assert "its data.sha256 cannot be read, so it is not known whether the data are still the same" in out


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_the_fingerprint(command):
    write_image(Path("a.png"), PICTURE)
    command.ok("denoise", "image=a.png", *TINY, "hydra.run.dir=run")
    Path("run/data.sha256").unlink()
    os.mkfifo("run/data.sha256")
    code, out = command("denoise", "run=run", "hydra.run.dir=again")
    assert (code, out.count("\n")) == (2, 1)
    assert "its data.sha256 cannot be read" in out


@pytest.mark.parametrize("word", ["effort=best", "effort=fast", "restoration=nonlocal", "keep_known=true"])
def test_options_of_images_are_refused_for_other_data(command, word):
    code, out = command("train", *SMALL, word, "hydra.run.dir=run")
    name, value = word.split("=")
    assert (code, out) == (2, f"error: {name}={value.replace('true', 'True')}: dataset=bars is not an image\n")
