"""Ranks of a team that take turns in one process."""

from dataclasses import dataclass, field

from torch import Tensor

from tvae.training.team import Team


@dataclass(frozen=True)
class InTurn(Team):
    """Adds up with those who were before it, so that the last one has the sum of all."""

    sent: list[list[Tensor]] = field(default_factory=list)  # by each rank so far; one list for all of them

    def add(self, tensors):
        before = list(self.sent)
        self.sent.append([tensor.clone() for tensor in tensors])
        for theirs in before:
            for tensor, other in zip(tensors, theirs, strict=True):
                tensor += other
