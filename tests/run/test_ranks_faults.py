"""Several processes that train one model: what goes wrong on one of them is raised on all, and told once."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts import chaos
from tests.processes import BARS, LONG, run, statuses
from tvae.core.errors import TrainingFailed, UserError
from tvae.run import checkpoint, connection, ranks
from tvae.run.ranks import LostRank, Ranks
from tvae.run.run_directory import check_directory

WAITS = {
    "add": lambda ranks: ranks.add([torch.ones(3)]),
    "share": lambda ranks: ranks.share([torch.ones(3)]),
    "gather": lambda ranks: ranks.gather("word"),
    "meet": lambda ranks: ranks.meet(),
    "in_turn": lambda ranks: ranks.in_turn(lambda: 3),
    "nothing": lambda ranks: None,  # it is done, and waits for the other all the same
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def be_rank(body, rank, n_ranks, port):
    """In a new process: what `body` returns, in the file RANK.json."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(n_ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    Path(f"{rank}.json").write_text(json.dumps(body(rank)))
    connection.wait_until_told()


def on_ranks(body, n_ranks=2):
    """What `body(rank)` returns on each of several ranks."""
    port = chaos.free_port()
    processes = [
        chaos.context.Process(target=be_rank, args=(body, rank, n_ranks, port), daemon=True) for rank in range(n_ranks)
    ]
    for process in processes:
        process.start()
    assert chaos.wait(processes, 100) == [0] * n_ranks
    return [json.loads(Path(f"{rank}.json").read_text()) for rank in range(n_ranks)]


def outcome(action):
    """What a job of connected ranks has raised: its kind, its message, and whether all have it."""
    started = time.monotonic()
    try:
        with connection.join().sharing_failures():
            action(connection.join())
    except Exception as error:
        assert time.monotonic() - started < 8, "less than the time a rank waits to be heard"
        return [type(error).__name__, str(error), getattr(error, "is_shared", False)]
    return "done"


def fail_by_turns(rank):
    """Each rank fails while the others wait, in all the ways there are; after each failure they connect again."""
    found = []
    for waits in WAITS.values():
        for failing in (0, 1):

            def action(ranks, failing=failing, waits=waits):
                if rank == failing:
                    raise UserError(f"a mistake on {failing}", "and another")
                waits(ranks)

            found.append(outcome(action))
    return [found, outcome(lambda ranks: ranks.meet()), connection.join().attempt, connection.join().gather(rank)]


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_a_failure_of_one_rank_is_raised_on_all_and_they_connect_again(n_ranks):
    expected = [["UserError", f"a mistake on {failing}\nand another", True] for _ in WAITS for failing in (0, 1)]
    for found in on_ranks(fail_by_turns, n_ranks):
        assert found == [expected, "done", 0, list(range(n_ranks))]


class Unpicklable(Exception):
    def __init__(self, number, word):
        super().__init__(f"{number} {word}")


def fail_in_odd_ways(rank):
    def own(ranks):
        raise UserError(f"a mistake of {rank}")

    def unforeseen(ranks):
        if rank == 1:
            raise Unpicklable(7, "doors")
        ranks.meet()

    def of_the_system(ranks):
        if rank == 1:
            Path("nowhere/file").read_text()
        ranks.meet()

    def seen_by_all(ranks):
        raise TrainingFailed("the same sums")

    before = connection.join()
    found = [outcome(seen_by_all)]
    assert connection.join() is before, "no operation is unfinished"
    return found + [outcome(action) for action in (own, unforeseen, of_the_system)]


def test_failures_of_all_kinds():
    leader, other = on_ranks(fail_in_odd_ways)
    assert leader[0] == other[0] == ["TrainingFailed", "the same sums", True]
    assert [leader[1][1:], other[1][1:]] == [["a mistake of 0", True], ["a mistake of 1", True]]
    assert leader[2] == ["RuntimeError", "Unpicklable: 7 doors", True]
    assert other[2] == ["Unpicklable", "7 doors", True]
    assert leader[3] == other[3] == ["FileNotFoundError", "[Errno 2] No such file or directory: 'nowhere/file'", True]


def fail_unheard(rank):
    """Rank 1 fails and ends while the leader is busy for longer than rank 1 waits."""
    ranks.PATIENCE = 0.5

    def action(ranks):
        if rank == 1:
            raise UserError("a mistake on 1")
        time.sleep(3)
        ranks.meet()

    return outcome(action)


def test_a_failure_that_is_heard_late_is_not_taken_for_a_lost_rank():
    """It is not shared, so rank 1 has told it itself, and a sweep is not continued by one rank alone."""
    assert on_ranks(fail_unheard) == [["UserError", "a mistake on 1", False]] * 2


def take_turns(rank):
    """Who has begun before whom."""
    connected = connection.join()

    def action():
        time.sleep(0.3 if rank == 0 else 0)
        return time.time()

    return connected.gather(connected.in_turn(action))


def test_in_turn_the_leader_comes_first():
    (first, *others), *same = on_ranks(take_turns, 3)
    assert all(first < other for other in others)
    assert all(found == [first, *others] for found in same)


def test_alone_nothing_is_shared_and_nothing_waits():
    with pytest.raises(UserError) as caught, Ranks().sharing_failures():
        raise UserError("mine")
    assert not caught.value.is_shared
    assert Ranks().in_turn(lambda: 3) == 3


# ---- commands


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
    """By the leader, which torchrun would end as soon as the other has ended."""
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
    assert "holds a config.yaml that is no run's" in printed


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


# ---- files


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
