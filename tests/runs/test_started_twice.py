"""The same command twice at once: one of them works, and none removes what is the other's."""

import os
import threading
import time
from pathlib import Path

import pytest

from scripts.fuzz import chaos
from tests.processes import SMALL, statuses
from tests.tiny import TINY, tiny_picture
from tvae.io.image_file import write_image
from tvae.runs import run_directory
from tvae.runs.run_directory import Busy

fcntl = pytest.importorskip("fcntl")


def test_a_directory_that_another_process_removes_is_made_again(command, monkeypatch):
    """A process that made the directory removes it after a mistake, between the other's first look and its lock."""
    flock, removed = fcntl.flock, []

    def late(handle, how):
        if len(removed) < 3:
            os.rmdir("run")
            removed.append(handle)
        flock(handle, how)

    monkeypatch.setattr(run_directory.fcntl, "flock", late)
    command.ok("train", *SMALL, "hydra.run.dir=run")
    assert len(removed) == 3
    assert Path("run/metrics.json").is_file()


def test_who_comes_second_leaves_the_directory(command, monkeypatch):
    def taken(handle, how):
        raise BlockingIOError

    monkeypatch.setattr(run_directory.fcntl, "flock", taken)
    write_image(Path("a.png"), tiny_picture())
    Path("many").mkdir()
    write_image(Path("many/a.png"), tiny_picture())
    for image in ("a.png", "many"):
        code, out = command("denoise", f"image={image}", *TINY, f"hydra.run.dir=run_{image}")
        assert (code, out.count("\n")) == (2, 1)
        assert out.endswith(": another process is running in this directory\n")
        assert Path(f"run_{image}").is_dir()


def test_waiting_for_the_other_process(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    began = time.monotonic()
    threading.Timer(0.5, lambda: os.close(handle)).start()
    Busy(tmp_path).wait()
    assert time.monotonic() - began > 0.4
    Busy(tmp_path / "gone").wait()


def test_two_sweeps_share_their_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["-m", *SMALL, "seed=0,1,2", "epochs=30", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    words.append("hydra.sweep.subdir=${seed}")
    both = [chaos.start("train", words, tmp_path / f"{i}.log") for i in range(2)]
    codes = [chaos.wait(processes, 120) for processes in both]
    assert codes == [[0], [0]], "".join((tmp_path / f"{i}.log").read_text() for i in range(2))
    assert statuses("sweep") == {"0": "finished", "1": "finished", "2": "finished"}
