"""The processes that train one model together, connected: what they tell each other.

The decoder is the same on all ranks, because all of them take the same steps by the same sums. What goes wrong on one
rank is raised on all of them: within `connection.sharing_failures` a rank that fails announces it in the store, and a
rank that waits for the others looks there. All of them leave the block together, so that they can begin the next job,
or the next picture, together. The code in between reads as if there were one process.
"""

from __future__ import annotations

import logging
import pickle
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tvae.config.placement import rank_here
from tvae.errors import Failure
from tvae.training.team import Team

log = logging.getLogger(__name__)

Result = TypeVar("Result")

TIMEOUT = timedelta(minutes=30)  # for a rank that is late; one that has ended is noticed at once
AWAKE = 0.02  # seconds to wait for the others without going to sleep, from which a process is woken late
LOOK_EVERY = 0.05  # seconds between looks whether another rank has failed
PATIENCE = 10.0  # seconds that a rank which has failed waits for the others to hear of it
FAILED, HEARD, OUTCOME, TOLD, LEFT = "failed", "heard", "outcome", "told", "left"  # names in the store


class LostRank(Failure):
    """Failure for another rank that has ended or cannot be reached.

    It is logged where it is noticed, and at once: whoever started the ranks is about to end this one as well.
    """


def lost(error: RuntimeError) -> LostRank:
    """Log in one line what torch raised for a lost connection; returns the error to raise instead."""
    reason = re.sub(r"^\[\S*\] ", "", str(error).splitlines()[0]).partition(". ")[0]  # no source file, no advice
    log.error(
        "process %d: another process of this run has ended or cannot be reached (%s); the same command resumes "
        "from the last checkpoint", rank_here(), reason,
    )  # fmt: skip
    return LostRank()


@dataclass(frozen=True)
class Ranks(Team):
    store: Any = None  # torch's, under names of this attempt
    attempt: int = 0  # how often such ranks were connected before, by the same store
    broken: list[bool] = field(default_factory=list)  # not empty: a failure has left operations unfinished
    settled: list[Exception] = field(default_factory=list)  # failures that were shared already, by a block within

    def add(self, tensors: Sequence[Tensor]) -> None:
        if self.is_alone or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._wait(lambda: dist.all_reduce(flat, async_op=True))
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def share(self, tensors: Sequence[Tensor]) -> None:
        if self.is_alone:
            return
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        self._wait(lambda: dist.broadcast(flat, 0, async_op=True))
        for tensor, value in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.detach().copy_(value.view_as(tensor))

    def any(self, flag: bool) -> bool:
        found = torch.tensor([float(flag)])
        self.add([found])
        return bool(found.item())

    def gather(self, value: Any) -> list[Any]:
        if self.is_alone:
            return [value]
        content = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        n_bytes = [int(n) for n in self._gather(torch.tensor([len(content)]))]
        found = self._gather(torch.nn.functional.pad(content, (0, max(n_bytes) - len(content))))
        return [pickle.loads(row[:n].numpy().tobytes()) for row, n in zip(found, n_bytes, strict=True)]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of every rank, all of one shape. torch's own gathering of objects would not hear signals."""
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        self._wait(lambda: dist.all_gather(found, tensor, async_op=True))
        return found

    def meet(self) -> None:
        """Wait until all ranks have come here."""
        self.any(False)

    def in_turn(self, action: Callable[[], Result]) -> Result:
        """Do the action on every rank, the leader first: others find what it has downloaded or cached."""
        if not self.is_leader:
            self.meet()
            return action()
        result = action()
        self.meet()
        return result

    def _wait(self, start: Callable[[], dist.Work]) -> None:
        """Wait until the operation is done, or raise the failure that another rank has announced."""
        try:
            failure = self._done_or_failure(start)
        except RuntimeError as error:
            # A rank may have announced its failure and ended; if it was the leader, the store has ended with it.
            raise (self._announced() if self.is_leader else None) or lost(error) from error
        if failure is not None:
            raise failure

    def _done_or_failure(self, start: Callable[[], dist.Work]) -> Exception | None:
        """Poll the operation: torch's own wait would not handle signals."""
        work = start()
        awake_until = time.perf_counter() + AWAKE
        look_at = awake_until + LOOK_EVERY
        while not work.is_completed():
            now = time.perf_counter()
            time.sleep(0 if now < awake_until else 0.001)  # 0: lets others have the core
            if now > look_at:
                look_at = now + LOOK_EVERY
                failure = self._announced()
                if failure is not None:
                    return failure
        work.wait()
        return None

    def _announced(self) -> Exception | None:
        """The failure that another rank has announced, if any."""
        with suppress(RuntimeError):  # the store may have ended with the leader
            if self.store.check([FAILED]):
                failure: Exception = pickle.loads(self.store.get(FAILED))
                self.broken.append(True)
                return failure
        return None

    def share_failure(self, error: Exception) -> None:
        """Announce the failure to all ranks, and note in `is_shared` whether they know of it."""
        is_known = self.is_alone or getattr(error, "is_shared", False)
        if (self.broken or not is_known) and not any(error is each for each in self.settled):
            error.is_shared = self._fail_together(error)  # type: ignore[attr-defined]
            self.settled.append(error)

    def _fail_together(self, error: Exception) -> bool:
        """Announce the failure, unless another rank has; returns True if all ranks know of it."""
        is_together = False
        with suppress(RuntimeError):  # the others may have ended
            if not self.broken:
                self.store.set(FAILED, pickle.dumps(_sendable(error)))
                self.broken.append(True)
            # All take the outcome that was noted first, also those that come when others have lost patience.
            self.store.add(HEARD, 1)
            have_come = _within_patience(lambda: self.store.add(HEARD, 0) == self.size)
            outcome = self.store.compare_set(OUTCOME, "", "together" if have_come else "apart")
            is_together = outcome == b"together"
        return is_together

    def wait_until_told(self) -> None:
        """Wait until the leader has reported a failure. To be called at the end, on the leader after its report.

        Whoever started the ranks ends all of them when one has ended. The leader may keep the store, so it is the last.
        """
        if self.is_alone:
            return
        with suppress(RuntimeError):  # the others may have ended
            if self.is_leader:
                self.store.set(TOLD, "")
                _within_patience(lambda: self.store.add(LEFT, 0) == self.size - 1)
            else:
                _within_patience(lambda: self.store.check([TOLD]))
                self.store.add(LEFT, 1)


def _within_patience(is_so: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
