"""Mixtures of Gaussians: densities and posterior moments against dense formulas."""

import pytest
import torch
from mixture_samples import SIGMA2, covariances, dense_log_joint, draw, noisy_covariances, randn, random_mixture

from tvae.restoration.non_local import mixture as module
from tvae.restoration.non_local.mixture import Mixture


@pytest.mark.parametrize("ranks", [(0, 1, 3, 6), (2,), (0, 0)])
def test_log_joint_is_the_density_up_to_what_all_groups_share(ranks):
    mixture, y = random_mixture(ranks=ranks), 3 * randn(40, 6, seed=7)
    before = y.clone()
    found, wanted = mixture.log_joint(y), dense_log_joint(mixture, y)
    torch.testing.assert_close(found - found[:, :1], wanted - wanted[:, :1])
    assert torch.equal(y, before)


def test_log_joint_in_single_precision_far_from_zero():
    """Patches of a picture that is bright everywhere."""
    mixture, y = random_mixture(), 3 * randn(40, 6, seed=7)
    moved = Mixture(mixture.log_weight, mixture.mean + 100, mixture.basis, mixture.spread, SIGMA2)
    single = Mixture(
        moved.log_weight.float(),
        moved.mean.float(),
        [basis.float() for basis in moved.basis],
        [spread.float() for spread in moved.spread],
        SIGMA2,
    )
    found, wanted = single.log_joint((y + 100).float()).softmax(1), dense_log_joint(mixture, y).softmax(1)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=0.02)


def test_moments_are_those_of_the_mixture(monkeypatch):
    """E[x | y] = sum_k p(k | y) [m + C (C + s I)^-1 (y - m)], and the variance of that mixture of Gaussians."""
    monkeypatch.setattr(module, "SHARE_MIN", 0.0)
    mixture, y = random_mixture(distance=0.5), randn(30, 6, seed=3)
    posterior = dense_log_joint(mixture, y).softmax(1)  # (N, K)
    assert posterior.max(1).values.min() < 0.9, "not only one group counts"
    clean, noisy = covariances(mixture), noisy_covariances(mixture)
    gain = clean @ torch.linalg.inv(noisy)  # (K, D, D)
    estimate = mixture.mean + torch.einsum("kij,nkj->nki", gain, y[:, None] - mixture.mean)
    variance = (clean - gain @ clean).diagonal(dim1=1, dim2=2)  # (K, D)
    mean = torch.einsum("nk,nki->ni", posterior, estimate)
    square = torch.einsum("nk,nki->ni", posterior, estimate.square() + variance)
    found = mixture.moments(y)
    torch.testing.assert_close(found[0], mean)
    torch.testing.assert_close(found[1], square - mean.square())


def test_moments_are_calibrated_on_their_own_data():
    mixture = random_mixture(ranks=(1, 2, 3), distance=2.0)
    y, x, _ = draw(mixture, 4000, torch.Generator().manual_seed(0))
    mean, variance = mixture.moments(y)
    error = (mean - x).square().mean()
    assert error < 0.7 * (y - x).square().mean()
    torch.testing.assert_close(variance.mean(), error, rtol=0.05, atol=0)


def test_small_shares_do_not_count_and_the_others_add_up_to_one():
    mixture, y = random_mixture(distance=0.7), randn(50, 6, seed=3)
    exact = dense_log_joint(mixture, y).softmax(1)
    found = torch.zeros_like(exact)
    for k, index, share in mixture.shares(y):
        found[index, k] = share
    torch.testing.assert_close(found.sum(1), torch.ones(50, dtype=torch.float64))
    assert ((found == 0) == (exact <= module.SHARE_MIN)).all()
    torch.testing.assert_close(found, exact, rtol=0, atol=0.04)


def test_many_equal_groups_share_a_patch():
    """Each of them has less than the least share."""
    n_groups = 2 * round(1 / module.SHARE_MIN)
    empty = [torch.zeros(4, 0, dtype=torch.float64)] * n_groups, [torch.zeros(0, dtype=torch.float64)] * n_groups
    equal = Mixture(torch.zeros(n_groups, dtype=torch.float64), torch.ones(n_groups, 4).double(), *empty, SIGMA2)
    mean, variance = equal.moments(randn(5, 4))
    torch.testing.assert_close(mean, torch.ones(5, 4, dtype=torch.float64))
    torch.testing.assert_close(variance, torch.zeros(5, 4, dtype=torch.float64), atol=1e-12, rtol=0)
