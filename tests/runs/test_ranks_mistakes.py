"""Several processes: what a user is told of jobs that fail, of mistakes and of files, once for all of them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.fuzz import chaos
from tests.processes import BARS, LONG, run, statuses
from tvae.errors import UserError
from tvae.runs import checkpoint
from tvae.runs.distributed.ranks import LostRank, Ranks
from tvae.runs.run_directory import check_directory

pytestmark = pytest.mark.usefixtures("in_folder")


def test_a_job_that_fails_does_not_stop_the_others_of_a_sweep():
    options = ["-m", *LONG, "epochs=20", "lr=constant", "lr.max=0.01,1e30,0.02", "hydra.sweep.dir=out"]
    log = Path("log").absolute()
    processes = chaos.start("train", [*options, "hydra.sweep.subdir=rate_${lr.max}"], log, 2)
    assert chaos.wait(processes, 120) == [1, 1]
    assert statuses("out") == {"rate_0.01": "finished", "rate_1e+30": "failed", "rate_0.02": "finished"}
    assert log.read_text().count("jobs that failed") == 1


@pytest.mark.parametrize("failing", [0, 1])
def test_a_job_that_fails_on_one_rank_alone_does_not_stop_the_others_of_a_sweep(failing):
    """The second of three jobs has a file that one rank does not find."""
    data = np.random.default_rng(0).normal(size=(60, 5))
    for name in ("a", f"b{1 - failing}", "c"):
        np.save(f"{name}.npy", data)
    options = ["-m", "dataset=array", "dataset.file=a.npy,b${oc.env:RANK}.npy,c.npy", "epochs=2", "hydra.sweep.dir=out"]
    log = Path("log").absolute()
    processes = chaos.start("train", [*options, "hydra.sweep.subdir=job_${hydra.job.num}"], log, 2)
    assert chaos.wait(processes, 120) == [2, 2]
    assert statuses("out") == {"job_0": "finished", "job_2": "finished"}
    printed = log.read_text()
    assert printed.count("jobs that failed") == 1
    assert printed.count(f"\nerror: b{failing}.npy: No such file") == 1
    assert "Traceback" not in printed


def test_under_torchrun_a_failure_of_one_rank_is_told_once():
    """The leader reports it, although torchrun would end it as soon as the other has ended."""
    np.save("b0.npy", np.random.default_rng(0).normal(size=(60, 5)))
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(chaos.free_port())]
    Path("experiment").mkdir()
    Path("experiment/own_file.yaml").write_text("# @package _global_\ndataset: {file: 'b${oc.env:RANK}.npy'}\n")
    options = ["--config-dir", ".", "dataset=array", "experiment=own_file", "epochs=2", "hydra.run.dir=out"]
    found = subprocess.run(
        [sys.executable, *words, "-m", "tvae.train", *options],
        capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert found.returncode == 1
    assert found.stderr.count("error: b1.npy: No such file") == 1, found.stderr
    assert "process 1: b1.npy" not in found.stderr


def test_too_few_data_points():
    codes, printed = run("few", *BARS, "dataset.n_points=2", n_ranks=3)
    assert codes == [2, 2, 2]
    assert printed.strip() == "error: 2 data points: too few for 3 processes"
    assert not Path("few/config.yaml").exists()


def test_mistakes_are_told_once():
    codes, printed = run("wrong", *BARS, "epochs=0", n_ranks=2)
    assert codes == [2, 2]
    assert printed.strip() == "error: epochs=0: must be at least 1"
    Path("mine").mkdir()
    Path("mine/config.yaml").write_text("not: a run")
    codes, printed = run("mine", *BARS, n_ranks=2)
    assert codes == [2, 2]
    assert printed.count("error:") == 1
    assert "holds a foreign config.yaml" in printed


@pytest.mark.parametrize(
    ("others", "message"), [("seed=1", "(seed="), ("dataset=bars_correlated", "(dataset."), ("dataset=natural", "(")]
)
def test_options_that_differ(tmp_path, others, message):
    log, where = Path("log").absolute(), f"hydra.run.dir={tmp_path / 'out'}"
    port = chaos.free_port()
    starts = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    processes = []
    for rank in (0, 1):
        env = starts | {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
        options = [*BARS, *([others] if rank else []), where]
        options = [o for o in options if others != "dataset=natural" or rank == 0 or not o.startswith("dataset.")]
        processes.append(
            chaos.context.Process(target=chaos._be_command, args=("train", options, env, log), daemon=True)
        )
        processes[-1].start()
    assert chaos.wait(processes, 60) == [2, 2]
    assert f"was started with other options {message}" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_directory_that_not_all_processes_see(tmp_path):
    class Elsewhere(Ranks):
        def gather(self, value):
            return [value, False if value is True else value]

        def meet(self):
            pass

    with pytest.raises(UserError, match="not seen by all processes"):
        check_directory(tmp_path, Elsewhere(0, 2))
    check_directory(tmp_path, Ranks())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("end", [LostRank, UserError])
def test_parts_of_a_checkpoint_stay_when_a_process_fails_after_it_is_written(tmp_path, end):
    """The leader has renamed its list of parts, and another process dies, or fails at what comes next."""

    class Dying(Ranks):
        def gather(self, value):
            return [value, []]

        def meet(self):
            raise end

    rows = torch.arange(12, dtype=torch.uint8).view(4, 3)
    with pytest.raises(end):
        checkpoint.save(tmp_path, {"fit": 1}, [{"states": rows}], Dying(0, 2))
    (part,) = checkpoint.load_newest(tmp_path, Ranks()).parts
    assert torch.equal(part.load(), rows)
