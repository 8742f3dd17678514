"""Threads: how many the kernel uses, how torch shares them with it, and what calls side by side leave behind.

The threads that torch works on belong to each Python thread, and to the process as what a new Python thread begins
with. A forked process has none of those that torch had started, whoever had used it, and would wait for them without
end; so it works on one.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

FLAGS, FORKED = 6, 0x40  # of a process in Linux: their place after its name and state, and that it has begun no program
WORTH_THREADS = 2**22  # multiplications; below, waking other threads takes longer than they save

_here = threading.local()  # n_kernel: threads of the kernel in this Python thread, if they are more than torch's


class _Calls:
    """Calls at work in this process, and torch's settings before the first of them."""

    def __init__(self, has_lost_threads: bool):
        self.lock, self.has_lost_threads = threading.Lock(), has_lost_threads
        self.n_at_work = self.n_before = 0
        self.type_before = torch.float32
        self.has_many = False  # torch was let work on more than one


def _is_of_fork_server() -> bool:
    """True below multiprocessing's fork server, which has only imported what its children need."""
    return any("multiprocessing.forkserver" in word for word in sys.orig_argv)


def _is_forked() -> bool:
    """True if this process was forked from one that may have used torch, as far as the system tells."""
    with suppress(OSError, ValueError, IndexError):
        flags = int(Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()[FLAGS])
        return bool(flags & FORKED) and not _is_of_fork_server()
    return False


_calls = _Calls(has_lost_threads=_is_forked())


def _begin_forked() -> None:
    global _calls
    # new, for its lock may have been held by a thread that is not here
    _calls = _Calls(_calls.has_many or _calls.has_lost_threads or not _is_of_fork_server())


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_begin_forked)


def n_threads_for(n_multiplications: int) -> int:
    """The number of threads that torch uses, or `torch_on_one_thread` has set aside; one for little work."""
    set_aside: int | None = getattr(_here, "n_kernel", None)
    return set_aside or torch.get_num_threads() if n_multiplications > WORTH_THREADS else 1


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Run torch on one thread, and the kernel on those that torch had.

    A visit leaves little to torch, and waking a second thread for each operation costs more than it brings: a little on
    an idle machine, most of the time on one whose cores have other work.
    """
    before, outer = torch.get_num_threads(), getattr(_here, "n_kernel", None)
    _here.n_kernel = outer or before
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _here.n_kernel = outer


def use_threads(n_threads: int) -> None:
    """Set the number of torch's threads; in a forked process it is one."""
    _calls.has_many |= n_threads > 1 and not _calls.has_lost_threads
    torch.set_num_threads(1 if _calls.has_lost_threads else n_threads)


@contextmanager
def own_settings() -> Iterator[None]:
    """Give a Python call single precision by default, and let it choose its threads.

    Afterwards torch has the threads it had before the first of the calls under way, and after the last of them the
    default type, too.
    """
    with _calls.lock:
        if _calls.n_at_work == 0:
            _calls.n_before, _calls.type_before = torch.get_num_threads(), torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
        _calls.n_at_work += 1
    try:
        use_threads(_calls.n_before)
        yield
    finally:
        with _calls.lock:
            _calls.n_at_work -= 1
            torch.set_num_threads(_calls.n_before)
            if _calls.n_at_work == 0:
                torch.set_default_dtype(_calls.type_before)
