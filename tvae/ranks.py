"""The processes that train one model together: who they are, and what they tell each other.

`torchrun -m tvae.train ...` starts them, or submitit with several tasks; a process that was started otherwise is alone,
and then nothing here costs anything. Each rank owns a contiguous part of the data points and their states. The decoder
is the same on all of them, because all of them take the same steps by the same sums.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tvae.config import UserError

log = logging.getLogger(__name__)

Result = TypeVar("Result")

TIMEOUT = timedelta(minutes=30)  # for a rank that is late; one that has ended is noticed at once
AWAKE = 0.02  # seconds to wait for the others without going to sleep, from which a process is woken late


class LostRank(Exception):
    """Another rank has ended or cannot be reached: exit code 1.

    It is logged where it is noticed, and at once: whoever started the ranks is about to end this one as well.
    """


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what torch raises, whatever the cause
        reason = re.sub(r"^\[\S*\] ", "", str(error).splitlines()[0]).partition(". ")[0]  # no source file, no advice
        log.error(
            "process %d: another process of this run has ended or cannot be reached (%s); the same command goes on "
            "from the last checkpoint", rank_here(), reason,
        )  # fmt: skip
        raise LostRank from error


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1
    attempt: int = 0  # how often such ranks were connected before, by the same store

    @property
    def is_leader(self) -> bool:
        """The one that writes files."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    def part(self, n: int) -> range:
        """Which of n data points are this rank's."""
        return range(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each by its sum over all ranks: the same to the last bit on all of them."""
        if self.is_alone or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with _connected():
            _wait(dist.all_reduce(flat, async_op=True))
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replace each by the leader's."""
        if self.is_alone:
            return
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        with _connected():
            _wait(dist.broadcast(flat, 0, async_op=True))
        for tensor, value in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.detach().copy_(value.view_as(tensor))

    def any(self, flag: bool) -> bool:
        """Whether it is true on some rank."""
        if self.is_alone:
            return flag
        found = torch.tensor([float(flag)])
        self.add([found])
        return bool(found.item())

    def gather(self, value: Any) -> list[Any]:
        """The value of every rank, on all of them."""
        if self.is_alone:
            return [value]
        content = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        n_bytes = [int(n) for n in self._gather(torch.tensor([len(content)]))]
        found = self._gather(torch.nn.functional.pad(content, (0, max(n_bytes) - len(content))))
        return [pickle.loads(row[:n].numpy().tobytes()) for row, n in zip(found, n_bytes, strict=True)]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of every rank, all of one shape. torch's own gathering of objects would not hear signals."""
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        with _connected():
            _wait(dist.all_gather(found, tensor, async_op=True))
        return found

    def together(self, action: Callable[[], Result]) -> Result:
        """The action on every rank; what goes wrong on one of them is raised on all."""
        if self.is_alone:
            return action()
        problem: Any = None
        try:
            result = action()
        except LostRank:
            raise
        except Exception as error:
            problem = error
        problems = [found for found in self.gather(_sendable(problem)) if found is not None]
        if problems:
            raised = problems[0] if problem is None else problem
            raised.is_shared = True  # so that only the leader tells of it
            raise raised
        return result

    def lead(self, action: Callable[[], Result]) -> Result | None:
        """The action on the leader alone, while the others wait; what goes wrong is raised on all."""
        return self.together(lambda: action() if self.is_leader else None)

    def in_turn(self, action: Callable[[], Result]) -> Result:
        """The action on every rank, the leader first: others find what it has downloaded or cached."""
        if self.is_alone:
            return action()
        first = self.lead(action)
        found = self.together(lambda: first if self.is_leader else action())
        assert found is not None
        return found


ALONE = Ranks()
_joined: Ranks | None = None


def join() -> Ranks:
    """The ranks that this process was started with; the first call connects them, and waits for those that are late."""
    global _joined
    if _joined is None:
        _joined = _connect()
    return _joined


def is_joined() -> bool:
    return _joined is not None


def leave() -> None:
    """End the connection, where there is one."""
    global _joined
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    _joined = None


def rank_here() -> int:
    """Among all ranks, also before they are joined."""
    return int(os.environ.get("RANK", 0))


def is_first_attempt() -> bool:
    """Whether this run was not started before by the same torchrun, or as the same SLURM job.

    torchrun does not count restarts on a machine whose own processes were well, but its store outlives them.
    """
    counts = (os.environ.get(name, "0") for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return join().attempt == 0 and all(count == "0" for count in counts)


def local_rank() -> int:
    """Among the ranks on this machine."""
    return int(os.environ.get("LOCAL_RANK", 0))


def local_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def _connect() -> Ranks:
    _read_submitit()
    try:
        rank, size = rank_here(), int(os.environ.get("WORLD_SIZE", 1))
        if size == 1:
            return ALONE
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise UserError(
            f"RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment are not as torchrun sets them ({error})"
        ) from error
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun keeps the store then
    with _connected():
        store = dist.TCPStore(address, port, size, is_master=rank == 0 and not is_agents, timeout=TIMEOUT)
        # Names of its own for each attempt: what the one before has left in the store would be taken for an answer.
        own = dist.PrefixStore(_agree(store, rank, size), store)
        if rank == 0:
            own.set("attempt", str(store.add("attempts", 1) - 1))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=TIMEOUT)
    return Ranks(rank, size, int(own.get("attempt")))


def _agree(store: dist.Store, rank: int, size: int) -> str:
    """A name that the ranks of this attempt have in common and no other attempt has: the leader's, handed out.

    torchrun counts attempts on each machine by itself, so its counts need not agree. Each rank asks under its number
    for an answer under a name of its own; the leader answers whatever is asked, also what was left by others, until all
    ranks have confirmed.
    """
    name = secrets.token_hex(8)
    if rank > 0:
        store.set(f"asks/{rank}", name)
        agreed = store.get(f"answer/{name}").decode()
        store.set(f"{agreed}/{rank}", "")
        return agreed
    end = time.monotonic() + TIMEOUT.total_seconds()
    while not store.check([f"{name}/{other}" for other in range(1, size)]):
        for other in range(1, size):
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", name)
        if time.monotonic() > end:
            raise RuntimeError(f"not all of {size} processes have come")
        time.sleep(0.01)
    return name


def _read_submitit() -> None:
    """Where submitit has started several tasks, say so in the variables that torchrun uses."""
    if "SUBMITIT_EXECUTOR" not in os.environ or "RANK" in os.environ:
        return
    from submitit.helpers import TorchDistributedEnvironment

    TorchDistributedEnvironment().export(set_cuda_visible_devices=False)


def _wait(work: dist.Work) -> None:
    """Until it is done or has failed. While torch itself waits no signal is heard, so it is not let wait."""
    awake_until = time.perf_counter() + AWAKE
    while not work.is_completed():
        time.sleep(0 if time.perf_counter() < awake_until else 0.001)  # 0: lets others have the core
    work.wait()


def _sendable(error: Exception | None) -> Exception | None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
