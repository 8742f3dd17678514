"""A session: prepare, resume, loop, finish."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.fuzz import chaos
from tests.conftest import small_config
from tests.processes import LONG, SMALL, metrics, run, start, wait_until
from tvae.config.recipe import prepare
from tvae.data.picture import Picture
from tvae.data.sets.image import ImageConfig
from tvae.io.image_file import from_array
from tvae.runs.run_directory import RunDirectory
from tvae.runs.session import Session, train_in_memory


@pytest.fixture
def call(command):
    return command.of("train")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The end of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    (process,) = chaos.start("train", [*LONG, f"hydra.run.dir={folder / 'run'}"], folder / "log")
    assert chaos.wait([process], 120) == [0]
    return chaos.result(folder / "run")


@pytest.mark.usefixtures("_no_figures")
def test_a_checkpoint_after_every_minibatch_changes_nothing(call):
    """Progress is made however soon the next checkpoint is due."""
    for name, seconds in (("each", "1e-9"), ("none", "1000")):
        call.ok(*SMALL, f"checkpoint_seconds={seconds}", f"hydra.run.dir={name}")
    assert metrics("each")["elbo"] == metrics("none")["elbo"]


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_is_resumed_as_if_it_had_not_been(sent, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (process,), log = start("stopped", *LONG)
    wait_until(Path("stopped/checkpoint.previous.pt").exists)
    os.kill(process.pid, sent)
    assert chaos.wait([process], 60) == [-9 if sent == signal.SIGKILL else 1]
    assert metrics("stopped")["status"] == "interrupted"
    assert "Traceback" not in log.read_text()
    if sent != signal.SIGKILL:
        assert "the same command resumes" in log.read_text()
    codes, printed = run("stopped", *LONG)
    assert codes == [0]
    assert "resumed after epoch" in printed
    assert chaos.differences(whole, chaos.result(Path("stopped"))) == []


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(call):
    call.ok(*SMALL, "hydra.run.dir=whole")
    call.ok(*SMALL, "hydra.run.dir=damaged")
    path = Path("damaged/checkpoint.pt")
    path.write_bytes(path.read_bytes()[:-10])
    Path("damaged/metrics.json").unlink()
    out = call.ok(*SMALL, "hydra.run.dir=damaged")
    assert "damaged/checkpoint.pt: damaged, its checksum is wrong; it is not used" in out
    assert chaos.differences(chaos.result(Path("whole")), chaos.result(Path("damaged"))) == []


@pytest.mark.usefixtures("_no_figures")
def test_a_deep_run_starts_from_a_linear_one(call):
    linear = [*SMALL, "model=linear", "states.n_states=16"]
    call.ok(*linear, "hydra.run.dir=linear")
    call.ok(*SMALL, "model=deep", "init_from=linear", "lr.min=1e-9", "lr.max=1e-9", "hydra.run.dir=deep")
    assert metrics("deep")["elbo"] > metrics("linear")["elbo"] - 0.5
    out = call.refused(*SMALL, "model.hidden=[4]", "init_from=linear", "hydra.run.dir=narrow")
    assert "init_from=linear: every hidden layer needs at least 8 units" in out


@pytest.fixture
def picture():
    pixels = np.random.default_rng(0).integers(0, 255, (24, 20), dtype=np.uint8)
    image = from_array(pixels)
    return Picture(image, image.pixels)


def test_a_session_in_memory_writes_nothing(picture, tmp_path, monkeypatch, capfd):
    """Nothing is written even if checkpoints, pictures and restorations are due after every epoch."""
    monkeypatch.chdir(tmp_path)
    config = small_config(
        image="image", dataset=ImageConfig(name="file", patch_size=4), restore_every=1, picture_every=1
    )
    n_threads = torch.get_num_threads()
    restored = train_in_memory(config, picture)
    assert restored.pixels.shape == (24, 20, 1)
    assert np.isfinite(restored.pixels).all()
    assert list(tmp_path.rglob("*")) == []
    assert torch.get_num_threads() == n_threads
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("_no_figures")
def test_a_session_in_memory_does_what_one_with_a_directory_does(picture, tmp_path):
    config, dataset = prepare(small_config(image="image", dataset=ImageConfig(name="file", patch_size=4)), picture)
    RunDirectory(tmp_path, config, dataset.fingerprint()).release()
    found = []
    for path in (None, tmp_path):
        session = Session(config, dataset, path)
        session.loop()
        found.append((session.finish(), session.record.restored.pixels))
    (in_memory, its_pixels), (in_directory, pixels) = found
    assert np.array_equal(its_pixels, pixels)
    assert in_memory["elbo"] == in_directory["elbo"]
    assert in_memory["status"] == in_directory["status"] == "finished"
    assert metrics(tmp_path)["elbo"] == in_memory["elbo"]
