"""A slab for every spike, against brute-force Gaussian densities."""

import itertools
import math

import numpy as np
import pytest
import torch

from tvae.backends.native import slab as native
from tvae.backends.torch_backend import e_step, gradient_by
from tvae.inference.evolution import EaConfig
from tvae.inference.posterior import clean_moments, significant_states
from tvae.inference.streams import Stream
from tvae.model.covariance import Covariance
from tvae.model.decoder import Mlp
from tvae.model.likelihood import Gaussian
from tvae.model.packed import UNPACKED, pack
from tvae.model.parts import Start
from tvae.model.prior import Bernoulli
from tvae.model.slab import Slab
from tvae.model.units import Units
from tvae.model.vae import Model, ModelConfig, log_likelihood
from tvae.training.backend import Minibatch, visit_by
from tvae.training.m_step import Totals, update_closed_forms

H, R, D, N = 4, 2, 5, 7


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def made_model(n_latents=H, rank=R, n_values=D, sigma2=0.3, seed=0, scale=1.0, hidden=()):
    """Directions are orthogonal, as the M-step leaves them."""
    source = rng(seed)
    directions = torch.randn(n_latents, rank, n_values, generator=source, dtype=torch.float64)
    basis = torch.linalg.qr(directions.transpose(1, 2)).Q.transpose(1, 2)
    lengths = scale * (0.3 + torch.rand(n_latents, rank, 1, generator=source, dtype=torch.float64))
    decoder = Mlp(n_latents, list(hidden), n_values, "relu", source).double()
    with torch.no_grad():
        for weight in decoder.weights:
            weight.copy_(torch.randn(weight.shape, generator=source, dtype=torch.float64))
    pi = 0.1 + 0.3 * torch.rand(n_latents, generator=source, dtype=torch.float64)
    return Model(decoder, Bernoulli(pi), Slab(torch.tensor(sigma2, dtype=torch.float64), basis * lengths))


def every_state(n_latents=H):
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=n_latents)), dtype=torch.float64)


def density(model, x, z, observed=None):
    """log N(x; mu(z), C(z)) with the covariance written out."""
    u = model.likelihood.directions[z > 0].flatten(0, 1)
    covariance = model.likelihood.sigma2 * torch.eye(len(x), dtype=x.dtype) + u.T @ u
    mean = model.decoder(z[None])[0]
    if observed is not None:
        x, mean, covariance = x[observed], mean[observed], covariance[observed][:, observed]
    return torch.distributions.MultivariateNormal(mean, covariance).log_prob(x)


def data(seed=1, missing=0.0, n=N, n_values=D):
    x = 2 * torch.randn(n, n_values, generator=rng(seed), dtype=torch.float64)
    observed = torch.rand(n, n_values, generator=rng(seed + 1)) >= missing if missing else None
    return (x if observed is None else x * observed), observed


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("hidden", [(), (3,)])
def test_log_joint_is_that_of_the_written_out_gaussian(missing, hidden):
    model, (x, observed) = made_model(hidden=hidden), data(missing=missing)
    z = every_state()
    found = model.log_joint(x, z.expand(N, -1, -1), observed)
    for n, s in itertools.product(range(N), range(len(z))):
        wanted = model.log_prior(z[s]) + density(model, x[n], z[s], None if observed is None else observed[n])
        assert found[n, s].item() == pytest.approx(wanted.item(), abs=1e-9)


def test_the_bound_is_the_likelihood_with_all_states_and_never_above_it():
    model, (x, _) = made_model(), data()
    z = every_state()
    exact = log_likelihood(model, x, z)
    by_hand = torch.stack(
        [torch.stack([model.log_prior(s) + density(model, point, s) for s in z]).logsumexp(0) for point in x]
    )
    torch.testing.assert_close(exact, by_hand)
    few = e_step(model, EaConfig(), x, pack(z[:5].expand(N, -1, -1)), None).elbo
    assert (few < exact).all()


def test_without_directions_it_is_the_gaussian():
    model, (x, observed) = made_model(), data(missing=0.3)
    model.likelihood.directions.zero_()
    z = every_state().expand(N, -1, -1)
    plain = super(Slab, model.likelihood).error(x, model.decoder(z), z, observed)
    torch.testing.assert_close(model.likelihood.error(x, model.decoder(z), z, observed), plain)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_slope_is_the_gradient_in_mu(missing):
    model, (x, observed) = made_model(), data(missing=missing)
    z = every_state()[torch.arange(N) % 16]
    mu = model.decoder(z).detach().requires_grad_()
    weight = torch.rand(N, generator=rng(5), dtype=torch.float64)
    error = model.likelihood.error(x, mu[:, None], z[:, None], observed)
    (-(weight * model.likelihood.log_prob(error, x, observed)[:, 0]).sum() / 11).backward()
    found = model.likelihood.slope(x, mu.detach(), pack(z), weight, observed, 11)
    torch.testing.assert_close(found, mu.grad)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_clean_value_is_the_conditional_gaussian(missing):
    """E[clean | x] and its variance from the joint Gaussian of the clean value and x."""
    model, (x, observed) = made_model(), data(missing=missing)
    z = every_state()[torch.arange(N) % 15 + 1]
    mean, variance = model.likelihood.clean(x, model.decoder(z), pack(z), observed)
    for n in range(N):
        u = model.likelihood.directions[z[n] > 0].flatten(0, 1)
        known = torch.ones(D, dtype=torch.bool) if observed is None else observed[n]
        prior = u.T @ u
        noisy = prior[known][:, known] + model.likelihood.sigma2 * torch.eye(int(known.sum()), dtype=x.dtype)
        gain = prior[:, known] @ torch.linalg.inv(noisy)
        mu = model.decoder(z[n : n + 1])[0]
        torch.testing.assert_close(mean[n], mu + gain @ (x[n] - mu)[known])
        torch.testing.assert_close(variance[n], (prior - gain @ prior[known]).diagonal())


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_gradient_of_a_deep_mean_is_that_of_the_exact_likelihood(missing):
    """Eq. (4) with slabs: residuals weighted by the inverse covariance, through a hidden layer."""
    model, (x, observed) = made_model(hidden=(3,)), data(missing=missing)
    z = every_state()
    exact = torch.autograd.grad(log_likelihood(model, x, z, observed).sum(), list(model.decoder.parameters()))
    rows = significant_states(e_step(model, EaConfig(), x, pack(z.expand(N, -1, -1)), None, observed), 0.0)
    found = gradient_by(UNPACKED, False)(model, x, rows, observed, N)
    for g, e in zip(found, exact, strict=True):
        torch.testing.assert_close(g, -e / N)


def test_a_rank_of_zero_is_the_gaussian_to_the_last_bit():
    """Directions (H, 0, D): the same log-joints, M-step and posterior mean as the paper's likelihood."""
    slab, (x, _) = made_model(rank=0), data()
    slab.likelihood.shrinks = False
    plain = Model(slab.decoder, slab.prior, Gaussian(slab.likelihood.sigma2))
    z = every_state()
    packed = pack(z.expand(N, -1, -1))
    steps = [e_step(model, EaConfig(), x, packed, None) for model in (slab, plain)]
    assert torch.equal(steps[0].log_joint, steps[1].log_joint)
    means = [clean_moments(model, x, significant_states(steps[0], 0.0), None, UNPACKED) for model in (slab, plain)]
    assert torch.equal(means[0][0], means[1][0])


def trained(model, x, observed, n_epochs, shrinks=False, updates_one=None):
    """The exact log-likelihood before each of so many full-batch EM steps over all states, and after the last."""
    model.likelihood.shrinks = shrinks
    z, found = every_state(model.n_latents), []
    packed, ea = pack(z.expand(len(x), -1, -1)), EaConfig()
    visit = visit_by(e_step, None, UNPACKED)
    for _ in range(n_epochs):
        found.append(log_likelihood(model, x, z, observed).sum().item())
        totals = Totals(model, True, observed is not None)
        visit(model, ea, 0.0, Minibatch(x, observed, packed, Stream(0, torch.arange(len(x))), len(x)), totals)
        update_closed_forms(model, totals)
    return [*found, log_likelihood(model, x, z, observed).sum().item()]


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_m_steps_raise_the_likelihood(seed, missing):
    """Full batch, no shrinkage; several latents may be on at once."""
    truth = made_model(seed=seed + 20, sigma2=0.1)
    x = truth.sample(300, rng(seed)).detach()
    observed = torch.rand(x.shape, generator=rng(seed)) >= missing if missing else None
    found = trained(made_model(seed=seed, sigma2=1.0), x if observed is None else x * observed, observed, 12)
    assert all(b > a - 1e-6 for a, b in itertools.pairwise(found)), found
    assert found[-1] > found[0] + 10


def test_parameters_are_recovered_from_data_drawn_from_the_model():
    truth = made_model(2, 1, 6, sigma2=0.05, seed=3, scale=2.0)
    x = truth.sample(4000, rng(1)).detach()
    model = made_model(2, 1, 6, sigma2=0.05, seed=3, scale=2.0)
    with torch.no_grad():
        model.likelihood.directions.mul_(0.3)
        model.decoder.weights[0].mul_(0.8)
    trained(model, x, None, 60, shrinks=True)
    assert model.likelihood.sigma2.item() == pytest.approx(0.05, rel=0.05)
    torch.testing.assert_close(model.pi, truth.pi, atol=0.03, rtol=0)
    for mine, theirs in zip(model.likelihood.directions, truth.likelihood.directions, strict=True):
        torch.testing.assert_close(mine.T @ mine, theirs.T @ theirs, atol=0.25, rtol=0.1)


def test_pure_noise_gets_no_directions():
    """Eigenvalues of n vectors of white noise are not beyond the edge, up to its fluctuation."""
    likelihood = Slab(torch.tensor(1.0, dtype=torch.float64), torch.zeros(1, 3, 20, dtype=torch.float64))
    x = torch.randn(400, 20, generator=rng(2), dtype=torch.float64)
    sums = {
        "n_on": torch.tensor([400.0]),
        "n_together": torch.tensor([400.0]),
        "spread": (x.T @ x)[None],
        "error": x.square().sum(),
        "n_observed": x.numel(),
    }
    sums = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in sums.items()}
    likelihood.update(sums)
    lengths = likelihood.directions.square().sum(-1)
    assert lengths.max() == 0
    likelihood.sigma2.fill_(1.0)
    likelihood.shrinks = False
    likelihood.update(sums)
    assert likelihood.directions.square().sum(-1).min() > 0.2


def test_samples_have_the_covariance_of_the_model():
    model = made_model()
    z = torch.tensor([1.0, 0, 1, 0], dtype=torch.float64).expand(40_000, -1)
    x = model.likelihood.sample(model.decoder(z).detach(), rng(3), z)
    u = model.likelihood.directions[[0, 2]].flatten(0, 1)
    wanted = model.likelihood.sigma2 * torch.eye(D, dtype=torch.float64) + u.T @ u
    torch.testing.assert_close(torch.cov(x.T), wanted, atol=0.06, rtol=0.05)


needs_kernel = pytest.mark.skipif(not native.is_available(), reason="the kernel could not be compiled")
SEARCH = EaConfig(mutation="residual", n_parents=2, n_children=12, most_on=2, far_below=1e9)


def sample_of_kernel(missing, dtype=torch.float64):
    model = made_model(12, 3, 16, seed=4).to(dtype)
    x, observed = data(missing=missing, n=40, n_values=16)
    eye = torch.eye(12, dtype=dtype)
    packed = pack(torch.cat([eye[:5], eye[:1] + eye[3:4]]).expand(40, -1, -1))
    return model, x.to(dtype), observed, packed


@needs_kernel
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_the_kernel_finds_the_states_and_values_of_torch(missing):
    model, x, observed, packed = sample_of_kernel(missing)
    stays = native.e_step(model, SEARCH, x, packed, None, observed)
    found = native.e_step(model, SEARCH, x, packed, Stream(0, torch.arange(40)), observed)
    torch.testing.assert_close(
        stays.log_joint, e_step(model, SEARCH, x, packed, None, observed).log_joint.sort(1, descending=True).values
    )
    wanted = e_step(model, SEARCH, x, packed, Stream(0, torch.arange(40)), observed)
    torch.testing.assert_close(found.log_joint, wanted.log_joint.sort(1, descending=True).values)
    again = e_step(model, SEARCH, x, found.packed, None, observed)
    torch.testing.assert_close(found.log_joint, again.log_joint)
    torch.testing.assert_close(found.error, again.error)
    assert (found.elbo >= stays.elbo).all()


@pytest.mark.parametrize("n_on", [2, 3, 4])
def test_latents_that_are_always_on_together_share_what_is_left(n_on):
    """All move at once; if each took all of it, the likelihood would fall."""
    truth, model = made_model(5, 2, 12, seed=5, sigma2=0.2), made_model(5, 2, 12, seed=6, sigma2=0.5)
    model.likelihood.shrinks = False
    z = torch.zeros(400, 5, dtype=torch.float64)
    z[:, :n_on] = 1
    x = truth.likelihood.sample(truth.decoder(z).detach(), rng(1), z)
    found = []
    for _ in range(8):
        step, totals = e_step(model, EaConfig(), x, pack(z[:, None]), None), Totals(model, True, False)
        found.append(step.elbo.sum().item())
        totals.add(model, x, step, significant_states(step, 0.0), None, UNPACKED, torch.arange(400))
        update_closed_forms(model, totals)
    assert all(b > a for a, b in itertools.pairwise(found)), found


@needs_kernel
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_the_search_of_the_kernel_stays_below_the_exact_likelihood(missing):
    model, x, observed, packed = sample_of_kernel(missing)
    x, observed, packed = x[:8], None if observed is None else observed[:8], packed[:8]  # of all 4,096 states each
    exact = log_likelihood(model, x, every_state(12), observed)
    found = native.e_step(model, SEARCH, x, packed, Stream(0, torch.arange(8)), observed)
    assert (found.elbo < exact).all()


@needs_kernel
@pytest.mark.parametrize("seed", range(3))
def test_every_e_step_and_every_m_step_of_the_kernel_raises_the_bound(seed):
    """Six states of 12 latents, up to two on; full batch, no shrinkage."""
    x = made_model(12, 3, 16, seed=seed + 50).sample(300, rng(seed)).detach()
    model, eye = made_model(12, 3, 16, sigma2=1.0, seed=seed), torch.eye(12, dtype=torch.float64)
    model.likelihood.shrinks = False
    packed = pack(torch.cat([eye[:5], eye[:1] + eye[3:4]]).expand(300, -1, -1))
    bounds = [native.e_step(model, SEARCH, x, packed, None).elbo.sum().item()]
    for _ in range(6):
        totals = Totals(model, True, False)
        packed, _ = native.visit(
            model, SEARCH, 0.0, Minibatch(x, None, packed, Stream(0, torch.arange(300)), 300), totals
        )
        bounds.append(totals["elbo"].item())
        update_closed_forms(model, totals)
        bounds.append(native.e_step(model, SEARCH, x, packed, None).elbo.sum().item())
    assert all(b > a - 1e-6 for a, b in itertools.pairwise(bounds)), bounds
    assert bounds[-1] > bounds[0] + 1000


@needs_kernel
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_the_kernel_adds_up_what_torch_does(missing):
    model, x, observed, packed = sample_of_kernel(missing)
    batch = Minibatch(x, observed, packed, Stream(0, torch.arange(40)), 40)
    totals = []
    for visit in (native.visit, visit_by(native.e_step, None, UNPACKED)):
        totals.append(Totals(model, True, observed is not None))
        visit(model, SEARCH, 0.0, batch, totals[-1])
    for name, value in totals[0].sums.items():
        torch.testing.assert_close(value, totals[1][name], atol=1e-4, rtol=1e-4, msg=lambda text: f"{name}: {text}")  # noqa: B023


@needs_kernel
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_moments_of_the_kernel(missing, monkeypatch):
    model, x, observed, packed = sample_of_kernel(missing)
    monkeypatch.setattr(native, "PRUNE", 0.0)
    mean, variance = native.moments(model, SEARCH, x, packed, None, observed)
    rows = significant_states(e_step(model, SEARCH, x, packed, None, observed), 0.0)
    wanted_mean, wanted_variance = clean_moments(model, x, rows, observed, UNPACKED)
    torch.testing.assert_close(mean, wanted_mean, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(variance, wanted_variance, atol=1e-9, rtol=1e-9)


@needs_kernel
def test_moments_of_the_kernel_before_whitening(monkeypatch):
    model, x, _, packed = sample_of_kernel(0.0)
    monkeypatch.setattr(native, "PRUNE", 0.0)
    side = math.isqrt(x.shape[1])
    lag = np.array([1.0, 0.5])
    whitening = Covariance(np.outer(lag, lag)[None, None], 0.1).whitening(side)
    mean, variance = native.moments(model, SEARCH, x, packed, None, whitening=whitening)
    rows = significant_states(e_step(model, SEARCH, x, packed, None), 0.0)
    wanted_mean, wanted_variance = clean_moments(model, x, rows, None, UNPACKED, whitening)
    torch.testing.assert_close(mean, wanted_mean, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(variance, wanted_variance, atol=1e-9, rtol=1e-9)


@needs_kernel
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_kernel_sums_do_not_depend_on_the_number_of_threads(missing, monkeypatch):
    model, x, observed, packed = sample_of_kernel(missing, torch.float32)
    monkeypatch.setattr(native, "PART_MIN", 5)
    found = []
    for n_threads in (1, 3):
        monkeypatch.setattr(native, "n_threads_for", lambda n, n_threads=n_threads: n_threads)
        totals = Totals(model, True, observed is not None)
        packed_now, _ = native.visit(
            model, SEARCH, 1e-3, Minibatch(x, observed, packed, Stream(0, torch.arange(40)), 40), totals
        )
        found.append([packed_now, *totals.sums.values()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@needs_kernel
def test_too_many_latents_on_are_refused():
    model, x, _, _ = sample_of_kernel(0.0)
    with pytest.raises(ValueError, match="more than 8"):
        native.e_step(model, SEARCH, x[:1], pack(torch.ones(1, 1, 12)), None)


def test_a_capped_noise_variance_stays_below_its_start():
    """Structure that no direction explains does not count as noise."""
    options = ModelConfig(n_latents=2, slab=1, sigma2=0.5, capped_sigma2=True)
    likelihood = Slab.start(Start(options, 10, 4, 1.0, Units(), rng(), None))
    sums = {"n_on": torch.zeros(2), "n_together": torch.zeros(2), "spread": torch.zeros(2, 4, 4)}
    for error, wanted in ((9.0, 0.5), (1.0, 0.1)):
        totals = sums | {"error": torch.tensor(error), "n_observed": torch.tensor(10.0)}
        likelihood.update({name: value.double() for name, value in totals.items()})
        assert likelihood.sigma2.item() == pytest.approx(wanted)
