"""Threads: they change no bit, sleep when there is nothing to do, and torch leaves its own to the kernel when asked."""

import time

import pytest
import torch
from native_samples import needs_kernel, setting, weighted_rows

from tvae.backends import native
from tvae.backends.native.threads import WORTH_THREADS, n_threads_for
from tvae.inference.evolution import EaConfig
from tvae.inference.streams import Stream


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_number_of_threads_changes_nothing(dtype):
    model, x, packed = setting(100, [130], 150, 64, n_points=16, dtype=dtype)
    decoder, rows = model.decoder, weighted_rows(packed, dtype)
    found = []
    for n_threads in (1, 2, 5, 2):
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


@needs_kernel
def test_threads_without_work_sleep():
    torch.set_num_threads(4)
    parameter = torch.nn.Parameter(torch.ones(600, 600))
    parameter.grad = torch.ones(600, 600)
    native.Adam([parameter], 0.1).step()
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1, "of the 0.8 s that four busy threads would take on four cores"


def test_torch_leaves_its_threads_to_the_kernel():
    torch.set_num_threads(2)
    with native.torch_on_one_thread():
        assert torch.get_num_threads() == 1
        assert n_threads_for(WORTH_THREADS + 1) == 2
        assert n_threads_for(WORTH_THREADS) == 1
        with native.torch_on_one_thread():
            assert n_threads_for(WORTH_THREADS + 1) == 2
        assert n_threads_for(WORTH_THREADS + 1) == 2
    with pytest.raises(KeyboardInterrupt), native.torch_on_one_thread():
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert n_threads_for(WORTH_THREADS + 1) == 1
