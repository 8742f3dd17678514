"""Give the commands and the Python calls what nobody should, and look at how they end.

    python -m scripts.fuzz.fuzzer [--minutes 60] [--seed 0] [--out outputs/fuzz]

Options, picture files, masks, stacks, folders, outputs, arrays, run directories, configurations, checkpoints, models,
sweeps and searches are drawn by hypothesis and tried in this process on a tiny picture. Found are tracebacks, hangs of
more than a minute, files of the user that were changed, results of another size or type than the picture, and results
that differ when the same is asked for once more. Each attempt has a number, so that
`python -m scripts.fuzz.fuzzer --only NUMBER` repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import itertools
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from scripts.fuzz import attempts
from scripts.fuzz.attempts import Attempt
from scripts.fuzz.files import FILES
from scripts.fuzz.world import World, make_world

ATTEMPTS: dict[str, st.SearchStrategy[Attempt]] = {**attempts.ATTEMPTS, **FILES}
HANGS_AFTER = 60.0  # seconds
MEMORY = 12 << 30  # bytes of addresses, so that what wants more is told so instead of taking the machine down
ROUND = 100  # attempts that are drawn from one seed
SETTINGS = settings(
    max_examples=ROUND, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


class Hang(BaseException):
    """An attempt that takes too long; no `Exception`, which a command may catch."""


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    """Stop what takes too long; what cannot be stopped, because no Python runs, ends the process."""

    def stop(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    faulthandler.dump_traceback_later(2 * HANGS_AFTER, exit=True)
    signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def judge(attempt: Attempt, world: World) -> list[str]:
    """Carry out an attempt, and list the problems with how it ends."""
    attempt.change(world)
    before = world.hashes(but=attempt.may_change)
    printed = io.StringIO()
    code: object = None
    problems = []
    try:
        with limited_time(), contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            code = attempt.run(world)
    except Hang:
        problems.append(f"hangs: takes more than {HANGS_AFTER:g} s")
    except Exception:
        problems.append(traceback.format_exc())
    text = printed.getvalue()
    if code not in (None, 0, 1, 2):
        problems.append(f"ends with {code!r}")
    if "Traceback" in text and not problems:
        problems.append(text)
    if code in (1, 2) and not 1 <= len(text.splitlines()) <= attempt.n_lines_max:
        problems.append(f"tells of a mistake in {len(text.splitlines())} lines: {text[:500]}")
    after = world.hashes()
    changed = [name for name, value in before.items() if after.get(name) != value]
    if changed:
        problems.append(f"has changed {', '.join(changed)}")
    if code == 0 and not problems:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            problems += attempt.compare(world)
    return problems


class Fuzzer:
    """Counts attempts and writes down what is wrong with them."""

    def __init__(self, folder: Path, first_seed: int, report: Callable[[str], object] = print):
        self.folder, self.first_seed, self.report = folder, first_seed, report
        self.tried: Counter[str] = Counter()
        self.wrong: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.template = make_world(folder / "template")

    def run(self, seconds: float, n_most: int = sys.maxsize, only: int | None = None) -> None:
        """Make attempts until the time is over, or so many; `only`: the number of a single one."""
        end, numbers = time.monotonic() + seconds, itertools.count(0 if only is None else only // ROUND * ROUND)

        def is_over() -> bool:
            return time.monotonic() > end or sum(self.tried.values()) >= (n_most if only is None else 1)

        def attempt_next(drawn: tuple[str, Attempt]) -> None:
            number = next(numbers)
            if only in (None, number) and not is_over():
                self._try(number, *drawn)

        first_round = 0 if only is None else only // ROUND
        for number in itertools.count(first_round):
            kinds = st.sampled_from(sorted(ATTEMPTS))
            drawn = given(kinds.flatmap(lambda kind: st.tuples(st.just(kind), ATTEMPTS[kind])))(attempt_next)
            seed(self.first_seed + number)(SETTINGS(drawn))()
            self.report(f"{sum(self.tried.values())} attempts so far, {len(self.wrong)} problems")
            if is_over() or only is not None:
                break

    def _try(self, number: int, kind: str, attempt: Attempt) -> None:
        """Make one attempt in a copy of the world."""
        place, here = self.folder / "attempt", os.getcwd()
        shutil.rmtree(place, ignore_errors=True)
        world = self.template.copied(place)
        os.chdir(place)
        try:
            problems = judge(attempt, world)
        finally:
            os.chdir(here)
        self.tried[kind] += 1
        for problem in problems:
            self.wrong.append(f"{number}: {kind}: {attempt}: {problem}")
            self.report(self.wrong[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of the attempt to repeat")
    parser.add_argument("--out", type=Path, default=Path("outputs/fuzz"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    fuzzer = Fuzzer(options.out.absolute(), options.seed, lambda line: print(line, flush=True))
    fuzzer.run(60 * options.minutes, only=options.only)
    counts = ", ".join(f"{n} {kind}" for kind, n in sorted(fuzzer.tried.items()))
    print(f"{sum(fuzzer.tried.values())} attempts ({counts}), {len(fuzzer.wrong)} problems")
    sys.exit(bool(fuzzer.wrong))


if __name__ == "__main__":
    main()
