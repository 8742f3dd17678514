"""The contract of a likelihood, for each of them, against torch.distributions, autograd and numerical maximisation."""

import math

import pytest
import torch
from torch.distributions import Bernoulli, Normal

from tests.conftest import load, random_data, random_mask, random_model, same, small_config
from tvae.backends import choose_backend, torch_backend
from tvae.errors import UserError
from tvae.inference.evolution import EaConfig
from tvae.inference.states import all_states
from tvae.model.likelihood import SIGMA2_MIN, Gaussian, KnownVariance
from tvae.model.packed import UNPACKED, pack
from tvae.model.parts import Start, Visited
from tvae.model.units import Units
from tvae.model.vae import Model, ModelConfig, model_from
from tvae.runs.setup import make_fit

B, S, D = 5, 4, 7
VARIANCE = torch.linspace(0.2, 1.5, D, dtype=torch.float64)


def made(name, n_outputs=D):
    """A likelihood, and the variance (D,) it gives each value."""
    if name == "gaussian":
        return Gaussian(torch.tensor(0.3, dtype=torch.float64)), torch.full((n_outputs,), 0.3, dtype=torch.float64)
    return KnownVariance(VARIANCE[:n_outputs]), VARIANCE[:n_outputs]


@pytest.fixture(params=["gaussian", "known_variance"])
def name(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["all", "masked"])
def observed(request):
    return random_mask(B, D) if request.param else None


def outputs(n_states=S, n_outputs=D):
    """(B, S, D)"""
    return random_data(B * n_states, n_outputs, seed=7).view(B, n_states, n_outputs)


def log_density(x, mu, variance, observed):
    """(B, S): by torch.distributions."""
    log_prob = Normal(mu, variance.sqrt()).log_prob(x[:, None])
    return (log_prob if observed is None else log_prob * observed[:, None]).sum(-1)


def states(*shape):
    """(*shape, H) zeros and ones, which these likelihoods do not look at."""
    return torch.zeros(*shape, 6, dtype=torch.float64)


def error_of(likelihood, x, mu, observed):
    return likelihood.error(x, mu, states(*mu.shape[:2]), observed)


def log_prob(likelihood, x, mu, observed):
    return likelihood.log_prob(error_of(likelihood, x, mu, observed), x, observed)


def test_log_prob_is_that_of_torch(name, observed):
    likelihood, variance = made(name)
    x, mu = random_data(B, D), outputs()
    torch.testing.assert_close(log_prob(likelihood, x, mu, observed), log_density(x, mu, variance, observed))


def test_the_lower_the_error_the_more_likely(name, observed):
    likelihood, _ = made(name)
    x, mu = random_data(B, D), outputs()
    error = error_of(likelihood, x, mu, observed)
    assert torch.equal(error.argsort(1), likelihood.log_prob(error, x, observed).argsort(1, descending=True))


def test_what_is_not_observed_does_not_matter(name):
    likelihood, _ = made(name)
    x, mu, observed = random_data(B, D), outputs(), random_mask(B, D)
    filled = x.where(observed, 1e3)
    assert torch.equal(log_prob(likelihood, x, mu, observed), log_prob(likelihood, filled, mu, observed))


def test_the_density_integrates_to_one(name):
    likelihood, _ = made(name, n_outputs=2)
    axis = torch.linspace(-9, 9, 601, dtype=torch.float64)
    x = torch.cartesian_prod(axis, axis)
    mu = torch.tensor([0.4, -1.1], dtype=torch.float64).expand(len(x), 1, 2)
    density = log_prob(likelihood, x, mu, None).exp().view(601, 601)
    assert torch.trapezoid(torch.trapezoid(density, axis), axis).item() == pytest.approx(1, abs=1e-9)


def test_the_slope_is_the_gradient_in_mu(name, observed):
    """The gradient of -1 / n_points sum_r weight_r log p(x_r | mu_r), by autograd."""
    likelihood, _ = made(name)
    x, mu = random_data(B, D), outputs()[:, 0].requires_grad_()
    weight = torch.rand(B, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    loss = -(weight * log_prob(likelihood, x, mu[:, None], observed)[:, 0]).sum() / 17
    (expected,) = torch.autograd.grad(loss, mu)
    torch.testing.assert_close(likelihood.slope(x, mu.detach(), pack(states(B)), weight, observed, 17), expected)


def test_samples_have_its_mean_and_variance(name):
    likelihood, variance = made(name)
    n, mu = 100_000, outputs()[0, 0]
    x = likelihood.sample(mu.expand(n, D), torch.Generator().manual_seed(0))
    assert ((x.mean(0) - mu).abs() < 4 * (variance / n).sqrt()).all()
    assert ((x.var(0) - variance).abs() < 4 * variance * math.sqrt(2 / n)).all()
    correlation = torch.corrcoef(x.T) - torch.eye(D)
    assert correlation.abs().max() < 4 / math.sqrt(n)


def test_clean_values_are_those_of_the_decoder(name, observed):
    likelihood, _ = made(name)
    x, mu = random_data(B, D), outputs()[:, 0]
    mean, variance = likelihood.clean(x, mu, pack(states(B)), observed)
    assert torch.equal(mean, mu)
    assert variance is None


def summed(likelihood, x, weights, error, observed):
    """Two batches of an epoch, as `Totals` adds them up."""
    sums = {name: torch.zeros(shape).double() for name, shape in likelihood.statistics_shapes().items()}
    for rows in (slice(0, 2), slice(2, B)):
        known = None if observed is None else observed[rows]
        likelihood.add_statistics(sums, Visited(x[rows], known, None, weights[rows], error[rows], None, None, UNPACKED))
    assert {key: value.shape for key, value in sums.items()} == likelihood.statistics_shapes()
    n_observed = x.numel() if observed is None else observed.sum().item()
    return {**sums, "n_observed": torch.tensor(n_observed).double()}


def test_the_gaussians_update_maximises_the_expected_log_likelihood(observed):
    likelihood, _ = made("gaussian")
    x, mu = random_data(B, D), outputs()
    weights = random_data(B, S, seed=9).softmax(1)
    log_sigma2 = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([log_sigma2], max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-15)

    def loss():
        optimiser.zero_grad()
        value = -(weights * log_density(x, mu, log_sigma2.exp(), observed)).sum()
        value.backward()
        return value

    optimiser.step(loss)
    likelihood.update(summed(likelihood, x, weights, error_of(likelihood, x, mu, observed), observed))
    torch.testing.assert_close(likelihood.sigma2, log_sigma2.detach().exp(), rtol=1e-6, atol=0)


def test_known_variances_stay(observed):
    likelihood, variance = made("known_variance")
    x, mu, weights = random_data(B, D), outputs(), torch.full((B, S), 1 / S)
    likelihood.update(summed(likelihood, x, weights, error_of(likelihood, x, mu, observed), observed))
    assert torch.equal(likelihood.variance, variance)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("gaussian", {"sigma2": 4.0}, 2.0),
        ("gaussian", {"sigma2": None}, 3.0),
        ("known_variance", {"variances": [4.0, 16.0, 4.0]}, math.sqrt(8)),
    ],
)
def test_variances_are_given_and_reported_in_the_datas_units(name, values, expected):
    """x = 5 x_model + 100: densities are those of the data times 5 for each value, and sigma is what was given."""
    units = Units(mean=100.0, std=5.0)
    options = {"sigma2": None, "variances": None, **values}
    likelihood = {"gaussian": Gaussian, "known_variance": KnownVariance}[name].start(
        Start(ModelConfig(**options), 60, 3, 9.0, units, torch.Generator())
    )
    assert likelihood.sigma(units) == pytest.approx(expected)
    variance = torch.tensor(values.get("variances") or [expected**2] * 3, dtype=torch.float64)
    x, mu = 100 + 5 * random_data(B, 3), 100 + 5 * outputs(n_outputs=3)
    found = log_prob(likelihood, units.to_model(x), units.to_model(mu), None)
    torch.testing.assert_close(found, log_density(x, mu, variance, None) + 3 * math.log(5))


def test_variances_are_kept_off_zero():
    zero = torch.zeros(3, dtype=torch.float64)
    assert Gaussian(zero[0]).sigma2 == SIGMA2_MIN
    assert (KnownVariance(zero).variance == SIGMA2_MIN).all()


def test_spec_and_state_say_all(name):
    likelihood, _ = made(name)
    again = type(likelihood)(**likelihood.state_dict())
    assert type(again) is type(likelihood)
    assert again.spec() == likelihood.spec()
    assert same(dict(again.state_dict()), dict(likelihood.state_dict()))


def test_equal_variances_are_the_gaussian(observed):
    gaussian, variance = made("gaussian")
    known, x, mu = KnownVariance(variance), random_data(B, D), outputs()
    torch.testing.assert_close(*(log_prob(likelihood, x, mu, observed) for likelihood in (gaussian, known)))
    weight = torch.full((B,), 0.6, dtype=torch.float64)
    torch.testing.assert_close(
        *(one.slope(x, mu[:, 0], pack(states(B)), weight, observed, B) for one in (gaussian, known))
    )
    torch.testing.assert_close(*(one.sample(mu, torch.Generator().manual_seed(0)) for one in (gaussian, known)))
    assert known.sigma(Units(3.0, 2.0)) == pytest.approx(gaussian.sigma(Units(3.0, 2.0)))


def test_with_all_states_the_elbo_is_the_log_likelihood(name, observed):
    likelihood, variance = made(name)
    start, x, z = random_model(), random_data(), all_states(6).double()
    model = Model(start.decoder, start.prior, likelihood)
    prior = Bernoulli(model.pi).log_prob(z).sum(-1)
    expected = (prior + log_density(x, model.decoder(z).expand(B, -1, -1), variance, observed)).logsumexp(1)
    packed = pack(z).expand(B, -1, -1)
    for e_step in (torch_backend.e_step, choose_backend(model, EaConfig()).e_step):
        torch.testing.assert_close(e_step(model, EaConfig(), x, packed, None, observed).elbo, expected.detach())


def known_variance_fit(precision="float64"):
    model = ModelConfig(n_latents=8, hidden=[8], likelihood="known_variance", variances=[0.01] * 16)
    config = small_config(epochs=30, precision=precision, model=model)
    return make_fit(config, load(config))


def test_training_with_known_variances_raises_the_elbo_and_resumes():
    whole = known_variance_fit()
    reports = list(whole.epochs())
    elbos = [report.elbo for report in reports]
    assert elbos[-1] > elbos[0] + 100
    assert [report.sigma for report in reports] == pytest.approx(30 * [0.1]), "in the data's units, and not learned"
    first, second = known_variance_fit(), known_variance_fit()
    asked = iter(range(10**6))
    before = [report.elbo for report in first.epochs(lambda: next(asked) >= 50)]
    second.load_state_dict(first.state_dict())
    second.points.sets.tensor.copy_(first.points.sets.tensor)
    assert before + [report.elbo for report in second.epochs()] == elbos
    assert same(second.state_dict(), whole.state_dict())
    content = whole.state_dict()
    again = model_from(content, content["model"])
    assert type(again.likelihood) is KnownVariance
    assert same(again.parameters_by_name(), whole.model.parameters_by_name())


@pytest.mark.parametrize("n_variances", [1, 15])
def test_each_value_needs_its_variance(n_variances):
    model = ModelConfig(n_latents=8, hidden=[8], likelihood="known_variance", variances=[0.01] * n_variances)
    config = small_config(model=model)
    with pytest.raises(UserError, match=rf"model\.variances: {n_variances}, but a data point has 16 values"):
        make_fit(config, load(config))


def test_known_variances_in_single_precision():
    fit = known_variance_fit("float32")
    assert fit.backend.e_step is torch_backend.e_step
    assert fit.model.likelihood.variance.dtype == torch.float32
    elbos = [report.elbo for report in fit.epochs()]
    assert elbos[-1] > elbos[0] + 100
