"""Binary states packed eight latents to a byte, and products of packed states z (R, H) with matrices.

Bit h of a state is bit h % 8 of byte h // 8. Backends may have faster products.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


def pack(z: Tensor) -> Tensor:
    """(..., H) zeros and ones -> (..., ceil(H/8)) uint8."""
    bits = z.to(torch.uint8)
    if z.shape[-1] % 8:
        bits = F.pad(bits, (0, -z.shape[-1] % 8))
    return (bits.unflatten(-1, (-1, 8)) << _bit_numbers(z.device)).sum(-1, dtype=torch.uint8)


@lru_cache
def _bit_numbers(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


@lru_cache
def byte_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """(256, 8): the eight bits of every byte."""
    return (torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device) & 1).to(dtype)


def unpack(packed: Tensor, n_latents: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(..., ceil(H/8)) uint8 -> (..., H) zeros and ones. One table lookup per byte."""
    z = F.embedding(packed.int(), byte_table(dtype, packed.device)).flatten(-2)
    return z if z.shape[-1] == n_latents else z[..., :n_latents]


class Products(Protocol):
    def multiply(self, packed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """z @ weight + bias: (R, ceil(H/8)), (H, M), (M,) -> (R, M)."""

    def multiply_transposed(self, packed: Tensor, grad: Tensor, n_latents: int) -> Tensor:
        """z^T @ grad: (R, ceil(H/8)), (R, M) -> (H, M)."""

    def add_moments(self, gram: Tensor, packed: Tensor, weight: Tensor, point: Tensor, n_points: int) -> Tensor:
        """Add sum_r weight_r y_r y_r^T to gram (H+1, H+1), where y_r is z_r with a last latent that is always on.

        packed (R, ceil(H/8)), weight (R,), point (R,). Returns (B, H+1): the mean of y for each data point.
        """


class Unpacked:
    """The products by unpacking: on any device, in any precision."""

    def multiply(self, packed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias, unpack(packed, len(weight), weight.dtype), weight)

    def multiply_transposed(self, packed: Tensor, grad: Tensor, n_latents: int) -> Tensor:
        return unpack(packed, n_latents, grad.dtype).T @ grad

    def add_moments(self, gram: Tensor, packed: Tensor, weight: Tensor, point: Tensor, n_points: int) -> Tensor:
        y = with_bias(packed, len(gram) - 1, weight.dtype)
        weighted = y * weight[:, None]
        gram += weighted.T @ y
        return weight.new_zeros(n_points, len(gram)).index_add_(0, point, weighted)


UNPACKED = Unpacked()


def with_bias(packed: Tensor, n_latents: int, dtype: torch.dtype) -> Tensor:
    """(R, H+1): the states, and a last latent that is always on."""
    return torch.nn.functional.pad(unpack(packed, n_latents, dtype), (0, 1), value=1.0)


class FirstLayer(torch.autograd.Function):
    """`multiply` with gradients for weight and bias: an affine layer on packed states."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, weight: Tensor, bias: Tensor, products: Products) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.n_latents, ctx.products = len(weight), products
        return products.multiply(packed, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, None]:
        (packed,) = ctx.saved_tensors
        return None, ctx.products.multiply_transposed(packed, grad, ctx.n_latents), grad.sum(0), None
