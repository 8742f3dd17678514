"""Several processes that train one model: nothing is lost when one of them dies or cannot write."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.fuzz import chaos
from tests.processes import LONG, metrics, run, start, wait_for_epoch
from tvae.runs import checkpoint
from tvae.runs.distributed.ranks import Ranks

pytestmark = pytest.mark.usefixtures("in_folder")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes through Linux's /proc")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The end of an undisturbed run of two processes."""
    folder = tmp_path_factory.mktemp("whole")
    processes = chaos.start("train", [*LONG, f"hydra.run.dir={folder / 'run'}"], folder / "log", 2)
    assert chaos.wait(processes, 120) == [0, 0]
    return chaos.result(folder / "run")


def torchrun(*options, restarts=0):
    words = [*TORCHRUN, "--max-restarts", str(restarts), "--master-port", str(chaos.free_port()), "-m", "tvae.train"]
    return subprocess.Popen(
        [*words, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def workers(agent):
    """The processes torchrun has started, rank by rank."""
    found = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    return [int(pid) for pid in found if b"tvae.train" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@needs_proc
def test_a_killed_worker_is_restarted_and_the_result_is_the_same(whole):
    agent = torchrun(*LONG, "hydra.run.dir=killed", "restart=true", restarts=3)
    for epoch, victim in ((5, 1), (20, 0)):
        wait_for_epoch("killed", epoch)
        os.kill(workers(agent)[victim], signal.SIGKILL)
    printed, _ = agent.communicate(timeout=120)
    assert agent.returncode == 0, printed
    assert printed.count("resumed after epoch") == 2
    assert chaos.differences(whole, chaos.result(Path("killed"))) == []


@needs_proc
@pytest.mark.parametrize("victim", [0, 1])
def test_without_restarts_the_others_end_and_say_why(victim):
    agent = torchrun(*LONG, "epochs=2000", "hydra.run.dir=out")
    wait_for_epoch("out", 3)
    started, pids = time.monotonic(), workers(agent)
    os.kill(pids[victim], signal.SIGKILL)
    printed, _ = agent.communicate(timeout=90)
    assert agent.returncode == 1
    assert time.monotonic() - started < 60
    assert "another process of this run has ended" in printed
    assert not any(map(is_running, pids))
    assert checkpoint.load_newest(Path("out"), Ranks()).content["fit"]["epoch"] >= 1


@needs_proc
def test_after_sigterm_to_torchrun_the_same_command_resumes(whole):
    agent = torchrun(*LONG, "hydra.run.dir=stopped")
    wait_for_epoch("stopped", 5)
    agent.send_signal(signal.SIGTERM)
    printed, _ = agent.communicate(timeout=90)
    assert "interrupted in epoch" in printed
    assert metrics("stopped")["status"] == "interrupted"
    assert run("stopped", *LONG, n_ranks=2)[0] == [0, 0]
    assert chaos.differences(whole, chaos.result(Path("stopped"))) == []


def test_a_process_that_waits_for_a_silent_one_hears_signals():
    """A rank on a machine that has lost its power, which nobody is told of."""
    processes, log = start("silent", *LONG, "epochs=100000", n_ranks=2)
    leader, silent = processes
    try:
        wait_for_epoch("silent", 3)
        os.kill(silent.pid, signal.SIGSTOP)
        for _ in range(2):
            time.sleep(1)
            leader.terminate()
        assert chaos.wait([leader], 20) == [1]
        assert "once more to stop without saving" in log.read_text()
    finally:
        for process in processes:
            process.kill()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="sets the limit of another process, as only Linux can")
@pytest.mark.parametrize(("n_ranks", "victim"), [(1, 0), (2, 1)])
def test_a_full_disk(n_ranks, victim, whole):
    """After some epochs one process can write no file of more than a few bytes: the system refuses the write itself.

    What was saved before must be whole, and the run is resumed from there once there is room.
    """
    processes, log = start("full", *LONG, n_ranks=n_ranks)
    wait_for_epoch("full", 5)
    resource.prlimit(processes[victim].pid, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    assert chaos.wait(processes, 60) == [1] * n_ranks
    printed = log.read_text()
    assert "Traceback" not in printed
    assert printed.count("cannot be written (File too large)") == 1
    saved = checkpoint.load_newest(Path("full"), Ranks())
    assert 5 <= saved.content["fit"]["epoch"] < 40
    assert not list(Path("full").glob(".*"))
    assert run("full", *LONG, n_ranks=n_ranks)[0] == [0] * n_ranks
    if n_ranks == 2:
        assert chaos.differences(whole, chaos.result(Path("full"))) == []


@pytest.mark.parametrize(("n_kills", "n_ranks"), [(6, 1), (3, 2)])
def test_kills_at_random_moments_leave_no_trace(tmp_path, n_kills, n_ranks):
    lines = []
    options = [*chaos.small_run(tmp_path), "threads=1"]
    n_runs, n_different = chaos.torment(options, tmp_path / "chaos", n_kills, n_ranks, seed=1, report=lines.append)
    assert n_runs >= 1
    assert n_different == 0, lines
