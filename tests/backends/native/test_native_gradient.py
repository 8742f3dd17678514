"""The native gradient against back-propagation by torch."""

import pytest
import torch
from native_samples import needs_kernel, setting

from tests.conftest import random_mask
from tvae.backends import native, torch_backend
from tvae.inference.evolution import EaConfig
from tvae.inference.posterior import significant_states
from tvae.model.packed import UNPACKED

pytestmark = needs_kernel

torch_gradient = torch_backend.gradient_by(UNPACKED, impute=False)


def rows_and_mask(model, x, packed, masked):
    """The rows that matter at these states, and the mask."""
    observed = random_mask(*x.shape) if masked else None
    step = torch_backend.e_step(model, EaConfig(), x, packed, None, observed)
    return significant_states(step, 1e-3), observed


@pytest.mark.parametrize("hidden", [[], [37], [9, 70, 12]])
@pytest.mark.parametrize(("masked", "imputes"), [(False, False), (True, False), (True, True), (False, True)])
def test_the_gradient_is_that_of_autograd(hidden, masked, imputes):
    model, x, packed = setting(23, hidden, 13, 30)
    rows, observed = rows_and_mask(model, x, packed, masked)
    for n_points in (len(x), 17):  # 17: the minibatch has more data points than are here
        found = native.gradient(model, x, rows, observed, n_points, imputes=imputes)
        expected = torch_backend.gradient_by(UNPACKED, imputes)(model, x, rows, observed, n_points)
        assert [g.shape for g in found] == [p.shape for p in model.decoder.parameters()]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_single_precision():
    model, x, packed = setting(64, [64], 64, 50, dtype=torch.float32)
    rows, _ = rows_and_mask(model, x, packed, False)
    found, expected = (g(model, x, rows, None, len(x)) for g in (native.gradient, torch_gradient))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_a_linear_decoder_of_any_activation():
    model, x, packed = setting(23, [], 13, 30, activation="tanh")
    rows, _ = rows_and_mask(model, x, packed, False)
    torch.testing.assert_close(*(g(model, x, rows, None, 5) for g in (native.gradient, torch_gradient)))
