"""Several processes that train one model: they find each other, and the result is that of one alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from scripts.fuzz import chaos
from tests.processes import BARS, LONG, history, metrics, run, start, wait_for_epoch
from tvae.runs import checkpoint
from tvae.runs.distributed import connection
from tvae.runs.distributed.connection import _agree
from tvae.runs.distributed.ranks import Ranks

pytestmark = pytest.mark.usefixtures("in_folder")

LINEAR = ["dataset=natural", "model=linear", "n_patches=131", "model.n_latents=20", "dataset.patch_size=4", "epochs=3",
          "precision=float64", "batch_size=16"]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        [*BARS, "states.shared=false"],
        [*BARS, "states.memmap=true", "batch_size=2"],  # of some batches a rank has nothing
        [*LINEAR, "dataset.n_test=2"],  # with held-out data, of which a third process has none
    ],
    ids=["deep", "in a file, small batches", "linear"],
)
def test_the_number_of_processes_changes_nothing_but_the_order_of_sums(options):
    for n_ranks in (1, 2, 3):
        codes, printed = run(f"of_{n_ranks}", *options, n_ranks=n_ranks)
        assert codes == [0] * n_ranks, printed
        assert printed.count("finished in") == 1  # by one of them alone
    for n_ranks in (2, 3):
        np.testing.assert_allclose(history(f"of_{n_ranks}"), history("of_1"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n_missing", [0, 0.4])
def test_restored_images_are_the_same(tmp_path, n_missing):
    options = [*chaos.small_run(tmp_path), "precision=float64", "epochs=3", "threads=1"]
    command = "denoise" if n_missing == 0 else "inpaint"
    options += [f"missing={n_missing}"] if n_missing else []
    for n_ranks in (1, 2):
        codes, printed = run(f"of_{n_ranks}", *options, n_ranks=n_ranks, command=command)
        assert codes == [0] * n_ranks, printed
    assert Path("of_1/restored.png").read_bytes() == Path("of_2/restored.png").read_bytes()
    again, printed = run("again", "run=of_2", n_ranks=2, command=command)
    assert again == [0, 0], printed
    assert Path("again/restored.png").read_bytes() == Path("of_2/restored.png").read_bytes()


def test_a_run_is_resumed_with_another_number_of_processes():
    """Stopped in the middle of epochs: first of two, then of three, then of one."""
    options = [*LONG, "precision=float64"]
    assert run("whole", *options)[0] == [0]
    for n_ranks in (2, 3):
        processes, log = start("parts", *options, n_ranks=n_ranks)
        wait_for_epoch("parts", 7 * n_ranks)
        os.kill(processes[-1].pid, signal.SIGTERM)  # one is told, and all stop
        assert chaos.wait(processes, 60) == [1] * n_ranks
        assert "interrupted in epoch" in log.read_text()
        assert metrics("parts")["status"] == "interrupted"
        assert len(checkpoint.load_newest(Path("parts"), Ranks()).parts) == n_ranks
    assert run("parts", *options)[0] == [0]
    # All but how many states were new: of two that are as good to the last bits, either may be kept.
    np.testing.assert_allclose(history("parts")[:, :4], history("whole")[:, :4], rtol=1e-7)
    assert len(checkpoint.load_newest(Path("parts"), Ranks()).parts) == 1


def test_names_of_an_attempt_do_not_depend_on_what_others_left():
    """Three ranks in threads, on a store with the questions and answers of an attempt before."""
    store, names = dist.HashStore(), {}
    for _ in range(3):
        threads = [
            threading.Thread(target=lambda rank=rank: names.update({rank: _agree(store, rank, 3)}))
            for rank in (1, 2, 0)
        ]
        before = dict(names)
        for thread in threads:
            thread.start()
            time.sleep(0.1)  # the leader last, so that it finds what was asked before as well
        for thread in threads:
            thread.join(20)
        assert len(set(names.values())) == 1
        assert names != before


@pytest.mark.parametrize(
    ("attempt", "variables", "is_first"),
    [
        (0, {}, True),
        (1, {"TORCHELASTIC_RESTART_COUNT": "0"}, False),  # on a machine whose own processes were well
        (0, {"TORCHELASTIC_RESTART_COUNT": "1"}, False),
        (0, {"SLURM_RESTART_COUNT": "1"}, False),
    ],
)
def test_first_attempts(monkeypatch, attempt, variables, is_first):
    monkeypatch.setattr(connection, "_joined", Ranks(0, 2, attempt=attempt))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert connection.is_first_attempt() == is_first


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "x"}, "WORLD_SIZE=x in the environment: must be a whole number"),
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment are not as torchrun",
        ),
    ],
)
def test_an_environment_that_torchrun_does_not_make(command, monkeypatch, environment, message):
    monkeypatch.setattr(connection, "_joined", None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = command.refused("train", *BARS)
    assert out.startswith(f"error: {message}")


def test_a_process_that_comes_late():
    codes, printed = run("late", *BARS, n_ranks=2, late=(0, 3))
    assert codes == [0, 0], printed


def test_submitit_starts_several_processes_for_one_run():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install '.[slurm]'")
    options = ["-m", *BARS, "hydra/launcher=submitit_local", "hydra.launcher.tasks_per_node=2", "hydra.sweep.dir=out",
               "hydra.sweep.subdir=run", "hydra.launcher.timeout_min=5"]  # fmt: skip
    words = [sys.executable, "-m", "tvae.train", *options]
    found = subprocess.run(
        words, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert found.returncode == 0, found.stderr
    assert metrics("out/run")["status"] == "finished"
    assert run("alone", *BARS)[0] == [0]
    np.testing.assert_allclose(history("out/run"), history("alone"), rtol=1e-9)
    assert len(checkpoint.load_newest(Path("out/run"), Ranks()).parts) == 2  # so they were two
