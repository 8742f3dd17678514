import pytest
import torch
from reference import Theta
from torch.distributions import Bernoulli, Normal

from tests.conftest import random_data, random_mask, random_model, same
from tvae.inference.states import all_states
from tvae.model.vae import gaussian_model, log_likelihood, model_from


@pytest.mark.parametrize("hidden", [[], [5], [4, 3]])
@pytest.mark.parametrize("masked", [False, True])
def test_log_joint_is_the_true_one(hidden, masked):
    model, x = random_model(hidden=hidden), random_data()
    observed = random_mask() if masked else None
    z = all_states(6).double().expand(5, -1, -1)
    noise = Normal(model.decoder(z), model.likelihood.sigma2.sqrt()).log_prob(x[:, None])
    if observed is not None:
        noise = noise * observed[:, None]
    expected = Bernoulli(model.pi).log_prob(z).sum(-1) + noise.sum(-1)
    torch.testing.assert_close(model.log_joint(x, z, observed), expected)
    theta = Theta(model)
    slow = theta.log_joint(x[2].numpy(), z[2, 37].int().tolist(), None if observed is None else observed[2])
    assert model.log_joint(x, z, observed)[2, 37].item() == pytest.approx(slow, abs=1e-9)


def test_the_density_integrates_to_one():
    model = random_model(n_latents=4, n_outputs=1)
    x = torch.linspace(-30, 30, 20001, dtype=torch.float64)[:, None]
    density = log_likelihood(model, x, all_states(4).double()).exp()
    assert torch.trapezoid(density, x[:, 0]).item() == pytest.approx(1, abs=1e-9)


def test_a_masked_density_is_the_marginal():
    """Integrating the full density over the unobserved dimension gives the masked one."""
    model, x = random_model(n_outputs=2), torch.tensor([[0.3, 0.0]], dtype=torch.float64)
    z = all_states(6).double()
    grid = torch.linspace(-30, 30, 20001, dtype=torch.float64)
    full = log_likelihood(model, torch.stack([torch.full_like(grid, 0.3), grid], 1), z).exp()
    masked = log_likelihood(model, x, z, torch.tensor([[True, False]])).exp()
    assert torch.trapezoid(full, grid).item() == pytest.approx(masked.item(), rel=1e-9)


def test_samples_follow_the_model():
    model = random_model(n_latents=3, n_outputs=2)
    x = model.sample(200_000, torch.Generator().manual_seed(0)).detach()
    z = all_states(3).double()
    p = model.log_prior(z).exp()
    mu = model.decoder(z)
    mean = p @ mu
    cov = ((mu - mean).T * p) @ (mu - mean) + model.likelihood.sigma2 * torch.eye(2)
    torch.testing.assert_close(x.mean(0), mean.detach(), atol=0.01, rtol=0)
    torch.testing.assert_close(x.T.cov(), cov.detach(), atol=0.02, rtol=0.01)


def test_pi_and_sigma2_are_kept_off_the_borders():
    model = random_model()
    edge = gaussian_model(model.decoder, torch.tensor([0.0, 1.0] * 3, dtype=torch.float64), 0.0)
    assert torch.isfinite(edge.log_joint(random_data(), all_states(6).double().expand(5, -1, -1))).all()


@pytest.mark.parametrize("hidden", [[], [5]])
def test_a_model_is_rebuilt_from_its_spec_and_parameters(hidden):
    model = random_model(hidden=hidden, activation="elu")
    again = model_from(model.spec(), model.parameters_by_name())
    assert again.spec() == model.spec()
    assert same(again.parameters_by_name(), model.parameters_by_name())
    z = all_states(6).double().expand(5, -1, -1)
    assert torch.equal(again.log_joint(random_data(), z), model.log_joint(random_data(), z))


def test_only_parameters_of_the_same_names_and_shapes_are_taken_over():
    model, other = random_model(), random_model(seed=1)
    model.load(other.parameters_by_name())
    assert same(model.parameters_by_name(), other.parameters_by_name())
    with pytest.raises(ValueError, match="shape"):
        model.load(random_model(hidden=[4]).parameters_by_name())
    with pytest.raises(ValueError, match="parameters"):
        model.load(random_model(hidden=[]).parameters_by_name())
