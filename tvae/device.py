"""Where the work is done: the device, how many threads of the CPU, and what to say about the machine."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

import tvae
from tvae.ranks import local_rank, local_size


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
    if local_size() > 1 and (kind == "mps" or number):
        return [f"device={name}: {local_size()} processes on this machine cannot share it"]
    if local_size() > max(1, torch.cuda.device_count()):
        return [
            f"device={name}: {local_size()} processes, but {torch.cuda.device_count()} CUDA devices on this machine"
        ]
    return []


def choose_device(name: str, precision: str) -> torch.device:
    """`auto` takes an accelerator where there is one that can do the wanted precision."""
    if name not in ("auto", "cuda"):
        return torch.device(name)
    if name == "cuda" or (torch.cuda.is_available() and local_size() <= torch.cuda.device_count()):
        return torch.device("cuda", local_rank())
    if torch.backends.mps.is_available() and precision == "float32" and local_size() == 1:
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


@lru_cache
def machine() -> dict[str, str]:
    """Hardware, versions and, in a checkout, the revision that results were made with."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": str(n_cores()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tvae": tvae.__version__ + _revision(),
    }


def _revision() -> str:
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        found = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f" ({found.stdout.strip()})"
