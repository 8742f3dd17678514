"""The learning rate over minibatch steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch

from tvae.fields import option


@dataclass
class LrConfig:
    kind: str = option("cyclic", "schedule of the learning rate", choices=("cyclic", "decay", "constant"))
    min: float = option(1e-4, "cyclic: lowest rate", gt=0)
    max: Optional[float] = option(
        1e-2, "cyclic: highest rate; else the rate at the start; null: by the data, of an image by its noise",
        is_open=True, gt=0,
    )  # fmt: skip
    epochs_per_cycle: Optional[float] = option(
        20, "cyclic: epochs from lowest to highest and back; null: all, of bars 20", is_open=True, gt=0
    )
    epochs_to_half: float = option(20, "decay: epochs in which the rate halves", gt=0)

    @property
    def start(self) -> float:
        """The rate before the first step."""
        assert self.max is not None
        return self.min if self.kind == "cyclic" else self.max


def make_schedule(
    optimiser: torch.optim.Optimizer, lr: LrConfig, n_batches: int, n_epochs: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """The rate over the steps of `optimiser`, `n_batches` to each of `n_epochs`."""
    assert lr.max is not None
    if lr.kind == "cyclic":
        half = max(1, round((lr.epochs_per_cycle or n_epochs) * n_batches / 2))
        return torch.optim.lr_scheduler.CyclicLR(
            optimiser, base_lr=lr.min, max_lr=lr.max, step_size_up=half, cycle_momentum=False
        )
    if lr.kind == "decay":
        gamma = 0.5 ** (1 / (lr.epochs_to_half * n_batches))
        return torch.optim.lr_scheduler.ExponentialLR(optimiser, gamma)
    return torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0)


def next_rates(schedule: torch.optim.lr_scheduler.LRScheduler, n_steps: int) -> list[float]:
    """Of so many steps, which count as done from now on."""
    rates: list[float] = []
    for _ in range(n_steps):
        rates += map(float, schedule.get_last_lr())
        schedule.step()
    return rates
