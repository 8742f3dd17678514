"""How many threads the kernel uses, and how torch and the kernel share them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

WORTH_THREADS = 2**22  # multiplications; below, waking other threads takes longer than they save

_kernel_threads: int | None = None  # if they are more than torch's


def n_threads_for(n_multiplications: int) -> int:
    """As many as torch uses, or `torch_on_one_thread` has set aside, if there is enough to do; else one."""
    return _kernel_threads or torch.get_num_threads() if n_multiplications > WORTH_THREADS else 1


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Within, torch works on one thread and the kernel on those that torch had.

    What a visit leaves to torch is tiny, and waking a second thread for each operation costs more than it brings: a
    little on an idle machine, most of the time on one whose cores have other work.
    """
    global _kernel_threads
    _kernel_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_kernel_threads)
        _kernel_threads = None
