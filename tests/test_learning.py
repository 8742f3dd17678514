import pytest
import torch
from conftest import draw_states, random_data, random_mask, random_model

from tvae.config import EaConfig, LrConfig
from tvae.inference import e_step
from tvae.learning import (
    Totals,
    decoder_loss,
    make_schedule,
    outputs,
    solve_linear,
    update_prior_and_noise,
    weighty_states,
)
from tvae.states import unpack

N, H, D = 40, 6, 7


def setting(hidden=(5,), masked=False, n_states=12):
    model, x = random_model(H, hidden, D), random_data(N, D)
    observed = random_mask(N, D) if masked else None
    packed = draw_states(model.pi, n_states, N, False, torch.Generator().manual_seed(4))
    return model, x, observed, e_step(model, EaConfig(), x, packed, None, observed)


def elbo(model, x, packed, observed):
    """Eq. (7), the sum over data points."""
    return model.log_joint(x, unpack(packed, H, torch.float64), observed).logsumexp(1).sum()


def summed(model, x, step, observed, exact=False):
    totals = Totals(model, exact, observed is not None)
    totals.add(x, step, weighty_states(step, 0), observed)
    return totals


@pytest.mark.parametrize("hidden", [[], [5], [4, 3]])
@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_that_of_the_elbo(hidden, masked):
    """Eq. (4), with q held fixed, equals the derivative of Eq. (7)."""
    model, x, observed, step = setting(hidden, masked)
    parameters = list(model.decoder.parameters())
    ours = torch.autograd.grad(decoder_loss(model, x, weighty_states(step, 0), observed), parameters)
    exact = torch.autograd.grad(elbo(model, x, step.packed, observed), parameters)
    for g, e in zip(ours, exact, strict=True):
        torch.testing.assert_close(g, -e / N, atol=1e-9, rtol=1e-9)


def test_imputed_values_stand_at_their_posterior_mean():
    model, x, observed, step = setting(masked=True)
    z, weights = unpack(step.packed, H, torch.float64), step.weights
    mu = model.decoder(z)
    filled = x.where(observed, (weights[..., None] * mu.detach()).sum(1))
    expected = (weights * (filled[:, None] - mu).square().sum(-1)).sum() / (2 * model.sigma2 * N)
    found = decoder_loss(model, x, weighty_states(step, 0), observed, impute=True)
    parameters = list(model.decoder.parameters())
    for g, e in zip(torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(g, e)


def test_pruning_leaves_out_no_more_than_it_may():
    _, x, _, step = setting()
    for prune in (1e-3, 0.05, 0.5):
        rows = weighty_states(step, prune)
        kept = torch.zeros(len(x), dtype=torch.float64)
        for point, packed in zip(rows.point.tolist(), rows.packed, strict=True):
            kept[point] += step.weights[point][(step.packed[point] == packed).all(-1)].sum()
        assert (kept >= 1 - prune).all()
        assert 0 < len(rows.weight) < step.weights.numel()
        sums = torch.zeros(len(x), dtype=torch.float64).index_add_(0, rows.point, rows.weight)
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_the_default_pruning_changes_the_gradient_little():
    model, x, _, step = setting()
    parameters = list(model.decoder.parameters())
    flat = [
        torch.cat([g.flatten() for g in torch.autograd.grad(decoder_loss(model, x, rows), parameters)])
        for rows in (weighty_states(step, 0), weighty_states(step, 1e-3))
    ]
    assert (flat[0] - flat[1]).norm() < 0.005 * flat[0].norm()


@pytest.mark.parametrize("masked", [False, True])
def test_pi_and_sigma2_maximise_the_bound(masked):
    """Eq. (5) against a numerical maximisation of the expected log-joint under fixed q."""
    model, x, observed, step = setting(masked=masked)
    z, weights = unpack(step.packed, H, torch.float64), step.weights
    logit = torch.logit(model.pi).clone().requires_grad_()
    log_sigma2 = model.sigma2.log().clone().requires_grad_()
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
    update_prior_and_noise(model, summed(model, x, step, observed))
    torch.testing.assert_close(model.pi, logit.detach().sigmoid(), atol=1e-5, rtol=0)
    torch.testing.assert_close(model.sigma2, log_sigma2.detach().exp(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_the_exact_solve_leaves_no_gradient(masked):
    model, x, observed, step = setting([], masked)
    rows = weighty_states(step, 0)
    before = elbo(model, x, step.packed, observed)
    totals = summed(model, x, step, observed, exact=True)
    solve_linear(model, totals)
    gradient = torch.autograd.grad(decoder_loss(model, x, rows, observed), list(model.decoder.parameters()))
    assert max(g.abs().max() for g in gradient) < 1e-5
    update_prior_and_noise(model, totals)
    error = (rows.weight * ((outputs(model.decoder, rows) - x[rows.point]).square() * (
        1 if observed is None else observed[rows.point])).sum(1)).sum()  # fmt: skip
    n_observed = N * D if observed is None else observed.sum()
    torch.testing.assert_close(model.sigma2, (error / n_observed).detach(), rtol=1e-9, atol=0)
    assert elbo(model, x, step.packed, observed) > before, "one step of EM raises the bound"


def test_the_exact_solve_is_weighted_least_squares():
    model, x, _, step = setting([])
    rows = weighty_states(step, 0)
    root = rows.weight.sqrt()[:, None]
    design = torch.cat([unpack(rows.packed, H, torch.float64), torch.ones_like(root)], 1) * root
    expected = torch.linalg.lstsq(design, x[rows.point] * root).solution
    solve_linear(model, summed(model, x, step, None, exact=True))
    torch.testing.assert_close(model.decoder.weights[0].detach(), expected[:-1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.decoder.biases[0].detach(), expected[-1], atol=1e-5, rtol=1e-5)


def test_latents_that_are_never_on_keep_their_weights():
    model, x, _, step = setting([])
    step = step._replace(packed=step.packed & 0b011111)
    before = model.decoder.weights[0][5].clone()
    solve_linear(model, summed(model, x, step, None, exact=True))
    assert torch.equal(model.decoder.weights[0][5], before)


def rates(lr, n_batches=10, n_epochs=4):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.Adam([parameter], lr=lr.min if lr.kind == "cyclic" else lr.max)
    schedule = make_schedule(optimiser, lr, n_batches, n_epochs)
    found = [optimiser.param_groups[0]["lr"]]
    for _ in range(n_batches * n_epochs):
        optimiser.step()
        schedule.step()
        found.append(optimiser.param_groups[0]["lr"])
    return torch.tensor(found, dtype=torch.float64)


def test_the_cyclic_rate_is_a_triangle():
    found = rates(LrConfig("cyclic", min=0.1, max=0.5, epochs_per_cycle=2))
    up = torch.linspace(0.1, 0.5, 11, dtype=torch.float64)
    cycle = torch.cat([up[:-1], up.flip(0)[:-1]])
    torch.testing.assert_close(found, torch.cat([cycle, cycle, up[:1]]))


def test_one_cycle_over_all_epochs():
    found = rates(LrConfig("cyclic", min=0.1, max=0.5, epochs_per_cycle=None))
    torch.testing.assert_close(found[[0, 20, 40]], torch.tensor([0.1, 0.5, 0.1], dtype=torch.float64))


def test_the_decaying_rate_halves_and_the_constant_one_stays():
    found = rates(LrConfig("decay", max=0.4, epochs_to_half=2))
    torch.testing.assert_close(found[[0, 20, 40]], torch.tensor([0.4, 0.2, 0.1], dtype=torch.float64))
    assert (rates(LrConfig("constant", max=0.4)) == 0.4).all()
