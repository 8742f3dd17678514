"""How many operations a visit of the torch engine dispatches, each of which an accelerator launches by itself.

Counted on the CPU, with all states in the gradient as on an accelerator: one by one, and with E-step, sums and gradient
recorded as a graph. Graphs need CUDA: here a stand-in takes their place, whose replay counts as one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scripts.bench.visits import batches, make_training
from tvae.backends import torch_backend
from tvae.backends.captured import Function, Inputs, by_graphs
from tvae.model.packed import UNPACKED
from tvae.training.backend import Engine, visit_by
from tvae.training.trainer import Fit

N_POINTS = 256  # patches, which is enough for some minibatches


class Counter(TorchDispatchMode):
    """Within, operations are counted, but for those of a replay."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.is_replaying = 0, False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not self.is_replaying
        return function(*args, **(kwargs or {}))

    def record(self, function: Function, inputs: Inputs) -> tuple[Sequence[Tensor], Callable[[], None]]:
        """The stand-in for a graph."""
        outputs = [torch.empty_like(tensor) for tensor in function(*inputs)]

        def replay() -> None:
            self.count, self.is_replaying = self.count + 1, True
            for place, value in zip(outputs, function(*inputs), strict=True):
                place.copy_(value)
            self.is_replaying = False

        return outputs, replay


def count_dispatches(setting: dict[str, Any]) -> dict[str, int]:
    """Operations of a visit at a setting of `scripts.bench.training`: `one by one`, and `with graphs`."""
    fit = make_training({**setting, "points": N_POINTS, "memmap": False}, Path())
    fit.config = replace(fit.config, prune=0)
    return {"one by one": _count(fit, False), "with graphs": _count(fit, True)}


def _count(fit: Fit, has_graphs: bool) -> int:
    counter = Counter()
    e_step, gradient = torch_backend.e_step, torch_backend.gradient_by(UNPACKED, impute=False)
    visit = visit_by(e_step, gradient, UNPACKED)
    if has_graphs:
        visit, _ = by_graphs(visit, e_step, counter.record)
    engine = Engine("torch", visit, e_step, gradient, UNPACKED, torch_backend.adam, nullcontext)
    fit = Fit(fit.config, fit.model, engine, fit.points, fit.units)
    first, second, *_ = batches(fit, N_POINTS)
    fit.visit(first, 0, len(first))  # in which tables are made and graphs recorded
    with counter:
        fit.visit(second, 0, len(second))
    return counter.count
