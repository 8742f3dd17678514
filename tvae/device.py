"""Where the work is done: the device, and how many threads of the CPU."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import torch


def device_problems(name: str) -> list[str]:
    """Why a device cannot be used, if so."""
    if name in ("auto", "cpu"):
        return []
    kind, _, number = name.partition(":")
    if kind not in ("cuda", "mps") or (number and not (kind == "cuda" and number.isdigit())):
        return [f"device={name}: must be one of auto, cpu, cuda, cuda:N, mps"]
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        return [f"device={name}: this machine has {torch.cuda.device_count()} CUDA devices"]
    if kind == "mps" and not torch.backends.mps.is_available():
        return ["device=mps: not available on this machine"]
    return []


def choose_device(name: str, precision: str) -> torch.device:
    """`auto` takes an accelerator where there is one that can do the wanted precision."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available() and precision == "float32":
        return torch.device("mps")
    return torch.device("cpu")


def n_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_threads(n_states: int, sizes: Sequence[int]) -> int:
    """For batches of `n_states` states through layers of these sizes.

    Waking a second thread costs more than it brings where a batch is little work (measured on bars).
    """
    n_products = sum(a * b for a, b in itertools.pairwise(sizes))
    return 1 if n_states * n_products < 2e6 else n_cores()
