"""Operations that a visit of the torch backend dispatches, each of which an accelerator launches by itself.

Counted on the CPU, with all states in the gradient as on an accelerator.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from scripts.bench.visits import batches, make_training
from tvae.backends import torch_backend
from tvae.model.packed import UNPACKED
from tvae.training.backend import Backend, visit_by
from tvae.training.trainer import Fit

N_POINTS = 256  # patches, which is enough for some minibatches


class Counter(TorchDispatchMode):
    """Within, operations are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def count_dispatches(setting: dict[str, Any]) -> int:
    """Operations of a visit at a setting of `scripts.bench.training`."""
    fit = make_training({**setting, "points": N_POINTS, "memmap": False}, Path())
    e_step, gradient = torch_backend.e_step, torch_backend.gradient_by(UNPACKED, impute=False)
    visit = visit_by(e_step, gradient, UNPACKED)
    backend = Backend("torch", visit, e_step, gradient, UNPACKED, torch_backend.adam, nullcontext)
    fit = Fit(replace(fit.config, prune=0), fit.model, backend, fit.points, fit.units)
    first, second, *_ = batches(fit, N_POINTS)
    fit.visit(first, 0, len(first))  # in which tables are made
    counter = Counter()
    with counter:
        fit.visit(second, 0, len(second))
    return counter.count
