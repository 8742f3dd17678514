"""Every file of a run directory damaged, one at a time, and the command repeated: a line, or the right result."""

import os
import shutil

import pytest

from tests.composing import checked
from tests.tiny import TINY, tiny_picture
from tvae.config.messages import explain
from tvae.io.image_file import write_image
from tvae.runs.callbacks import record
from tvae.runs.callbacks.output_pictures import OUTPUT_PICTURES
from tvae.runs.session import train
from tvae.runs.signals import StoppedEarly

FILES = (
    "config.yaml", "data.sha256", "metrics.json", "history.csv", "run.log", "checkpoint.pt", "checkpoint.previous.pt",
    "tensorboard", "figures", "input.png", "restored.png", "uncertainty.png", "uncertainty.tiff",
)  # fmt: skip
CONTENT = {
    "emptied": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "a byte changed": lambda content: content[:-1] + bytes([content[-1] ^ 1]) if content else b"x",
    "noise": lambda content: os.urandom(len(content)),
}
OTHERS = ("a folder", "a file", "a link", "a pipe", "removed")


def damage(path, how):
    if how in CONTENT:
        content = path.read_bytes()
        path.write_bytes(CONTENT[how](content))
        return
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "a file":
        path.write_bytes(b"mine")
    elif how == "a link":
        path.symlink_to("/etc/hostname")
    elif how == "a pipe":
        os.mkfifo(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The configuration, and a directory each of a run that finished and of one that was stopped."""
    folder = tmp_path_factory.mktemp("runs")
    write_image(folder / "a.png", tiny_picture())
    options = [f"image={folder}/a.png", *TINY, "epochs=3", "checkpoint_seconds=0", "restoration=posterior_mean"]
    config = checked(*[word for word in options if not word.startswith("effort")])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record, "write_figures", lambda *_: None)
        train(config, folder / "finished")
        with pytest.raises(StoppedEarly):
            train(config, folder / "stopped", lambda epoch: epoch.epoch == 2)
    return config, {name: folder / name for name in ("finished", "stopped")}


def what_is_wrong(config, path):
    """The message if training in `path` fails; the failure is always a foreseen one."""
    try:
        train(config, path)
    except Exception as error:
        return explain(error) or pytest.fail(f"not foreseen: {error!r}")
    return None


@pytest.mark.usefixtures("_no_figures")
@pytest.mark.parametrize("how", [*CONTENT, *OTHERS])
@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_a_line_or_the_right_result(runs, state, how, tmp_path, caplog):
    config, directories = runs
    right = {name: (directories["finished"] / name).read_bytes() for name in ("restored.png", "uncertainty.tiff")}
    for name in FILES:
        path = tmp_path / name.replace(".", "_")
        shutil.copytree(directories[state], path)
        is_folder = name in ("tensorboard", "figures")
        if (
            not (path / name).exists()
            or (is_folder and how in CONTENT)
            or how == ("a folder" if is_folder else "a file")
        ):
            continue
        damage(path / name, how)
        before = (path / name).read_bytes() if how in CONTENT else None
        caplog.clear()
        refused = what_is_wrong(config, path)
        if refused is not None:
            lines, code = refused
            assert code in (1, 2)
            assert all("\n" not in line for line in lines)
            continue
        if (state, name, how) == ("finished", "uncertainty.tiff", "removed"):
            continue  # it is left alone, as long as there is a restored picture
        found = {file: (path / file).read_bytes() for file in right}
        if found != right:  # a finished run stays as it is, and says so
            assert state == "finished"
            assert name in OUTPUT_PICTURES
            assert f"{path / name}: changed after the run" in caplog.text
            assert (path / name).read_bytes() == before, "what may be the user's is not overwritten"
