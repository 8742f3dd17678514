"""The encoders beside which evolution is measured: their gradients, their bound, and the whole comparison in small."""

import json

import pytest
import torch
from torch.nn.functional import logsigmoid

from scripts.paper import amortised
from scripts.paper.amortised import ESTIMATORS, METHODS, Amortised, Task, kl
from tests.composing import checked
from tests.conftest import load, random_data, random_model, small_config
from tvae.inference.states import all_states
from tvae.inference.streams import generator
from tvae.model.likelihood import Gaussian
from tvae.model.vae import ModelConfig, log_likelihood
from tvae.runs.setup import make_fit

N_LATENTS = 4


@pytest.fixture
def problem():
    """A model, data (B, D) and logits of q (B, H), with nothing at zero."""
    model = random_model(n_latents=N_LATENTS)
    logits = 1.5 * torch.randn(5, N_LATENTS, generator=generator(1, "logits"), dtype=torch.float64)
    return model, random_data(), logits.requires_grad_()


def log_likelihood_of(model, x):
    assert isinstance(model.likelihood, Gaussian)
    return lambda z: model.likelihood.log_prob(model.likelihood.error(x, model.decoder(z), z), x)


def log_q_of_all(logits):
    """(B, 2^H): log q of every state."""
    z = all_states(N_LATENTS).double()
    return (z * logsigmoid(logits)[:, None] + (1 - z) * logsigmoid(-logits)[:, None]).sum(-1)


def exact(model, x, logits):
    """(B,): E_q[log p(x | z)] by all states."""
    z = all_states(N_LATENTS).double().expand(len(x), -1, -1)
    return (log_q_of_all(logits).exp() * log_likelihood_of(model, x)(z)).sum(1)


@pytest.mark.parametrize("name", ["RLOO", "DisARM"])
def test_gradients_are_those_of_the_exact_bound_on_average(name, problem):
    model, x, logits = problem
    weight = model.decoder.weights[0]
    expected = torch.autograd.grad(exact(model, x, logits).sum(), (logits, weight))
    rng, found = generator(0, "test"), []
    for _ in range(2000):
        drawn = ESTIMATORS[name](logits, log_likelihood_of(model, x), 4, rng)
        found.append(torch.autograd.grad(drawn.target.sum(), (logits, weight)))
    for estimates, truth in zip(zip(*found, strict=True), expected, strict=True):
        estimates = torch.stack(estimates)
        error = estimates.std(0) / len(found) ** 0.5
        assert ((estimates.mean(0) - truth).abs() <= 4.5 * error).all()
        assert (truth.abs() > 10 * error).any(), "else any gradient would do"


def test_the_straight_through_gradient_is_that_of_a_linear_function_on_average(problem):
    """Bias comes from curvature; without any the gradient is that of E_q[z] = sigmoid(l), up to the temperature."""
    *_, logits = problem
    slope = torch.arange(1.0, 1 + N_LATENTS, dtype=torch.float64)
    drawn = ESTIMATORS["straight-through"](logits, lambda z: z @ slope, 100_000, generator(0, "test"))
    (found,) = torch.autograd.grad(drawn.target.sum(), logits)
    u = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000  # the same expectation by quadrature
    soft = torch.sigmoid((logits[..., None] + torch.logit(u)) / amortised.TEMPERATURE)
    (expected,) = torch.autograd.grad((soft.mean(-1) @ slope).sum(), logits)
    assert torch.allclose(found, expected, rtol=0.02)
    assert torch.allclose(drawn.z, drawn.z.round(), atol=1e-12)  # hard + soft - soft rounds


@pytest.mark.parametrize("name", ESTIMATORS)
def test_samples_are_of_q(name, problem):
    model, x, logits = problem
    drawn = ESTIMATORS[name](logits, log_likelihood_of(model, x), 20_000, generator(0, "test"))
    error = (torch.sigmoid(logits) - drawn.z.mean(1)).abs()
    assert (error < 4.5 * 0.5 / 20_000**0.5).all()
    assert torch.allclose(drawn.value, log_likelihood_of(model, x)(drawn.z))


def test_the_divergence_is_that_of_all_states(problem):
    model, _, logits = problem
    log_q = log_q_of_all(logits)
    by_states = (log_q.exp() * (log_q - model.log_prior(all_states(N_LATENTS).double()))).sum(1)
    assert torch.allclose(kl(logits, model.pi), by_states)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_encoder_learns_and_its_bound_never_exceeds_the_log_likelihood(name):
    config = small_config(epochs=10_000, model=ModelConfig(n_latents=8, hidden=[8], sigma2=None))
    fit = make_fit(config, load(config))
    training = Amortised(fit, ESTIMATORS[name], rate=0.003, seed=0)
    for _ in range(150):
        training.advance()
    elbos = [elbo for _, elbo in training.history]
    assert elbos[-1] > elbos[0] + 3
    elbo, n_on, means = training.evaluate()
    x, _ = fit.points.rows(torch.arange(fit.points.n_points))
    exact_value = log_likelihood(fit.model, x, all_states(8).float()).mean().item()
    assert elbo < fit.units.elbo_to_data(exact_value, fit.points.n_values)
    assert 0 < n_on < 8
    assert (x - means).square().mean() < 0.8 * x.var()


@pytest.mark.parametrize("name", ["house_25", "house_50", "natural"])
def test_the_rate_of_evolution_is_not_stretched_over_epochs_that_are_never_reached(name):
    assert checked(*amortised.TASKS[name].words, f"epochs={amortised.LONG}").lr.epochs_per_cycle == 10


def test_all_methods_by_turns(tmp_path, monkeypatch, capsys):
    words = ("dataset=bars", "dataset.n_points=60", "states.n_states=16", "model.hidden=[8]")
    monkeypatch.setattr(amortised, "TASKS", {"bars": Task("bars", words, 0.3, 0.01)})
    monkeypatch.setattr(amortised, "RATES", (0.001, 0.003))
    monkeypatch.setattr(amortised, "N_ROUNDS", 3)
    amortised.main(["--seeds", "0", "1", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "bars_seed_1.json").read_text())["methods"]
    assert found.keys() == set(METHODS)
    for each in found.values():
        assert each["seconds"] >= 0.3
        assert each["truncated"] <= each["log_likelihood"] + 1e-3
        assert each["elbo"] <= each["log_likelihood"] + 1e-3
    lines = (tmp_path / "amortised.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:6]] == list(METHODS)
    before = (tmp_path / "bars_seed_1.json").stat().st_mtime_ns
    (tmp_path / "bars_seed_0.json").unlink()
    amortised.main(["--seeds", "0", "1", "--out", str(tmp_path)])
    assert (tmp_path / "bars_seed_1.json").stat().st_mtime_ns == before, "what is there is left alone"


def test_a_picture_is_restored_by_either_q(tmp_path, monkeypatch):
    words = ("dataset=camera", "noise=25", "dataset.patch_size=8", "dataset.train_stride=8", "model.n_latents=16")
    words += ("model.likelihood=gaussian", "restoration=posterior_mean", "corruption_seed=0")
    task = Task("camera", words, 1.0, 0.01)
    monkeypatch.setattr(amortised, "TASKS", {"camera": task})
    monkeypatch.setattr(amortised, "RATES", (0.003,))
    monkeypatch.setattr(amortised, "N_ROUNDS", 2)
    amortised.main(["--seeds", "0", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "camera_seed_0.json").read_text())["methods"]
    for each in found.values():
        assert 8 < each["psnr"] < 40
        assert 8 < each["psnr_truncated"] < 40
    assert found["evolution"]["psnr_truncated"] > 15
