"""Checks of a checkpoint's content, which may be crafted even if its checksum is right.

Values of another kind or shape, NaN, and places that no run comes to are refused before anything is taken over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from tvae.model.vae import Model
from tvae.runs.checkpoint import Part
from tvae.training.trainer import Epoch, Fit

NAMES = tuple(field.name for field in fields(Epoch))
UNKNOWN_AT_TIMES = ("elbo_test",)


def check_fit(fit: Fit, saved: dict[str, Any]) -> None:
    """Raise `ValueError` unless `saved` can be the `state_dict` of such a fit, at some place of its training."""
    epoch, batch = saved["epoch"], saved["batch"]
    _check(type(epoch) is int and 0 <= epoch <= fit.n_epochs, f"epoch {epoch!r} of {fit.n_epochs}")
    _check(
        type(batch) is int and 0 <= batch < max(1, fit.n_batches(epoch)), f"batch {batch!r} of {fit.n_batches(epoch)}"
    )
    _check_number(saved["seconds"], "seconds")
    mean, std = saved["units"]
    for value, mine in ((mean, fit.units.mean), (std, fit.units.std)):
        _check_number(value, "units", low=-math.inf)
        _check(math.isclose(value, mine, rel_tol=1e-6, abs_tol=1e-6 * fit.units.std), "other units than the data's")
    check_model(fit.model, saved["model"])
    for sums in saved["totals"]:
        for name, mine_ in fit.totals.sums.items():
            _check_tensor(sums[name], name, tuple(mine_.shape))
    _check_optimiser(fit, saved["optimiser"])
    n_steps = 0 if fit.is_exact else epoch * fit.n_batches(epoch) + batch
    _check(saved["schedule"]["last_epoch"] == n_steps, f"a schedule after {saved['schedule']['last_epoch']!r} steps")
    for rate in saved["schedule"]["_last_lr"]:
        _check_number(rate, "learning rate")


def check_model(model: Model, parameters: dict[str, Tensor]) -> None:
    """Raise `ValueError` unless these can be the parameters of such a model."""
    for name, value in parameters.items():
        _check_tensor(value, name)
    problem = model.problem(parameters)
    _check(problem is None, problem or "")


def _check_optimiser(fit: Fit, saved: dict[str, Any]) -> None:
    parameters = list(fit.model.parameters())
    (group,) = saved["param_groups"]
    _check(group["params"] == list(range(len(parameters))), "an optimiser of other parameters")
    for name in ("lr", "eps", "weight_decay", *(["initial_lr"] if "initial_lr" in group else [])):
        _check_number(group[name], name)
    for beta in group["betas"]:
        _check_number(beta, "beta")
        _check(beta < 1, f"beta {beta}")
    _check({*saved["state"]} in ({*range(len(parameters))}, set()), "an optimiser of other parameters")
    for number, state in saved["state"].items():
        shape = tuple(parameters[number].shape)
        for name, expected in (("step", ()), ("exp_avg", shape), ("exp_avg_sq", shape)):
            _check_tensor(state[name], name, expected)
        _check(bool((state["exp_avg_sq"] >= 0).all()) and state["step"].item() >= 1, "an optimiser that never was")


def check_history(history: Any, n_epochs: int) -> list[dict[str, Any]]:
    """The rows of so many epochs, or `ValueError`."""
    _check(isinstance(history, list) and len(history) == n_epochs, f"a history that is not of {n_epochs} epochs")
    for number, row in enumerate(history, 1):
        _check(isinstance(row, dict) and {*NAMES} <= {*row}, f"no row of epoch {number}")
        _check(row["epoch"] == number, f"epoch {row['epoch']!r} in the place of {number}")
        for name, value in row.items():
            if value is not None or (name in NAMES and name not in UNKNOWN_AT_TIMES):
                _check_number(value, name, low=-math.inf)
    return history


def check_states(parts: Iterable[Part], n_latents: int) -> None:
    """Raise `ValueError` unless all parts are packed states of so many latents, with nothing beyond the last."""
    for part in parts:
        rows = part.load()
        _check(rows.dtype == torch.uint8, f"{part.name} of type {rows.dtype}")
        _check(
            n_latents % 8 == 0 or not (rows[..., -1] >> (n_latents % 8)).any(), f"{part.name} beyond the last latent"
        )


def _check_tensor(value: Any, name: str, shape: tuple[int, ...] | None = None) -> None:
    _check(isinstance(value, Tensor) and value.is_floating_point(), f"{name} is not a tensor of numbers")
    _check(shape in (None, tuple(value.shape)), f"{name} of shape {tuple(value.shape)}, not {shape}")
    _check(bool(torch.isfinite(value).all()), f"NaN or infinity in {name}")


def _check_number(value: Any, name: str, low: float = 0.0) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    _check(is_number and math.isfinite(value) and value >= low, f"{name} {value!r}")


def _check(is_so: bool, problem: str) -> None:
    if not is_so:
        raise ValueError(problem)
