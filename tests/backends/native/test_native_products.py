"""Products of packed states by the kernel against those of unpacked ones."""

import pytest
import torch
from native_samples import needs_kernel

from tvae.backends.native import PRODUCTS
from tvae.model.packed import UNPACKED, FirstLayer, pack

pytestmark = needs_kernel


@pytest.mark.parametrize(("n_latents", "n_columns"), [(3, 1), (70, 37), (64, 128)])
def test_products_with_packed_states(n_latents, n_columns):
    rng = torch.Generator().manual_seed(0)
    z = (torch.rand(50, n_latents, generator=rng) < 0.2).double()
    weight = torch.randn(n_latents, n_columns, generator=rng, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(n_columns, generator=rng, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(50, n_columns, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(PRODUCTS.multiply(pack(z), weight, bias), z @ weight + bias)
    torch.testing.assert_close(PRODUCTS.multiply_transposed(pack(z), grad, n_latents), z.T @ grad)
    expected = torch.autograd.grad(z @ weight + bias, (weight, bias), grad)
    found = torch.autograd.grad(FirstLayer.apply(pack(z), weight, bias, PRODUCTS), (weight, bias), grad)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("n_latents", [3, 64, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_add_up_over_states_and_data_points(n_latents, dtype):
    rng = torch.Generator().manual_seed(0)
    packed = pack(torch.rand(50, n_latents, generator=rng) < 0.2)
    weight = torch.rand(50, generator=rng, dtype=dtype)
    point = torch.randint(7, (50,), generator=rng)
    grams = torch.full((2, n_latents + 1, n_latents + 1), 3.0, dtype=torch.float64)
    means = [
        products.add_moments(gram, packed, weight, point, 7)
        for products, gram in zip((PRODUCTS, UNPACKED), grams, strict=True)
    ]
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    torch.testing.assert_close(grams[0], grams[1], **tolerance)
    torch.testing.assert_close(*means)
