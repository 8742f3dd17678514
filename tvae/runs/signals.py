"""Requests to stop a run: by a signal, or because the process with the list of jobs has ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from tvae.config.placement import rank_here
from tvae.errors import Failure
from tvae.training.team import Team

REPEATED = 5.0  # seconds in which a second signal may be the first one handed on
HANGUP: int | None = getattr(signal, "SIGHUP", None)  # the terminal has gone; not on Windows
LAUNCHED_BY = "TVAE_LAUNCHED_BY"  # in the environment: the process that has the list of jobs
at_work = threading.Lock()  # held by a job


class Interrupted(Failure):
    """A request of the user or the machine to stop; the same command resumes the run."""

    is_shared = True  # the ranks agree to stop


class StoppedEarly(Interrupted):
    """A request of the caller to stop training early."""


class Stop:
    """Requests to stop a run; calling it returns True if there was one."""

    def __init__(self) -> None:
        self.received: list[float] = []  # signals, and when
        self.is_at_limit = False  # of the time that the job has

    def __call__(self) -> bool:
        return bool(self.received) or self.is_at_limit


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """Let Ctrl-C, SIGTERM and SIGHUP make the yielded object true; a second signal ends the process at once.

    Under torchrun, which hands on what the terminal has sent to all, only after a while. submitit tells of the time
    limit by SIGUSR2: this, too, makes it true.
    """
    stop = Stop()
    received = stop.received
    patience = REPEATED if "TORCHELASTIC_RUN_ID" in os.environ else 0

    def note(number: int, frame: object) -> None:
        received.append(time.monotonic())
        if number == HANGUP:
            _leave_terminal()
        if len(received) == 1 and rank_here() == 0:
            with suppress(OSError):  # not by the log: the signal may have interrupted it in the middle of a line
                os.write(2, b"stopping; once more to stop without saving\n")
        elif len(received) > 1 and received[-1] - received[0] >= patience:
            raise KeyboardInterrupt

    def note_limit(number: int, frame: object) -> None:
        stop.is_at_limit = True

    handlers: dict[int, Callable[[int, Any], None]] = {signal.SIGINT: note, signal.SIGTERM: note}
    if HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:  # as under nohup
        handlers[HANGUP] = note
    if "SUBMITIT_EXECUTOR" in os.environ:
        handlers[signal.SIGUSR2] = note_limit
    try:
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    except ValueError:  # not in the main thread, so no signal arrives here
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_terminal() -> None:
    """Write to nowhere instead of a terminal that is gone, which would be an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if os.isatty(stream):
            os.dup2(nowhere, stream)
    os.close(nowhere)


def raise_interrupts() -> None:
    """Make Ctrl-C a `KeyboardInterrupt` from now on, unless it is ignored."""
    with suppress(ValueError):  # not in the main thread
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def queue_again(team: Team) -> None:
    """Let submitit, whose signal told of the time limit, queue the job again; it ends the process that asks for that.

    The leader does, while the others end well, for if one of them failed SLURM would end the leader before it has.
    """
    if not team.is_leader:
        sys.exit(0)
    signal.raise_signal(signal.SIGUSR2)


@cache
def end_with_launcher() -> None:
    """Stop and end this process as soon as the one that started it and has the list of jobs has ended."""
    launcher = int(os.environ.get(LAUNCHED_BY, os.getpid()))

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        with at_work:
            os._exit(1)

    if launcher != os.getpid():
        threading.Thread(target=watch, daemon=True).start()
