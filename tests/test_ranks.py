"""Several processes that train one model: the same result as one alone, and nothing lost when one of them dies."""

import csv
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from scripts import chaos
from tvae import checkpoint, ranks, stopping
from tvae.config import UserError
from tvae.ranks import LostRank, Ranks, _agree
from tvae.rundir import check_directory

BARS = ["dataset=bars", "dataset.n_points=61", "states.n_states=16", "batch_size=16", "epochs=4", "precision=float64"]
LINEAR = ["dataset=natural", "model=linear", "n_patches=131", "model.n_latents=20", "dataset.patch_size=4", "epochs=3",
          "precision=float64", "batch_size=16"]  # fmt: skip
LONG = ["dataset=bars", "dataset.n_points=500", "epochs=40", "checkpoint_seconds=0"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(name, *options, n_ranks=1, command="train", **more):
    """Exit codes of the ranks, and what they printed."""
    log = Path(f"{name}.log").absolute()
    processes = chaos.start(command, [*options, f"hydra.run.dir={Path(name).absolute()}"], log, n_ranks, **more)
    codes = chaos.wait(processes, 120)
    return codes, log.read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The end of an undisturbed run of two processes."""
    folder = tmp_path_factory.mktemp("whole")
    processes = chaos.start("train", [*LONG, f"hydra.run.dir={folder / 'run'}"], folder / "log", 2)
    assert chaos.wait(processes, 120) == [0, 0]
    return chaos.result(folder / "run")


def history(name):
    with open(Path(name) / "history.csv") as file:
        rows = list(csv.DictReader(file))
    columns = ("elbo", "elbo_test", "sigma", "pi_sum", "n_accepted")
    return np.array([[float(row[column] or 0) for column in columns] for row in rows])


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
    options = [*chaos.small_run(tmp_path), "precision=float64", "epochs=3"]
    command = "denoise" if n_missing == 0 else "inpaint"
    options += [f"missing={n_missing}"] if n_missing else []
    for n_ranks in (1, 2):
        codes, printed = run(f"of_{n_ranks}", *options, n_ranks=n_ranks, command=command)
        assert codes == [0] * n_ranks, printed
    assert Path("of_1/restored.png").read_bytes() == Path("of_2/restored.png").read_bytes()
    again, printed = run("again", "run=of_2", n_ranks=2, command=command)
    assert again == [0, 0], printed
    assert Path("again/restored.png").read_bytes() == Path("of_2/restored.png").read_bytes()


def test_a_run_goes_on_with_another_number_of_processes():
    """Stopped in the middle of epochs: first of two, then of three, then of one."""
    options = [*LONG, "precision=float64"]
    assert run("whole", *options)[0] == [0]
    for n_ranks in (2, 3):
        log = Path("parts.log").absolute()
        where = f"hydra.run.dir={Path('parts').absolute()}"
        processes = chaos.start("train", [*options, where], log, n_ranks)
        wait_for_epoch("parts", 7 * n_ranks)
        os.kill(processes[-1].pid, signal.SIGTERM)  # one is told, and all stop
        assert chaos.wait(processes, 60) == [1] * n_ranks
        assert "interrupted in epoch" in log.read_text()
        assert json.loads(Path("parts/metrics.json").read_text())["status"] == "interrupted"
        assert len(checkpoint.load_newest(Path("parts")).parts) == n_ranks
    assert run("parts", *options)[0] == [0]
    # All but how many states were new: of two that are as good to the last bits, either may be kept.
    np.testing.assert_allclose(history("parts")[:, :4], history("whole")[:, :4], rtol=1e-7)
    assert len(checkpoint.load_newest(Path("parts")).parts) == 1


def wait_for_epoch(name, epoch):
    """Until a run has reported as many epochs."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if len(history(name)) >= epoch:
                return
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.02)
    pytest.fail(f"{name} has not reached epoch {epoch}")


def test_parts_of_a_checkpoint_stay_when_a_process_dies_after_it_is_written(tmp_path, monkeypatch):
    """The leader has renamed its list of parts, and another process dies before it says so."""

    class Dying(Ranks):
        def gather(self, value):
            return [value, []]

        def together(self, action):
            action()

        def lead(self, action):
            action()
            raise LostRank

    rows = torch.arange(12, dtype=torch.uint8).view(4, 3)
    with pytest.raises(LostRank):
        checkpoint.save(tmp_path, {"fit": 1}, [{"states": rows}], Dying(0, 2))
    (part,) = checkpoint.load_newest(tmp_path).parts
    assert torch.equal(part.load(), rows)


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
    monkeypatch.setattr(ranks, "_joined", Ranks(0, 2, attempt))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks.is_first_attempt() == is_first


def test_a_job_that_fails_does_not_stop_the_others_of_a_sweep():
    options = ["-m", *LONG, "epochs=20", "lr=constant", "lr.max=0.01,1e30,0.02", "hydra.sweep.dir=out"]
    log = Path("log").absolute()
    processes = chaos.start("train", [*options, "hydra.sweep.subdir=rate_${lr.max}"], log, 2)
    assert chaos.wait(processes, 120) == [1, 1]
    found = {p.parent.name: json.loads(p.read_text())["status"] for p in Path("out").glob("*/metrics.json")}
    assert found == {"rate_0.01": "finished", "rate_1e+30": "failed", "rate_0.02": "finished"}
    assert log.read_text().count("jobs that failed") == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_the_time_limit_of_a_cluster_is_handed_on_by_the_leader(monkeypatch, rank):
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    handed_on = []
    before = signal.signal(signal.SIGUSR2, lambda *_: handed_on.append("queue it again"))
    try:
        with stopping.stop_on_signal() as stop:
            assert not stop()
            signal.raise_signal(signal.SIGUSR2)
            assert stop()
            assert stop.is_at_limit
        assert handed_on == []
        if rank == 0:
            stopping.queue_again(Ranks(0, 2))
        else:
            with pytest.raises(SystemExit) as end:
                stopping.queue_again(Ranks(1, 2))
            assert end.value.code == 0  # else SLURM would end the leader as well
        assert len(handed_on) == (rank == 0)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_directory_that_not_all_processes_see(tmp_path):
    class Elsewhere(Ranks):
        def gather(self, value):
            return [value, False if value is True else value]

        def together(self, action):
            return action()

    with pytest.raises(UserError, match="not seen by all processes"):
        check_directory(tmp_path, Elsewhere(0, 2))
    check_directory(tmp_path, Ranks())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("environment", [{"WORLD_SIZE": "x"}, {"WORLD_SIZE": "2", "RANK": "0"}])
def test_an_environment_that_torchrun_does_not_make(command, monkeypatch, environment):
    monkeypatch.setattr(ranks, "_joined", None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code, out = command("train", *BARS)
    assert code == 2
    assert out.startswith("error: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment are not as torchrun")


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
    assert "holds a config.yaml that is no run's" in printed


def test_a_process_that_comes_late():
    codes, printed = run("late", *BARS, n_ranks=2, late=(0, 3))
    assert codes == [0, 0], printed


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


def test_a_process_that_waits_for_a_silent_one_hears_signals():
    """As for one on a machine that has lost its power, which nobody is told of."""
    log = Path("silent.log").absolute()
    options = [*LONG, "epochs=100000", f"hydra.run.dir={Path('silent').absolute()}"]
    leader, silent = processes = chaos.start("train", options, log, 2)
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


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes through Linux's /proc")
def test_a_killed_worker_is_restarted_and_the_result_is_the_same(whole):
    agent = torchrun(*LONG, "hydra.run.dir=killed", "restart=true", restarts=3)
    for epoch, victim in ((5, 1), (20, 0)):
        wait_for_epoch("killed", epoch)
        os.kill(workers(agent)[victim], signal.SIGKILL)
    printed, _ = agent.communicate(timeout=120)
    assert agent.returncode == 0, printed
    assert printed.count("going on after epoch") == 2
    assert chaos.differences(whole, chaos.result(Path("killed"))) == []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes through Linux's /proc")
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
    assert checkpoint.load_newest(Path("out")).content["fit"]["epoch"] >= 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes through Linux's /proc")
def test_sigterm_to_torchrun_saves_and_the_same_command_goes_on(whole):
    agent = torchrun(*LONG, "hydra.run.dir=stopped")
    wait_for_epoch("stopped", 5)
    agent.send_signal(signal.SIGTERM)
    printed, _ = agent.communicate(timeout=90)
    assert "interrupted in epoch" in printed
    assert json.loads(Path("stopped/metrics.json").read_text())["status"] == "interrupted"
    assert run("stopped", *LONG, n_ranks=2)[0] == [0, 0]
    assert chaos.differences(whole, chaos.result(Path("stopped"))) == []


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="sets the limit of another process, as only Linux can")
@pytest.mark.parametrize(("n_ranks", "victim"), [(1, 0), (2, 1)])
def test_a_full_disk(n_ranks, victim, whole):
    """After some epochs one process can write no file of more than a few bytes: the system refuses the write itself.

    What was saved before must be whole, and the run goes on from there once there is room.
    """
    log = Path("full.log").absolute()
    processes = chaos.start("train", [*LONG, f"hydra.run.dir={Path('full').absolute()}"], log, n_ranks)
    wait_for_epoch("full", 5)
    resource.prlimit(processes[victim].pid, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    assert chaos.wait(processes, 60) == [1] * n_ranks
    printed = log.read_text()
    assert "Traceback" not in printed
    assert printed.count("cannot be written (File too large)") == 1
    saved = checkpoint.load_newest(Path("full"))
    assert 5 <= saved.content["fit"]["epoch"] < 40
    assert not list(Path("full").glob(".*"))
    assert run("full", *LONG, n_ranks=n_ranks)[0] == [0] * n_ranks
    if n_ranks == 2:
        assert chaos.differences(whole, chaos.result(Path("full"))) == []


@pytest.mark.parametrize(("n_kills", "n_ranks"), [(10, 1), (4, 2)])
def test_kills_at_random_moments_leave_no_trace(tmp_path, n_kills, n_ranks):
    lines = []
    n_runs, n_different = chaos.torment(
        chaos.small_run(tmp_path), tmp_path / "chaos", n_kills, n_ranks, seed=1, report=lines.append
    )
    assert n_runs >= 1
    assert n_different == 0, lines


def test_submitit_starts_several_processes_for_one_run():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install '.[slurm]'")
    options = ["-m", *BARS, "hydra/launcher=submitit_local", "hydra.launcher.tasks_per_node=2", "hydra.sweep.dir=out",
               "hydra.sweep.subdir=run", "hydra.launcher.timeout_min=5"]  # fmt: skip
    words = [sys.executable, "-m", "tvae.train", *options]
    found = subprocess.run(
        words, capture_output=True, text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(Path("out/run/metrics.json").read_text())["status"] == "finished"
    assert run("alone", *BARS)[0] == [0]
    np.testing.assert_allclose(history("out/run"), history("alone"), rtol=1e-9)
    assert len(checkpoint.load_newest(Path("out/run")).parts) == 2  # so they were two
