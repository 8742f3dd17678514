"""Samples for the tests of the native backend: models with data and states, and the mark `needs_kernel`."""

import pytest
import torch

from tests.conftest import draw_states, random_data, random_model
from tvae.backends import native
from tvae.inference.posterior import Rows

needs_kernel = pytest.mark.skipif(not native.is_available(), reason="no C++ compiler, or TVAE_NATIVE=0")


def setting(n_latents, hidden, n_outputs, n_states, n_points=5, dtype=torch.float64, activation="relu"):
    """A model, x (B, D) and packed (B, S, ceil(H/8))."""
    model = random_model(n_latents, hidden, n_outputs, activation=activation).to(dtype)
    x = random_data(n_points, n_outputs).to(dtype)
    packed = draw_states(model.pi.double(), n_states, n_points, False, torch.Generator().manual_seed(3))
    return model, x, packed


def weighted_rows(packed, dtype):
    """All states with random weights."""
    n_points, n_states, _ = packed.shape
    weight = torch.rand(n_points * n_states, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return Rows(torch.arange(n_points).repeat_interleave(n_states), packed.flatten(0, 1), weight)
