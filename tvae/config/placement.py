"""Placement of the work: the rank of this process, the device, and the number of CPU threads."""

from __future__ import annotations

import os

import torch

from tvae.errors import UserError, refuse

THREADS_PER_CORE = 4  # that may be asked for
CORES_OF_TASK = "SLURM_CPUS_PER_TASK"
SMALL = 2e6  # multiplications in a batch; below, waking a second thread costs more than it brings (measured on bars)


def rank_here() -> int:
    """The rank of this process among all, known before they are connected."""
    return _number("RANK", 0)


def local_rank() -> int:
    """The rank of this process among those on this machine."""
    return _number("LOCAL_RANK", 0)


def local_size() -> int:
    return _number("LOCAL_WORLD_SIZE", 1)


def cores_of_task() -> int | None:
    """The number of cores that SLURM gives to this process; None without SLURM."""
    return _number(CORES_OF_TASK, 1) if CORES_OF_TASK in os.environ else None


def _number(name: str, default: int) -> int:
    """A variable of the environment."""
    value = os.environ.get(name, str(default))
    if not value.isdecimal():
        raise UserError(f"{name}={value} in the environment: must be a whole number")
    return int(value)


def check_environment() -> None:
    """Raise `UserError` unless the environment gives this process a place among the others."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        mine, n_ranks = _number(rank, 0), _number(size, 1)
        refuse(
            mine >= n_ranks and (rank == "RANK" or size in os.environ),  # who starts them by hand may leave it out
            f"{rank}={mine} in the environment, but {size} is {n_ranks}: there is no such process (torchrun sets both)",
        )
    refuse(cores_of_task() == 0, f"{CORES_OF_TASK}=0 in the environment: must be at least 1")


def device_problems(name: str) -> list[str]:
    """Reasons why a device cannot be used."""
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


def threads_problems(n_threads: int | None) -> list[str]:
    """Refuse far more threads than cores, which hinder each other and may end the process."""
    most = THREADS_PER_CORE * n_cores()
    if n_threads is None or n_threads <= most:
        return []
    return [f"threads={n_threads}: must be at most {most}, for this process may use {n_cores()} cores"]


def choose_device(name: str, precision: str) -> torch.device:
    """The device of this name; `auto` is an accelerator that has the wanted precision, if there is one."""
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


def choose_threads(n_multiplications: int) -> int:
    """The number of threads for batches of so much work; at most OMP_NUM_THREADS, if it is set."""
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    most = min(n_cores(), int(allowed)) if allowed.isdecimal() and int(allowed) > 0 else n_cores()
    return 1 if n_multiplications < SMALL else most
