"""The path of the restored picture: `output=PATH`, and the last line."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import small_config
from tvae.data.picture import Picture
from tvae.data.sets.image import ImageConfig
from tvae.errors import Failure, UserError
from tvae.io.image_file import from_array, read_image, to_output, write_image, write_tiff
from tvae.runs.result import check_kind, check_output, deliver, is_complete, tell_result

pytestmark = pytest.mark.usefixtures("_no_figures")
FAST = ["model.n_latents=8", "states.n_states=8", "ea.n_parents=2", "ea.n_children=2", "epochs=1", "threads=1"]
NOISY = np.random.default_rng(0).integers(0, 256, (18, 20), dtype=np.uint8)


@pytest.fixture
def call(command):
    return command.of("denoise")


def lines(out):
    return [line for line in out.splitlines() if line]


def test_the_result_is_where_it_was_wanted_and_its_path_stands_alone(call):
    write_image(Path("in (1).png"), NOISY)
    out = call.ok("in (1).png", "out 1.png", *FAST)
    assert "out 1.png" in lines(out)
    (run,) = Path("outputs/denoise").iterdir()
    assert Path("out 1.png").read_bytes() == (run / "restored.png").read_bytes()
    before = Path("out 1.png").stat().st_mtime_ns
    out = call.ok("image=in (1).png", "output=out 1.png", *FAST)
    assert "finished already" in out
    assert Path("out 1.png").stat().st_mtime_ns == before, "it was the same"
    out = call.ok("image=in (1).png", *FAST)
    assert str(run.absolute() / "restored.png") in lines(out)
    (run / "restored.png").unlink()
    out = call.ok("image=in (1).png", "output=new.tif", *FAST)
    np.testing.assert_array_equal(read_image("new.tif").pixels, read_image("out 1.png").pixels)
    assert (run / "restored.png").is_file(), "it was made again"
    out = call.ok(f"run={run}", "output=again.png", "hydra.run.dir=again")
    assert Path("again.png").read_bytes() == Path("out 1.png").read_bytes()


def test_nothing_is_written_over_and_that_is_said_before_training(call):
    write_image(Path("in.png"), NOISY)
    Path("out.png").write_bytes(b"mine")
    code, out = call("in.png", "out.png", *FAST, "hydra.run.dir=run")
    assert (code, out) == (2, "error: output=out.png: exists already; overwrite=true replaces it\n")
    assert Path("out.png").read_bytes() == b"mine"
    assert not Path("run/config.yaml").exists()
    call.ok("in.png", "out.png", *FAST, "hydra.run.dir=run", "overwrite=true")
    assert read_image("out.png").pixels.shape == (18, 20, 1)
    Path("out.png").write_bytes(b"mine again")
    out = call.refused("in.png", "out.png", *FAST, "hydra.run.dir=run")
    assert "exists already" in out
    assert Path("out.png").read_bytes() == b"mine again"


def picture_of(array):
    image = from_array(array)
    return Picture(image, image.pixels)


def wanted(output, **more):
    return small_config(dataset=ImageConfig(name="file"), image="in.png", output=str(output), **more)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("out", "the ending tells the kind of file, which can be .png, .tif,"),
        ("out.xyz", "the ending tells the kind of file"),
        ("none/out.png", "there is no folder none"),
        ("folder.png", "is a folder; name a file in it"),
        ("in.png", "is what image= reads; name another file"),
        ("link.png", "is a link to elsewhere; name a file"),
        ("nowhere.png", "is a link to elsewhere; name a file"),
        ("pipe.png", "is a pipe or device; name a file"),
        ("run/restored.png", "a run has a file of that name in its directory"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch, output, message):
    monkeypatch.chdir(tmp_path)
    for folder in ("folder.png", "run"):
        Path(folder).mkdir()
    write_image(Path("in.png"), NOISY)
    write_image(Path("other.png"), NOISY)
    for name, place in {"link.png": "other.png", "nowhere.png": "none.png"}.items():
        Path(name).symlink_to(place)
    os.mkfifo("pipe.png")
    with pytest.raises(UserError, match=f"output={output}: {message}"):
        check_output(wanted(output, overwrite=True), Path("run"))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files, whoever asks")
def test_a_folder_that_takes_no_file_is_told_before_anything_is_read(call):
    Path("file").touch()
    Path("many").mkdir()
    for image in ("in.png", "many/in.png"):
        Path(image).write_bytes(b"not even a picture")
    nowhere, long = "cannot be written (No such file or directory)", f"{'a' * 252}.png"
    for image, output, message in [
        ("in.png", "/proc/out.png", f"output=/proc/out.png: {nowhere}"),
        ("many", "/proc", f"output=/proc: {nowhere}"),
        ("many", "/proc/none/below", f"output=/proc/none/below: {nowhere}"),
        ("in.png", "file/out.png", "output=file/out.png: there is no folder file"),
        ("many", "file/out", "output=file/out: cannot be written (Not a directory)"),
        ("in.png", long, f"{long}: File name too long"),
    ]:
        assert call(image, output, "hydra.run.dir=run") == (2, f"error: {message}\n")
    assert not Path("run").exists()


def test_data_that_are_no_picture_have_no_output():
    with pytest.raises(UserError, match=r"output=a\.png: dataset=bars is not an image"):
        check_kind(small_config(output="a.png"), None)


def test_alpha_needs_a_file_that_holds_it(tmp_path):
    path = tmp_path / "alpha.png"
    write_image(path, np.dstack([NOISY] * 4))
    image = read_image(path)
    picture = Picture(image, image.pixels)
    with pytest.raises(UserError, match=r"a \.jpg file cannot hold this picture's alpha channel; a \.tif file can"):
        check_kind(wanted(tmp_path / "a.jpg"), picture)
    check_kind(wanted(tmp_path / "a.webp"), picture)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("ending", ["png", "tif", "npy", "jpg"])
def test_the_ending_tells_the_kind_and_types_are_those_of_the_run_directory(tmp_path, dtype, ending):
    peak = 1 if dtype == "float32" else np.iinfo(dtype).max
    picture = picture_of((NOISY / 255 * peak).astype(dtype))
    write_image(tmp_path / "restored.png", (NOISY if dtype == "float32" else to_output(picture.noisy, picture.image)))
    assert is_complete(tmp_path, picture) == (dtype != "float32")
    if dtype == "float32":
        write_tiff(tmp_path / "restored.tiff", picture.noisy)
    assert is_complete(tmp_path, picture)
    output = tmp_path / f"out.{ending}"
    deliver(wanted(output), tmp_path, picture)
    is_8_bit = ending == "jpg" or (ending, dtype) == ("png", "float32")
    found = np.load(output) if ending == "npy" else to_output((read := read_image(output)).pixels, read)
    assert found.dtype == ("uint8" if is_8_bit else dtype)
    np.testing.assert_allclose(found / (255 if is_8_bit else peak), NOISY / 255, atol=0.6 if ending == "jpg" else 0.002)


def test_a_full_stdout_is_told_as_that(tmp_path, monkeypatch):
    write_image(tmp_path / "restored.png", NOISY)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with pytest.raises(Failure, match=r"restored.png is written, but not its path to stdout \(No space left"):
            tell_result(small_config(), tmp_path)
        monkeypatch.undo()
        with suppress(OSError):
            full.close()


def test_a_run_without_a_picture_says_nothing(tmp_path, capsys):
    tell_result(small_config(), tmp_path)
    assert capsys.readouterr().out == ""
