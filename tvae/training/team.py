"""The processes that train one model together, as the training loop sees them. `Team` itself is one process alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Team:
    """Each rank owns a contiguous part of the data points; all ranks call the methods below together."""

    rank: int = 0
    size: int = 1

    @property
    def is_leader(self) -> bool:
        """True for the rank that writes files."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    def part(self, n: int) -> range:
        """The part of n data points that this rank owns."""
        return range(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, the same to the last bit on all of them."""

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by the leader's."""

    def any(self, flag: bool) -> bool:
        """True if the flag is set on any rank."""
        return flag

    def gather(self, value: Any) -> list[Any]:
        """The value of every rank, on all of them."""
        return [value]


ALONE = Team()
