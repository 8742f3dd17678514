"""How a run is asked to stop: by a signal, or because the process that has the list of jobs has ended."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from tvae.ranks import rank_here

log = logging.getLogger("tvae")

REPEATED = 5.0  # seconds in which a second signal may be the first one handed on
LAUNCHED_BY = "TVAE_LAUNCHED_BY"  # in the environment: the process that has the list of jobs
at_work = threading.Lock()  # held by a job


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C and SIGTERM make the yielded function true; a second one ends the process at once.

    Under torchrun, which hands on what the terminal has sent to all, only after a while. submitit tells of the time
    limit by SIGUSR2: this, too, makes it true, and is handed on to submitit at the end, which queues the job again.
    """
    received: list[float] = []
    patience = REPEATED if "TORCHELASTIC_RUN_ID" in os.environ else 0

    def note(number: int, frame: object) -> None:
        received.append(time.monotonic())
        if len(received) == 1 and rank_here() == 0:
            log.warning("stopping; once more to stop without saving")
        elif len(received) > 1 and received[-1] - received[0] >= patience:
            raise KeyboardInterrupt

    def note_limit(number: int, frame: object) -> None:
        limit_received.append(number)

    limit_received: list[int] = []
    handlers: dict[int, Callable[[int, Any], None]] = {signal.SIGINT: note, signal.SIGTERM: note}
    if "SUBMITIT_EXECUTOR" in os.environ:
        handlers[signal.SIGUSR2] = note_limit
    try:
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    except ValueError:  # not in the main thread, so no signal arrives here
        before = {}
    try:
        yield lambda: bool(received or limit_received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if limit_received:
            signal.raise_signal(signal.SIGUSR2)


@cache
def end_with_launcher() -> None:
    """From now on, stop and end this process when the one that has started it and has the list of jobs has ended."""
    launcher = int(os.environ.get(LAUNCHED_BY, os.getpid()))

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        with at_work:
            os._exit(1)

    if launcher != os.getpid():
        threading.Thread(target=watch, daemon=True).start()
