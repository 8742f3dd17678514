"""The same code on an accelerator: a training step on torch's meta device, whose tensors have a shape but no values.

Whatever waits for a value there (`.item()`, `nonzero`, a condition on a tensor, a copy to the CPU) raises, and so does
an operation on tensors of two devices.
"""

import pytest
import torch

from tests.conftest import load, random_mask, small_config
from tvae.config.placement import choose_device, choose_threads, device_problems, n_cores, threads_problems
from tvae.data.dataset import Dataset
from tvae.inference.evolution import EaConfig
from tvae.model.vae import ModelConfig
from tvae.runs.setup import batch_cost, make_fit
from tvae.training.points import InMemory

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
    config = small_config(model=model, ea=ea, device="meta")
    dataset = load(config)
    if masked:
        data = dataset.source.data
        dataset = Dataset(InMemory(data, random_mask(*data.shape)), dataset.shape)
    fit = make_fit(config, dataset)
    fit.visit(torch.arange(16, device=META), seed=0, n_in_batch=16)
    tensors = [*fit.model.parameters(), *fit.model.buffers(), fit.points.sets.tensor, *fit.totals.sums.values()]
    assert {tensor.device for tensor in tensors} == {META}


def test_the_meta_device_does_notice():
    x = torch.zeros(3, device=META)
    for careless in (lambda: x.sum().item(), lambda: x.nonzero(), lambda: x.cpu(), lambda: x + torch.ones(3)):
        with pytest.raises((NotImplementedError, RuntimeError)):
            careless()


def test_devices_and_threads():
    assert device_problems("cpu") == device_problems("auto") == []
    assert choose_device("cpu", "float32") == torch.device("cpu")
    config = small_config()
    config.batch_size, config.states.n_states = 32, 64
    config.model.n_latents, config.model.hidden = 8, [8]
    assert batch_cost(config, 16) == 32 * 64 * (8 * 8 + 8 * 16)
    assert choose_threads(batch_cost(config, 16)) == 1
    config.model.n_latents, config.model.hidden = 512, [512]
    assert choose_threads(batch_cost(config, 144)) == n_cores() >= 1


def test_threads_are_at_most_some_for_each_core(command):
    assert threads_problems(None) == threads_problems(4 * n_cores()) == []
    code, text = command("train", "experiment=bars", "threads=100000")
    assert (code, len(text.splitlines())) == (2, 1)
    assert text.startswith(f"error: threads=100000: must be at most {4 * n_cores()}")
