"""Products of packed states with matrices by the kernel, without unpacking: they cost what is on."""

from __future__ import annotations

from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from tvae.backends.native.loading import kernel
from tvae.backends.native.threads import n_threads_for


class PackedProducts:
    """`model.packed.Products` on the CPU, in float32 or float64; `gram` is in float64."""

    def multiply(self, packed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        n_latents, n_columns = weight.shape
        out = weight.new_empty(len(packed), n_columns)
        n_threads = n_threads_for(len(packed) * weight.numel())
        _call("multiply", out.dtype, (packed, weight, bias, out), (len(packed), n_latents, n_columns, n_threads))
        return out

    def multiply_transposed(self, packed: Tensor, grad: Tensor, n_latents: int) -> Tensor:
        out = grad.new_empty(n_latents, grad.shape[1])
        n_threads = n_threads_for(len(packed) * out.numel())
        _call("multiply_transposed", out.dtype, (packed, grad, out), (len(packed), *out.shape, n_threads))
        return out

    def add_moments(self, gram: Tensor, packed: Tensor, weight: Tensor, point: Tensor, n_points: int) -> Tensor:
        assert gram.dtype == torch.float64
        assert gram.is_contiguous()
        mean = weight.new_zeros(n_points, len(gram))
        _call("add_moments", mean.dtype, (packed, weight, point, gram, mean), (len(packed), len(gram) - 1))
        return mean


def _call(name: str, dtype: torch.dtype, tensors: tuple[Tensor, ...], sizes: tuple[int, ...]) -> None:
    held = [tensor.contiguous() for tensor in tensors]  # results are contiguous: the same memory
    kernel(name, dtype)(*(c_void_p(tensor.data_ptr()) for tensor in held), *map(c_int64, sizes))


PRODUCTS = PackedProducts()
