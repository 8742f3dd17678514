"""How many minibatches are visited at one go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

MOMENT = 0.05  # seconds: what a stretch may take, in which nobody is asked whether to stop
MOST_AT_ONCE = 64


class Pace:
    """As many as take a moment on this machine, if `is_free`, else one. Results do not depend on it."""

    def __init__(self, is_free: bool):
        self.is_free, self.n_at_once = is_free, 1

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within, `n_at_once` are visited."""
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        if self.is_free and seconds < MOMENT / 2:
            self.n_at_once = min(2 * self.n_at_once, MOST_AT_ONCE)
        elif seconds > 2 * MOMENT:
            self.n_at_once = max(1, self.n_at_once // 2)
