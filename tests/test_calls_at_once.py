"""Python calls in several threads, in forked processes, and under settings of torch that others have made."""

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import tvae
from tests.tiny import tiny_picture

SMALL = {"epochs": 1, "n_latents": 8, "n_states": 8, "n_parents": 2, "n_children": 2, "train_stride": 4}
N_THREADS = 4

FORKED = """
import os, signal, sys, numpy as np, torch

def forked(call):
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        os._exit(call())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def restored():
    import tvae
    from tests.tiny import tiny_picture
    from tests.test_calls_at_once import SMALL
    return tvae.denoise(tiny_picture(), effort="fast", threads=2, **SMALL)

torch.set_num_threads(2)
torch.randn(4000, 400).exp().sum()  # torch has started its threads, and tvae is not there yet
print(forked(lambda: 0 if restored().std() > 0 else 3))
expected = restored()
torch.randn(500, 500) @ torch.randn(500, 500)
print(forked(lambda: 0 if np.abs(restored().astype(float) - expected).max() <= 1 else 3))
"""


def test_calls_in_four_threads_are_those_of_one():
    """Each with its own picture and options; nothing of them is left in the process."""
    pictures = [np.roll(tiny_picture(), 3 * i, 0) for i in range(2 * N_THREADS)]
    told = [{"n_latents": 8 + i, "threads": 1 + i % 2} for i in range(len(pictures))]

    def call(i):
        return tvae.denoise(pictures[i], effort="fast", **{**SMALL, **told[i]})

    torch.set_num_threads(2)
    alone = [call(i) for i in range(len(pictures))]
    handlers = list(logging.getLogger("tvae").handlers)
    with ThreadPoolExecutor(N_THREADS) as pool:
        for _ in range(3):
            for found, expected in zip(pool.map(call, range(len(pictures))), alone, strict=True):
                np.testing.assert_array_equal(found, expected)
    assert torch.get_num_threads() == 2
    assert logging.getLogger("tvae").handlers == handlers
    with ThreadPoolExecutor(1) as fresh:
        assert fresh.submit(torch.get_num_threads).result() == 2, "what a new thread begins with"


def test_mistakes_in_threads_are_told_as_anywhere():
    def call(i):
        with pytest.raises(ValueError, match="epochs=0: must be at least 1"):
            tvae.denoise(tiny_picture(), epochs=0)

    with ThreadPoolExecutor(N_THREADS) as pool:
        list(pool.map(call, range(3 * N_THREADS)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_after_torch_or_a_call_has_used_two_threads():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["0", "0"], done.stdout + done.stderr


def test_another_default_type_of_torch():
    expected = tvae.denoise(tiny_picture(), effort="fast", **SMALL, threads=1)
    torch.set_default_dtype(torch.float64)
    try:
        found = tvae.denoise(tiny_picture(), effort="fast", **SMALL, threads=1)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.abs(found.astype(float) - expected).max() <= 1
