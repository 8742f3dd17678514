"""The decoder's gradient, which is the same in every backend: against derivatives of the bound itself."""

import pytest
import torch

from tests.conftest import evaluated
from tvae.backends import choose_backend, torch_backend
from tvae.inference.evolution import EaConfig
from tvae.inference.posterior import significant_states
from tvae.model.packed import UNPACKED, unpack

N = 40


def gradients(model, *arguments, impute=False):
    """The gradient of the fastest backend, and that of torch."""
    backend = choose_backend(model, EaConfig(), imputes=impute)
    return [by(model, *arguments, N) for by in (backend.gradient, torch_backend.gradient_by(UNPACKED, impute))]


@pytest.mark.parametrize("hidden", [[], [5], [4, 3]])
@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_that_of_the_elbo(hidden, masked):
    """Eq. (4), with q held fixed, equals the derivative of Eq. (7)."""
    model, x, observed, step = evaluated(hidden, masked)
    elbo = model.log_joint(x, unpack(step.packed, 6, torch.float64), observed).logsumexp(1).sum()
    exact = torch.autograd.grad(elbo, list(model.decoder.parameters()))
    for ours in gradients(model, x, significant_states(step, 0), observed):
        for g, e in zip(ours, exact, strict=True):
            torch.testing.assert_close(g, -e / N, atol=1e-9, rtol=1e-9)


def test_imputed_values_stand_at_their_posterior_mean():
    model, x, observed, step = evaluated(masked=True)
    z, weights = unpack(step.packed, 6, torch.float64), step.weights
    mu = model.decoder(z)
    filled = x.where(observed, (weights[..., None] * mu.detach()).sum(1))
    loss = (weights * (filled[:, None] - mu).square().sum(-1)).sum() / (2 * model.likelihood.sigma2 * N)
    expected = torch.autograd.grad(loss, list(model.decoder.parameters()))
    for ours in gradients(model, x, significant_states(step, 0), observed, impute=True):
        torch.testing.assert_close(ours, list(expected))


def test_where_all_is_observed_nothing_is_imputed():
    model, x, _, step = evaluated()
    rows = significant_states(step, 0)
    torch.testing.assert_close(*(gradients(model, x, rows, None, impute=impute)[1] for impute in (False, True)))


def test_the_default_pruning_changes_the_gradient_little():
    model, x, _, step = evaluated()
    for i in range(2):
        whole, pruned = (
            torch.cat([g.flatten() for g in gradients(model, x, significant_states(step, prune), None)[i]])
            for prune in (0, 1e-3)
        )
        assert (whole - pruned).norm() < 0.005 * whole.norm()
