"""Times that can be compared: taken by turns in one run, as quotients within a round, with their spread."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple


class Spread(NamedTuple):
    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(median(values), min(values), max(values))

    def text(self, digits: int = 1) -> str:
        return f"{self.middle:.{digits}f} ({self.low:.{digits}f}..{self.high:.{digits}f})"


def by_turns(variants: dict[str, Callable[[], float]], n_rounds: int) -> dict[str, list[float]]:
    """What each variant returns in every round; a machine that is slower for a while is so for all of them."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(n_rounds):
        for name, variant in variants.items():
            found[name].append(variant())
    return found


def ratios(above: list[float], below: list[float]) -> Spread:
    """Quotients of the same round."""
    return Spread.of([a / b for a, b in zip(above, below, strict=True)])


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Within, another process takes all the time it can get of one core."""
    process = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it is at work now
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
