"""The kernel's structures and numbers as Python sees them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from tvae.model.decoder import Mlp

C_TYPES = {torch.float32: "float", torch.float64: "double"}

# Activations and selections of the kernel, numbered as in activations.hpp and selection.hpp.
ACTIVATIONS = {
    "relu": 0,
    "leaky_relu": 1,
    "elu": 2,
    "gelu": 3,
    "silu": 4,
    "softplus": 5,
    "tanh": 6,
    "sigmoid": 7,
}
SELECTIONS = {"fitness": 0, "posterior": 1, "best": 2, "uniform": 3, "authors": 4}


class Network(ctypes.Structure):
    """A decoder. tasks.hpp says what the fields of this and the following structures are."""

    _fields_ = [
        *((name, c_int64) for name in ("n_layers", "activation")),
        *((name, c_void_p) for name in ("sizes", "weights", "biases")),
    ]


class EStepTask(ctypes.Structure):
    _fields_ = [
        ("decoder", Network),
        *((name, c_int64) for name in ("batch", "n_states", "n_latents", "n_threads", "selection", "n_parents")),
        *((name, c_int64) for name in ("n_children", "n_generations", "n_flips", "seed", "n_drawn_before", "n_drawn")),
        ("sigma2", c_double),
        *((name, c_void_p) for name in ("pi", "numbers", "index", "x", "observed", "packed", "new_packed")),
        *((name, c_void_p) for name in ("error", "log_joint", "n_accepted")),
    ]


class GradientTask(ctypes.Structure):
    _fields_ = [
        ("decoder", Network),
        *((name, c_int64) for name in ("n_rows", "n_latents", "n_threads", "imputes")),
        ("scale", c_double),
        *((name, c_void_p) for name in ("point", "packed", "weight", "mu", "x", "observed")),
        *((name, c_void_p) for name in ("weight_gradients", "bias_gradients")),
    ]


class VisitTask(ctypes.Structure):
    _fields_ = [
        ("search", EStepTask),
        ("imputes", c_int64),
        *((name, c_double) for name in ("prune", "scale")),
        *((name, c_void_p) for name in ("n_points", "n_observed", "n_accepted", "elbo", "error")),
        *((name, c_void_p) for name in ("active", "imputed_error")),
        *((name, c_void_p) for name in ("weight_gradients", "bias_gradients")),
    ]


class AdamTask(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("n_parameters", "n_threads")),
        *((name, c_double) for name in ("beta1", "beta2", "epsilon")),
        *((name, c_void_p) for name in ("rates", "roots", "sizes", "parameters", "gradients", "means", "squares")),
    ]


class StretchTask(ctypes.Structure):
    _fields_ = [("visit", VisitTask), ("size", c_int64), ("adam", AdamTask)]


class SlabTask(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("n_points", "n_values", "n_latents", "rank", "n_states", "n_cells")),
        *((name, c_int64) for name in ("n_threads", "n_parts", "most_on", "n_candidates", "n_parents")),
        *((name, c_int64) for name in ("n_children", "n_generations", "most_found")),
        *((name, c_double) for name in ("sigma2", "prune", "far_below", "error", "elbo")),
        *((name, c_void_p) for name in ("x", "bias", "vectors", "observed", "cell", "pi", "packed", "new_packed")),
        *((name, c_void_p) for name in ("log_joint", "log_prior", "n_accepted", "mean", "variance")),
        *((name, c_void_p) for name in ("clean_bias", "clean_vectors", "active", "together", "shift", "spread")),
    ]


class MatchingTask(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("height", "width", "n_channels", "patch_size", "radius", "n_similar")),
        *((name, c_int64) for name in ("n_threads", "n_rows", "n_columns", "n_planes", "tile")),
        *((name, c_void_p) for name in ("rows", "columns", "pixels", "mix", "groups")),
    ]


class LocalGroupsTask(ctypes.Structure):
    _fields_ = [
        ("matching", MatchingTask),
        *((name, c_int64) for name in ("first_tile_row", "n_tile_rows", "n_apart", "first_out_row", "n_out_rows")),
        ("weight_floor", c_double),
        *((name, c_void_p) for name in ("noisy", "mix", "sigma2", "sums")),
    ]


class FillingTask(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("n_groups", "n_patches", "n_values", "n_threads")),
        ("s", c_double),
        *((name, c_void_p) for name in ("y", "pilot", "observed", "mean", "variance")),
    ]


STRUCTURES = (
    Network,
    EStepTask,
    GradientTask,
    VisitTask,
    AdamTask,
    StretchTask,
    SlabTask,
    MatchingTask,
    LocalGroupsTask,
    FillingTask,
)  # in the order of `kernel_sizes`, which `loading` compares


class Arguments:
    """Addresses for the kernel, and the memory behind them, which must live until the kernel has returned."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def tensor(self, tensor: Tensor) -> int:
        if not tensor.is_contiguous():
            tensor = tensor.detach().contiguous()
        self.held.append(tensor)
        return tensor.data_ptr()

    def optional(self, tensor: Tensor | None) -> int | None:
        return None if tensor is None else self.tensor(tensor)

    def array(self, values: Sequence[float], kind: type[Any] = c_int64) -> int:
        self.held.append((kind * len(values))(*values))
        return ctypes.addressof(self.held[-1])

    def network(self, decoder: Mlp) -> Network:
        return Network(
            n_layers=len(decoder.weights),
            activation=ACTIVATIONS.get(decoder.activation, 0),  # a linear decoder may name any: it has no hidden layer
            sizes=self.array(decoder.sizes),
            weights=self.array([self.tensor(weight) for weight in decoder.weights]),
            biases=self.array([self.tensor(bias) for bias in decoder.biases]),
        )
