"""Threads: they change no bit, and torch leaves its own to the kernel when asked."""

import pytest
import torch
from native_samples import needs_kernel, setting, weighted_rows

from tvae.core.evolution import EaConfig
from tvae.core.streams import Stream
from tvae.engines import native
from tvae.engines.native.threads import WORTH_THREADS, n_threads_for


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_number_of_threads_changes_nothing(dtype):
    model, x, packed = setting(100, [130], 150, 64, n_points=16, dtype=dtype)
    decoder, rows = model.decoder, weighted_rows(packed, dtype)
    found = []
    for n_threads in (1, 2, 2):
        torch.set_num_threads(n_threads)
        assert n_threads_for(len(rows.packed) * decoder.weights[0].numel()) == n_threads
        step = native.e_step(model, EaConfig(n_generations=3), x, packed, Stream(0, torch.arange(16)))
        parameter = torch.nn.Parameter(torch.ones(600, 600, dtype=dtype))
        parameter.grad = torch.linspace(-1, 1, 360_000, dtype=dtype).view(600, 600)
        native.Adam([parameter], 0.1).step()
        product = native.PRODUCTS.multiply(rows.packed, decoder.weights[0], decoder.biases[0])
        transposed = native.PRODUCTS.multiply_transposed(rows.packed, product, 100)
        gradient = native.gradient(model, x, rows, None, 16)
        found.append([*step, *gradient, product, transposed, parameter])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_torch_leaves_its_threads_to_the_kernel():
    torch.set_num_threads(2)
    with native.torch_on_one_thread():
        assert torch.get_num_threads() == 1
        assert n_threads_for(WORTH_THREADS + 1) == 2
        assert n_threads_for(WORTH_THREADS) == 1
    with pytest.raises(KeyboardInterrupt), native.torch_on_one_thread():
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert n_threads_for(WORTH_THREADS + 1) == 1
