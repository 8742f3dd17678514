"""Several processes and a folder of pictures: they share out each of them, and a failure does not stop the others."""

import csv
import time
from pathlib import Path

import numpy as np
import pytest

from tests.processes import metrics, run
from tests.runs.test_folder import OPTIONS, clean_picture
from tests.runs.test_ranks_faults import on_ranks
from tvae.config.schema import Config
from tvae.data.picture import add_noise
from tvae.errors import TrainingFailed, UserError
from tvae.io.image_file import read_image, write_image
from tvae.runs.distributed.connection import join, sharing_failures
from tvae.runs.distributed.ranks import PATIENCE
from tvae.runs.folder import SomeFailed, restore_folder


@pytest.fixture(autouse=True)
def _pictures(tmp_path, monkeypatch):
    """A folder with two pictures of different sizes, and between them a damaged one."""
    monkeypatch.chdir(tmp_path)
    Path("many").mkdir()
    for name, shape in {"a": (20, 24), "c": (24, 18)}.items():
        noisy = np.rint(add_noise(clean_picture(*shape), 15, seed=0)).clip(0, 255).astype(np.uint8)
        write_image(Path(f"many/{name}.png"), noisy)
    Path("many/b.png").write_bytes(b"\x89PNG\r\n damaged")


def statuses(path):
    with open(path) as file:
        return {row["name"]: row["status"] for row in csv.DictReader(file)}


def differences(name, other):
    """Grey levels between two restored pictures."""
    return np.abs(read_image(name).pixels - read_image(other).pixels)


@pytest.mark.parametrize("shared", ["false", "true"])
def test_a_broken_picture_is_named_at_the_end_and_the_others_are_those_of_one_process(shared):
    words = ["image=many", f"shared={shared}", *OPTIONS]
    outcomes = {n: run(f"by{n}", *words, n_ranks=n, command="denoise") for n in (1, 2)}
    for n, (codes, printed) in outcomes.items():
        assert codes == [1] * n, printed
        assert printed.count("2 of 3 pictures are done") == 1
        assert printed.rstrip().splitlines()[-1].strip().startswith("b.png: ")
        assert "Traceback" not in printed
        assert statuses(f"by{n}/results.csv") == {"a.png": "finished", "b.png": "failed", "c.png": "finished"}
    for name in ("a.png", "c.png"):
        assert differences(f"by1/restored/{name}", f"by2/restored/{name}").max() <= 1, "sums in another order"
    Path("many/b.png").write_bytes(Path("many/a.png").read_bytes())
    before = Path("by2/runs/a.png/metrics.json").stat().st_mtime_ns
    codes, printed = run("by2", *words, n_ranks=2, command="denoise")
    if shared == "true":  # the model would be another one
        assert codes == [2, 2]
        assert "the picture has changed since that run" in printed
    else:
        assert codes == [0, 0], printed
        assert metrics("by2/runs/b.png")["status"] == "finished"
        assert differences("by2/restored/b.png", "by2/restored/a.png").max() == 0
    assert Path("by2/runs/a.png/metrics.json").stat().st_mtime_ns == before


def fail_by_turns(rank):
    """One rank fails at one picture, the other at the next, all at a third, one when the others are done."""
    for name in "abcdefg":
        Path(f"many/{name}.png").touch()

    def restore_one(config, path):
        name = Path(config.image).stem
        if name == "bcd"[rank] or name == "g":
            raise UserError(f"a mistake of {rank}")
        if name == "e":
            raise TrainingFailed("the same sums")
        together = float(sum(join().gather(rank)))
        if name == "f" and rank == 1:
            raise UserError("too late for the others")
        return {"status": "finished", "psnr": together}

    try:
        with sharing_failures():
            restore_folder(Config(image="many"), Path("run"), restore_one)
    except SomeFailed as error:
        return [str(error).splitlines()[1:], error.is_shared, join().gather(rank)]


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_what_fails_on_one_rank_alone_fails_on_all_and_they_begin_the_next_picture_together(n_ranks):
    found = on_ranks(fail_by_turns, n_ranks)
    by_one = {name: f"a mistake of {rank}" for rank, name in enumerate("bcd"[:n_ranks])}
    for rank, (lines, is_shared, connected) in enumerate(found):
        told = by_one | {"e": "the same sums", "f": "too late for the others", "g": f"a mistake of {rank}"}
        assert lines == [f"  {name}.png: {problem}" for name, problem in told.items()]
        assert (is_shared, connected) == (True, [*range(n_ranks)])
    with open("run/results.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [f"{name}.png" for name in "abcdefg"]  # each once
    assert [row["status"] for row in rows].count("finished") == 7 - n_ranks - 3


def fail_within(rank):
    """A failure passes through both blocks, and is announced once."""
    started = time.monotonic()
    try:
        with sharing_failures(), sharing_failures():
            if rank == 1:
                raise UserError("mine")
            join().meet()
    except UserError as error:
        return [str(error), error.is_shared, time.monotonic() - started]


def test_blocks_within_each_other():
    for message, is_shared, seconds in on_ranks(fail_within):
        assert (message, is_shared) == ("mine", True)
        assert seconds < PATIENCE - 2
