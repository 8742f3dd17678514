"""Products of packed states with matrices, by unpacking."""

import pytest
import torch

from tvae.model.packed import UNPACKED, FirstLayer, pack


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def states(n_latents):
    return (drawn(50, n_latents) > 0.8).double()


@pytest.mark.parametrize("n_latents", [3, 64, 70])
def test_products_are_those_of_the_states_themselves(n_latents):
    z, weight, bias, grad = states(n_latents), drawn(n_latents, 37), drawn(37), drawn(50, 37)
    torch.testing.assert_close(UNPACKED.multiply(pack(z), weight, bias), z @ weight + bias)
    torch.testing.assert_close(UNPACKED.multiply_transposed(pack(z), grad, n_latents), z.T @ grad)


def test_the_first_layer_has_gradients():
    z, weight, bias, grad = states(70), drawn(70, 37).requires_grad_(), drawn(37).requires_grad_(), drawn(50, 37)
    expected = torch.autograd.grad(z @ weight + bias, (weight, bias), grad)
    found = torch.autograd.grad(FirstLayer.apply(pack(z), weight, bias, UNPACKED), (weight, bias), grad)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("n_latents", [3, 64, 70])
def test_moments_add_up_over_states_and_data_points(n_latents):
    z, weight = states(n_latents), drawn(50).abs()
    point = torch.randint(7, (50,), generator=torch.Generator().manual_seed(0))
    y = torch.cat([z, torch.ones(50, 1, dtype=torch.float64)], 1)
    gram = torch.full((n_latents + 1, n_latents + 1), 3.0, dtype=torch.float64)
    mean = UNPACKED.add_moments(gram, pack(z), weight, point, 7)
    torch.testing.assert_close(gram, 3 + y.T @ torch.diag(weight) @ y)
    torch.testing.assert_close(mean, torch.nn.functional.one_hot(point, 7).T.double() @ (weight[:, None] * y))
