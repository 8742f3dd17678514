"""The connection of the ranks of a run.

`torchrun -m tvae.train ...` starts them, or submitit with several tasks; a process that was started otherwise is alone,
and then nothing here costs anything.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist

from tvae.config.placement import rank_here
from tvae.errors import UserError
from tvae.runs.distributed.ranks import TIMEOUT, LostRank, Ranks, lost

_joined: Ranks | None = None


def join() -> Ranks:
    """The ranks that this process was started with; the first call connects them, and waits for those that are late.

    So does a call after a failure that has left operations unfinished.
    """
    global _joined
    attempt = None
    if _joined is not None and _joined.broken:
        attempt = _joined.attempt
        leave()
    if _joined is None:
        _joined = _connect(attempt)
    return _joined


def n_joined() -> int:
    """The number of connected ranks, this one among them; 0 before they are."""
    return 0 if _joined is None else _joined.size


@contextmanager
def sharing_failures() -> Iterator[None]:
    """Raise what goes wrong on one rank on all of them, with `is_shared` set: only the leader reports it.

    Blocks may be nested. What is caught between an inner and an outer one is over: `join` connects the ranks anew.
    """
    join()
    try:
        yield
        join().meet()  # another rank may fail after all else that they do together
    except LostRank:
        raise
    except Exception as error:
        assert _joined is not None
        _joined.share_failure(error)
        raise


def is_known_to_all(error: Exception) -> bool:
    """True if the ranks can begin something else together after this failure."""
    return n_joined() <= 1 or getattr(error, "is_shared", False)


def wait_until_told() -> None:
    """Call `Ranks.wait_until_told`, if ranks are connected."""
    if _joined is not None:
        _joined.wait_until_told()


def leave() -> None:
    """End the connection, if any."""
    global _joined
    if dist.is_available() and dist.is_initialized():
        with suppress(RuntimeError):  # of operations that will not finish
            dist.destroy_process_group()
    _joined = None


def is_first_attempt() -> bool:
    """True unless this run was started before by the same torchrun, or as the same SLURM job.

    torchrun does not count restarts on a machine whose own processes were well, but its store outlives them.
    """
    counts = (os.environ.get(name, "0") for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return join().attempt == 0 and all(count == "0" for count in counts)


def _connect(attempt: int | None) -> Ranks:
    """`attempt`: the number of this one, where it is known."""
    _read_submitit()
    try:
        rank, size = rank_here(), int(os.environ.get("WORLD_SIZE", 1))
        if size == 1:
            return Ranks()
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise UserError(
            f"RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment are not as torchrun sets them ({error})"
        ) from error
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun keeps the store then
    try:
        store = _store(address, port, size, is_master=rank == 0 and not is_agents)
        # Names of its own for each attempt: what the one before has left in the store would be taken for an answer.
        own = dist.PrefixStore(_agree(store, rank, size), store)
        if rank == 0:
            own.set("attempt", str(store.add("attempts", 1) - 1 if attempt is None else attempt))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=TIMEOUT)
        return Ranks(rank, size, own, int(own.get("attempt")))
    except RuntimeError as error:
        raise lost(error) from error


_stores: dict[tuple[str, int], dist.TCPStore] = {}  # kept, for a second connection by the same ranks


def _store(address: str, port: int, size: int, is_master: bool) -> dist.TCPStore:
    if (address, port) not in _stores:
        _stores[address, port] = dist.TCPStore(address, port, size, is_master=is_master, timeout=TIMEOUT)
    return _stores[address, port]


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
    """Set the variables that torchrun uses, if submitit has started several tasks."""
    if "SUBMITIT_EXECUTOR" not in os.environ or "RANK" in os.environ:
        return
    from submitit.helpers import TorchDistributedEnvironment

    TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
