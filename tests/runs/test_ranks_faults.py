"""Several processes that train one model: what goes wrong on one of them is raised on all, and told once."""

import json
import os
import time
from pathlib import Path

import pytest
import torch

from scripts.fuzz import chaos
from tvae.errors import TrainingFailed, UserError
from tvae.runs.distributed import connection, ranks
from tvae.runs.distributed.ranks import Ranks

pytestmark = pytest.mark.usefixtures("in_folder")

WAITS = {
    "add": lambda ranks: ranks.add([torch.ones(3)]),
    "share": lambda ranks: ranks.share([torch.ones(3)]),
    "gather": lambda ranks: ranks.gather("word"),
    "meet": lambda ranks: ranks.meet(),
    "in_turn": lambda ranks: ranks.in_turn(lambda: 3),
    "nothing": lambda ranks: None,  # it is done, and waits for the other all the same
}


def be_rank(body, rank, n_ranks, port):
    """Run `body` in a new process, with its result in the file RANK.json."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(n_ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    Path(f"{rank}.json").write_text(json.dumps(body(rank)))
    connection.wait_until_told()


def on_ranks(body, n_ranks=2):
    """Values that `body(rank)` returns on each of several ranks."""
    port = chaos.free_port()
    processes = [
        chaos.context.Process(target=be_rank, args=(body, rank, n_ranks, port), daemon=True) for rank in range(n_ranks)
    ]
    for process in processes:
        process.start()
    assert chaos.wait(processes, 100) == [0] * n_ranks
    return [json.loads(Path(f"{rank}.json").read_text()) for rank in range(n_ranks)]


def outcome(action):
    """The error that a job of connected ranks has raised: its kind, its message, and whether all have it."""
    started = time.monotonic()
    try:
        with connection.sharing_failures():
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
    """Rank 1 tells a failure that is not shared itself, and a sweep is not continued by one rank alone."""
    assert on_ranks(fail_unheard) == [["UserError", "a mistake on 1", False]] * 2


def take_turns(rank):
    """Pairs of ranks of which one has begun before the other."""
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
    with pytest.raises(UserError) as caught, connection.sharing_failures():
        raise UserError("mine")
    assert not caught.value.is_shared
    assert Ranks().in_turn(lambda: 3) == 3
