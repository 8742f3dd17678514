"""The list of files that a run directory may hold: all that is written is on it, and nothing else is removed."""

from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from tests.conftest import small_config
from tests.processes import run
from tvae.io.image_file import write_image
from tvae.runs import checkpoint
from tvae.runs.files import CONFIG, FINGERPRINT, IN_FOLDERS, NAMED, PATTERNS
from tvae.runs.run_directory import RunDirectory

PICTURE = ["image=picture.tiff", "dataset=file", "epochs=2", "model.n_latents=8", "dataset.patch_size=4"]


def is_listed(path):
    """True if the list has the file, by its path below the run directory."""
    folder, name = path.parent.as_posix(), path.name
    if folder == ".":
        return name in NAMED or any(fnmatch(name, pattern) for pattern in PATTERNS)
    return any(fnmatch(name, pattern) for pattern in IN_FOLDERS.get(folder, ()))


def files_in(directory):
    return {path.relative_to(directory) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def _picture(tmp_path, monkeypatch):
    """One of floating point, of which there are most files."""
    monkeypatch.chdir(tmp_path)
    write_image(Path("picture.tiff"), np.random.default_rng(0).random((24, 20), dtype=np.float32))


@pytest.mark.usefixtures("_picture")
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_every_file_that_a_run_leaves_is_listed(n_ranks):
    codes, printed = run("run", *PICTURE, "states.memmap=true", n_ranks=n_ranks, command="denoise")
    assert codes == [0] * n_ranks, printed
    found = files_in(Path("run"))
    assert [path for path in found if not is_listed(path)] == []
    assert {"restored.tiff", "uncertainty.png", "checkpoint.pt", "comparison.png", "run.log"} <= {p.name for p in found}


@pytest.mark.usefixtures("_picture")
def test_every_file_that_a_restoration_leaves_is_listed(command, monkeypatch):
    monkeypatch.setattr(checkpoint, "HELD_BYTES", 0)
    command.ok("denoise", *PICTURE, "hydra.run.dir=run")
    assert any(fnmatch(path.name, PATTERNS[0]) for path in files_in(Path("run")))
    command.ok("denoise", "run=run", "hydra.run.dir=again")
    for directory in ("run", "again"):
        assert [path for path in files_in(Path(directory)) if not is_listed(path)] == []


def test_restart_removes_what_is_listed_and_nothing_else(tmp_path):
    config = small_config(restart=True)
    folders = {name: [pattern.replace("*", "123.host") for pattern in IN_FOLDERS[name]] for name in IN_FOLDERS}
    written = [name for name in NAMED if name not in folders]
    written += [pattern.replace("*", "0") for pattern in PATTERNS]
    written += [f"{folder}/{name}" for folder, names in folders.items() for name in names]
    mine = ["notes.txt", "checkpoint.txt", "my checkpoint.pt", "states.bin.txt", "data/config.yaml"]
    mine += [f"{folder}/{name}" for folder in folders for name in ("mine.png", "notes.txt")]
    for name in (*written, *mine):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert all(is_listed(Path(name)) for name in written)
    (tmp_path / CONFIG).write_text(OmegaConf.to_yaml(small_config(seed=1)))
    RunDirectory(tmp_path, config, "of the data").release()
    assert files_in(tmp_path) == {Path(name) for name in (*mine, CONFIG, FINGERPRINT)}
    assert all((tmp_path / name).read_text() == name for name in mine)
    assert (tmp_path / FINGERPRINT).read_text() == "of the data\n"
    assert OmegaConf.load(tmp_path / CONFIG).seed == 0
