"""The same code on an accelerator: a training step on torch's meta device, whose tensors have a shape but no values.

Whatever waits for a value there (`.item()`, `nonzero`, a condition on a tensor, a copy to the CPU) raises, and so does
an operation on tensors of two devices.
"""

import pytest
import torch
from conftest import random_mask, small_config

from tvae import datasets
from tvae.config import EaConfig, ModelConfig
from tvae.datasets import Dataset
from tvae.device import choose_device, choose_threads, device_problems
from tvae.fit import Fit

META = torch.device("meta")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("model", "ea"),
    [
        (ModelConfig(n_latents=8, hidden=[8]), EaConfig(n_generations=2)),
        (ModelConfig(n_latents=8, hidden=[6, 5], activation="gelu"), EaConfig("posterior", n_flips=2)),
        (ModelConfig(n_latents=8, hidden=[]), EaConfig("best", crossover=True)),
        (ModelConfig(n_latents=8, hidden=[], solver="exact"), EaConfig("uniform", mutation="sparse")),
    ],
)
def test_a_training_step_waits_for_nothing_and_stays_on_its_device(model, ea, masked):
    config = small_config(model=model, ea=ea)
    dataset = datasets.load(config)
    if masked:
        dataset = Dataset(dataset.data, dataset.shape, random_mask(*dataset.data.shape))
    fit = Fit(config, dataset, META)
    fit.visit(torch.arange(16, device=META), seed=0)
    tensors = [*fit.model.parameters(), *fit.model.buffers(), fit.points.states, *fit.totals.sums.values()]
    assert {tensor.device for tensor in tensors} == {META}


def test_the_meta_device_does_notice():
    x = torch.zeros(3, device=META)
    for careless in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: x.cpu(), lambda: x + torch.ones(3)):
        with pytest.raises((NotImplementedError, RuntimeError)):
            careless()


def test_devices_and_threads():
    assert device_problems("cpu") == device_problems("auto") == []
    assert choose_device("cpu", "float32") == torch.device("cpu")
    assert choose_threads(32 * 64, [8, 8, 16]) == 1
    assert choose_threads(32 * 64, [512, 512, 144]) >= 1
