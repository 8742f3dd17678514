"""The M-step in closed form."""

import pytest
import torch

from tests.conftest import evaluated
from tvae.inference.posterior import outputs, significant_states
from tvae.model.packed import UNPACKED, unpack
from tvae.training.m_step import Totals, solve_linear, update_closed_forms

N, H, D = 40, 6, 7


def total_elbo(model, x, packed, observed):
    """Eq. (7), the sum over data points."""
    return model.log_joint(x, unpack(packed, H, torch.float64), observed).logsumexp(1).sum()


def summed(model, x, step, observed, exact=False):
    totals = Totals(model, exact, observed is not None)
    totals.add(model, x, step, significant_states(step, 0), observed, UNPACKED)
    return totals


@pytest.mark.parametrize("masked", [False, True])
def test_pi_and_sigma2_maximise_the_bound(masked):
    """Eq. (5) against a numerical maximisation of the expected log-joint under fixed q."""
    model, x, observed, step = evaluated(masked=masked)
    z, weights = unpack(step.packed, H, torch.float64), step.weights
    logit = torch.logit(model.pi).clone().requires_grad_()
    log_sigma2 = model.likelihood.sigma2.log().clone().requires_grad_()
    error = step.error
    n_observed = torch.full((N, 1), D) if observed is None else observed.sum(1, keepdim=True)
    optimiser = torch.optim.LBFGS([logit, log_sigma2], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure():
        optimiser.zero_grad()
        prior = -torch.nn.functional.binary_cross_entropy_with_logits(logit.expand_as(z), z, reduction="none").sum(-1)
        noise = -0.5 * (error / log_sigma2.exp() + n_observed * log_sigma2)
        loss = -(weights * (prior + noise)).sum() / N
        loss.backward()
        return loss

    optimiser.step(closure)
    update_closed_forms(model, summed(model, x, step, observed))
    torch.testing.assert_close(model.pi, logit.detach().sigmoid(), atol=1e-5, rtol=0)
    torch.testing.assert_close(model.likelihood.sigma2, log_sigma2.detach().exp(), atol=1e-6, rtol=1e-6)


def test_imputed_values_count_as_observed_where_that_is_wanted():
    """sigma2 of data that are filled in first, over all values; the ELBO stays that of the observed ones."""
    model, x, observed, step = evaluated(masked=True)
    weights, mu = step.weights, model.decoder(unpack(step.packed, H, torch.float64)).detach()
    filled = x.where(observed, (weights[..., None] * mu).sum(1))
    expected = (weights * (filled[:, None] - mu).square().sum(-1)).sum() / (N * D)
    totals = Totals(model, False, True, counts_imputed=True)
    totals.add(model, x, step, significant_states(step, 0), observed, UNPACKED)
    assert totals["n_observed"] == observed.sum() < N * D
    assert not any(total.requires_grad for total in totals.sums.values())
    update_closed_forms(model, totals)
    torch.testing.assert_close(model.likelihood.sigma2, expected)


@pytest.mark.parametrize("masked", [False, True])
def test_the_exact_solve_leaves_no_gradient(masked):
    model, x, observed, step = evaluated([], masked)
    rows = significant_states(step, 0)
    before = total_elbo(model, x, step.packed, observed)
    sigma2 = model.likelihood.sigma2.clone()
    update_closed_forms(model, summed(model, x, step, observed, exact=True))
    error = (outputs(model, rows, UNPACKED) - x[rows.point]).square()
    error = (rows.weight * (error if observed is None else error * observed[rows.point]).sum(1)).sum()
    gradient = torch.autograd.grad(error / (2 * sigma2 * N), list(model.decoder.parameters()))
    assert max(g.abs().max() for g in gradient) < 1e-5
    n_observed = N * D if observed is None else observed.sum()
    torch.testing.assert_close(model.likelihood.sigma2, (error / n_observed).detach(), rtol=1e-9, atol=0)
    assert total_elbo(model, x, step.packed, observed) > before, "one step of EM raises the bound"


def test_the_exact_solve_is_weighted_least_squares():
    model, x, _, step = evaluated([])
    rows = significant_states(step, 0)
    root = rows.weight.sqrt()[:, None]
    design = torch.cat([unpack(rows.packed, H, torch.float64), torch.ones_like(root)], 1) * root
    expected = torch.linalg.lstsq(design, x[rows.point] * root).solution
    solve_linear(model, summed(model, x, step, None, exact=True))
    torch.testing.assert_close(model.decoder.weights[0].detach(), expected[:-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.decoder.biases[0].detach(), expected[-1], atol=1e-5, rtol=1e-5)


def test_latents_that_are_never_on_keep_their_weights():
    model, x, _, step = evaluated([])
    step = step._replace(packed=step.packed & 0b011111)
    before = model.decoder.weights[0][5].clone()
    solve_linear(model, summed(model, x, step, None, exact=True))
    assert torch.equal(model.decoder.weights[0][5], before)
