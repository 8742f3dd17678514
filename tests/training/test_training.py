"""Training as a whole: against the slow and obvious visit, over epochs; and what it needs of memory."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import PointStream, Theta
from reference import e_step as slow_e_step
from reference import elbo as slow_elbo
from skimage.data import camera

from tests.conftest import load, small_config
from tvae.backends import native
from tvae.data.dataset import Dataset
from tvae.data.patches import extract
from tvae.inference.evolution import EaConfig
from tvae.inference.posterior import significant_states
from tvae.inference.states import StatesConfig
from tvae.inference.streams import Stream, derive, generator
from tvae.model.packed import unpack
from tvae.model.prior import PI_MIN
from tvae.model.vae import ModelConfig
from tvae.runs.setup import make_fit
from tvae.training.points import InMemory
from tvae.training.trainer import make_schedule


def slow_training(config, dataset):
    """ELBO of each epoch: Algorithm 1 with the visit of reference.py, autograd through every state, in float64."""
    fit = make_fit(config, dataset)  # for its start: model, states and units
    data, n_latents = fit.points.rows(torch.arange(fit.points.n_points))[0].double(), config.model.n_latents
    model = fit.model.double()
    sets = [[tuple(z) for z in unpack(rows, n_latents, torch.int64).tolist()] for rows in fit.points.sets.tensor]
    optimiser = torch.optim.Adam(model.decoder.parameters(), lr=config.lr.min)
    schedule = make_schedule(optimiser, config.lr, fit.n_batches(0), config.epochs)
    elbos = []
    for epoch in range(config.epochs):
        total, active, error = 0.0, torch.zeros(n_latents, dtype=torch.float64), 0.0
        for index in torch.randperm(len(data), generator=generator(config.seed, "order", epoch)).split(
            config.batch_size
        ):
            theta, loss = Theta(model), 0.0
            for n in index.tolist():
                stream = PointStream(derive(config.seed, "search", epoch), n)
                found = slow_e_step(theta, config.ea, data[n].tolist(), sets[n], stream)
                sets[n] = list(found)
                values = torch.tensor(list(found.values()), dtype=torch.float64)
                q, z = values.softmax(0), torch.tensor(sets[n], dtype=torch.float64)
                squares = (model.decoder(z) - data[n]).square().sum(1)
                loss = loss + (q * squares).sum() / (2 * model.likelihood.sigma2 * len(index))
                total += slow_elbo(values.tolist())
                active += q @ z
                error += (q * squares).sum().item()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        model.pi.copy_((active / len(data)).clamp(PI_MIN, 1 - PI_MIN))
        model.likelihood.sigma2.copy_(torch.tensor(error / data.numel()))
        elbos.append(fit.units.elbo_to_data(total / len(data), data.shape[1]))
    return np.array(elbos)


def crop():
    """Patches of a noisy piece of a photograph."""
    piece = torch.from_numpy(camera()[200:212, 220:232].astype(float))[..., None]
    noisy = piece + 20 * torch.randn(piece.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Dataset(InMemory(extract(noisy, 4, 1)), (4, 4, 1))


@pytest.mark.parametrize("data", ["bars", "crop"])
def test_twenty_epochs_equal_the_slow_ones(data):
    # `best` chooses by order, which does not depend on the order within a set, as drawing with a random number does
    config = small_config(epochs=20, precision="float64", prune=0.0, ea=EaConfig("best", n_parents=3, n_children=3))
    config.model.n_latents = 10
    config.states = StatesConfig(n_states=12)
    if data == "crop":
        config.model.sigma2, config.dataset.standardise = None, True
    dataset = load(config) if data == "bars" else crop()
    slow = slow_training(config, dataset)
    exact = np.array([epoch.elbo for epoch in make_fit(config, dataset).epochs()])
    np.testing.assert_allclose(exact, slow, rtol=1e-9, atol=1e-7)
    config.precision, config.prune = "float32", 1e-3
    usual = np.array([epoch.elbo for epoch in make_fit(config, dataset).epochs()])
    spread = []
    for config.seed in (1, 2, 3):
        spread.append([epoch.elbo for epoch in make_fit(config, dataset).epochs()])
    noise = np.std(np.array(spread), axis=0)
    assert (np.abs(usual - slow)[5:] < 2 * noise[5:].mean() + 0.1).all()


def test_the_default_pruning_hardly_turns_the_gradient_of_a_trained_model():
    config = small_config(epochs=40, ea=EaConfig("posterior"), precision="float64")
    config.model = ModelConfig(n_latents=8, hidden=[], solver="exact", sigma2=None)
    config.states = StatesConfig(n_states=32)
    fit = make_fit(config, load(config))
    list(fit.epochs())
    # a minibatch: over all data the gradient of a trained model vanishes
    index = torch.arange(16)
    x, _ = fit.points.rows(index)
    step = fit.backend.e_step(fit.model, config.ea, x, fit.points.sets.take(index), Stream(0, index))
    rows = [significant_states(step, prune) for prune in (0, 1e-3)]
    flat = [torch.cat([g.flatten() for g in fit.backend.gradient(fit.model, x, r, None, 16)]) for r in rows]
    assert len(rows[1].weight) < step.weights.numel() / 2
    assert (flat[0] - flat[1]).norm() < 0.005 * flat[0].norm()


def resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_memory_does_not_grow_over_epochs():
    config = small_config(epochs=200, model=ModelConfig(n_latents=32, hidden=[32]), states=StatesConfig(n_states=64))
    seen = [resident_mb() for _ in make_fit(config, load(config)).epochs()]
    assert max(seen[150:]) - max(seen[20:50]) < 2, "megabytes"


@pytest.mark.slow
def test_a_compiled_decoder_computes_the_same(monkeypatch):
    monkeypatch.setattr(native, "is_usable", lambda _: False)  # the kernel would do without the decoder
    config = small_config(epochs=3)
    dataset = load(config)
    plain = [epoch.elbo for epoch in make_fit(config, dataset).epochs()]
    config.compile = True
    compiled = [epoch.elbo for epoch in make_fit(config, dataset).epochs()]
    assert compiled == pytest.approx(plain, rel=1e-4)
