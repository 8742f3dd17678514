"""The epochs and times at which a run saves itself and restores its picture."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tvae.training.trainer import Fit


@dataclass
class Cadence:
    fit: Fit
    restore_every: int  # epochs
    checkpoint_seconds: float  # 0: after every epoch
    saved_at: float = field(default_factory=time.monotonic)
    place: tuple[int, int] = (-1, -1)  # epoch and batch of the last checkpoint

    def __post_init__(self) -> None:
        self.note_saved()

    def note_saved(self) -> None:
        self.saved_at, self.place = time.monotonic(), (self.fit.epoch, self.fit.batch)

    def saves_within_epoch(self) -> bool:
        """True if a checkpoint is due in the middle of an epoch: never twice at the same place."""
        is_late = 0 < self.checkpoint_seconds <= time.monotonic() - self.saved_at
        return is_late and self.place != (self.fit.epoch, self.fit.batch)

    def saves_after_epoch(self) -> bool:
        return self.checkpoint_seconds == 0

    def restores(self) -> bool:
        """True if the picture is to be restored after the epoch that has just ended."""
        return self.fit.epoch % self.restore_every == 0 or self.fit.epoch == self.fit.n_epochs
