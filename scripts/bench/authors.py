"""Training by the authors' own package, so that `scripts.bench.training` can time it beside ours.

It is public (github.com/tvlearn/tvo) and not part of this project: `TVO_PATH` names a checkout, with its Cython module
built in place and what it imports installed. It is used as its experiments use it: its trainer, its data loader, states
found by evolution (parents by fitness, children that differ in one latent), Adam with its cyclic rate.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tvae.errors import UserError, refuse


def authors_path() -> str | None:
    """`TVO_PATH`, once a tiny model has been trained with it; None where it is not set."""
    path = os.environ.get("TVO_PATH")
    if not path:
        return None
    tiny = {"latents": 4, "hidden": [4], "states": 4, "ea": (2, 2, 2), "lr": 0.01}
    try:
        free_energy = authors_epoch(path, tiny, torch.linspace(-1, 1, 24).reshape(6, 4), 3)()
    except Exception as error:  # whatever the code of others may raise
        reason = str(error).partition("\n")[0]
        raise UserError(f"TVO_PATH={path}: cannot be trained with ({type(error).__name__}: {reason})") from None
    refuse(not math.isfinite(free_energy), f"TVO_PATH={path}: training leads to a free energy of {free_energy}")
    return path


def authors_epoch(path: str, setting: dict[str, Any], data: Tensor, batch_size: int) -> Callable[[], float]:
    """Trains their model for an epoch, minibatches in the order of `data` (N, D), and returns the free energy."""
    if path not in sys.path:
        sys.path.insert(0, path)
    models, variational, utils, trainer = map(
        import_module, ("tvo.models.tvae", "tvo.variational.evo", "tvo.utils.data", "tvo.trainer")
    )
    n_parents, n_children, n_generations = setting["ea"]
    model = models.GaussianTVAE(
        shape=(data.shape[1], *reversed(setting["hidden"]), setting["latents"]),  # from the data to the latents
        precision=data.dtype,
        max_lr=setting["lr"],
        sigma2_init=data.var().item(),
    )
    states = variational.EVOVariationalStates(
        N=len(data), H=setting["latents"], S=setting["states"], precision=data.dtype, mutation="randflip",
        parent_selection="batch_fitparents", n_parents=n_parents, n_children=n_children, n_generations=n_generations,
    )  # fmt: skip
    training = trainer.Trainer(model, utils.TVODataLoader(data, batch_size=batch_size), states)
    return lambda: training.em_step()["train_F"]
