"""Mixtures of Gaussians on noisy patches: against dense formulas, simulation, and data whose mixture is known."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from tvae.restore import mixture as module
from tvae.restore.mixture import Mixture, Sums, cluster, fit_mixture, nearest_centre, spikes, sums_of_groups

SIGMA2 = 0.3


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_mixture(n_values=6, ranks=(0, 1, 3, 6), distance=1.0):
    """In double precision, with groups of different rank."""
    basis = [torch.linalg.qr(randn(n_values, n_values, seed=k))[0][:, :rank] for k, rank in enumerate(ranks)]
    spread = [0.2 + randn(rank, seed=k + 50).square() for k, rank in enumerate(ranks)]
    weight = torch.arange(1.0, len(ranks) + 1, dtype=torch.float64)
    return Mixture(
        (weight / weight.sum()).log(), distance * randn(len(ranks), n_values, seed=99), basis, spread, SIGMA2
    )


def covariances(mixture):
    """(K, D, D): C_k as full matrices."""
    return torch.stack(
        [(basis * spread) @ basis.T for basis, spread in zip(mixture.basis, mixture.spread, strict=True)]
    )


def noisy_covariances(mixture):
    return covariances(mixture) + mixture.sigma2 * torch.eye(mixture.mean.shape[1], dtype=torch.float64)


def dense_log_joint(mixture, y):
    """(N, K)"""
    normal = MultivariateNormal(mixture.mean, noisy_covariances(mixture))
    return mixture.log_weight + normal.log_prob(y[:, None])


def draw(mixture, n_points, rng):
    """Noisy points, points without noise, and their groups."""
    group = torch.multinomial(mixture.log_weight.exp(), n_points, replacement=True, generator=rng)
    x = torch.empty(n_points, mixture.mean.shape[1], dtype=torch.float64)
    for k, (basis, spread) in enumerate(zip(mixture.basis, mixture.spread, strict=True)):
        own = (group == k).nonzero()[:, 0]
        draws = torch.randn(len(own), len(spread), generator=rng, dtype=torch.float64)
        x[own] = mixture.mean[k] + (draws * spread.sqrt()) @ basis.T
    return x + mixture.sigma2**0.5 * torch.randn(x.shape, generator=rng, dtype=torch.float64), x, group


@pytest.mark.parametrize("ranks", [(0, 1, 3, 6), (2,), (0, 0)])
def test_log_joint_is_the_density_up_to_what_all_groups_share(ranks):
    mixture, y = random_mixture(ranks=ranks), 3 * randn(40, 6, seed=7)
    before = y.clone()
    found, wanted = mixture.log_joint(y), dense_log_joint(mixture, y)
    torch.testing.assert_close(found - found[:, :1], wanted - wanted[:, :1])
    assert torch.equal(y, before)


def test_log_joint_in_single_precision_far_from_zero():
    """As of a picture that is bright everywhere."""
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


@pytest.mark.parametrize("ratio", [0.01, 0.3, 2.0])
def test_spikes_invert_the_formula(ratio):
    """v = (l + s) (1 + g s / l) for l > sqrt(g) s, and nothing for noise alone."""
    g, s = torch.tensor(ratio, dtype=torch.float64), 1.7
    least = g.sqrt() * s
    spread = least * torch.tensor([1.01, 1.5, 3.0, 100.0], dtype=torch.float64)
    values = (spread + s) * (1 + g * s / spread)
    torch.testing.assert_close(spikes(values, s, g), spread)
    edge = s * (1 + g.sqrt()) ** 2
    assert not spikes(edge * torch.tensor([-0.1, 0.0, 0.3, 0.999], dtype=torch.float64), s, g).any()


@pytest.mark.parametrize(("n_points", "spread"), [(400, 4.0), (100, 6.0), (60, 12.0)])
def test_spikes_of_a_simulated_covariance(n_points, spread):
    """One spike in 40 dimensions: recovered within 4 standard errors, where the raw eigenvalue is far off."""
    n_values, n_repeats, s = 40, 300, 1.3
    rng = torch.Generator().manual_seed(n_points)
    found, raw = [], []
    for _ in range(n_repeats):
        y = s**0.5 * torch.randn(n_points, n_values, generator=rng, dtype=torch.float64)
        y[:, 0] += spread**0.5 * torch.randn(n_points, generator=rng, dtype=torch.float64)
        values = torch.linalg.eigvalsh(y.T @ y / n_points)
        found.append(spikes(values, s, torch.tensor(n_values / n_points, dtype=torch.float64)))
        raw.append(values[-1] - s)
    largest = torch.stack(found)[:, -1]
    error = largest.std() / n_repeats**0.5
    assert abs(largest.mean() - spread) < 4 * error
    assert torch.stack(raw).mean() - spread > 4 * error
    others = torch.stack(found)[:, :-1]
    assert (others > 0).double().mean() < 0.02, "below the edge of noise there are none"


def log_likelihood(mixture, y):
    return dense_log_joint(mixture, y).logsumexp(1).mean()


def test_em_does_not_lower_the_likelihood(monkeypatch):
    """With so many points that eigenvalues are hardly shrunk."""
    monkeypatch.setattr(module, "SHARE_MIN", 0.0)
    truth = random_mixture(n_values=3, ranks=(1, 2, 2), distance=1.5)
    y, _, _ = draw(truth, 20_000, torch.Generator().manual_seed(1))
    sums = sums_of_groups(y, cluster(y, 3, torch.Generator().manual_seed(2)), 3)
    found = [log_likelihood(fit_mixture(y, sums, SIGMA2, n_rounds), y) for n_rounds in range(6)]
    steps = torch.stack(found).diff()
    assert (steps > -1e-4).all()
    assert steps.sum() > 0.01


def test_a_known_mixture_is_recovered():
    truth = random_mixture(n_values=5, ranks=(0, 1, 3), distance=4.0)
    y, x, _ = draw(truth, 30_000, torch.Generator().manual_seed(1))
    sums = sums_of_groups(y, nearest_centre(y, truth.mean), 3)
    found = fit_mixture(y, sums, SIGMA2, 5)
    torch.testing.assert_close(found.log_weight.exp(), truth.log_weight.exp(), atol=0.02, rtol=0)
    torch.testing.assert_close(found.mean, truth.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(covariances(found), covariances(truth), atol=0.1, rtol=0.1)
    best = (truth.moments(y)[0] - x).square().mean()
    assert (found.moments(y)[0] - x).square().mean() < 1.01 * best


def test_chunks_make_no_difference(monkeypatch):
    y, _, group = draw(random_mixture(), 500, torch.Generator().manual_seed(1))
    sums = sums_of_groups(y, group, 4)
    whole = fit_mixture(y, sums, SIGMA2, 2)
    monkeypatch.setattr(module, "CHUNK", 7)
    parts = fit_mixture(y, sums, SIGMA2, 2)
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(covariances(parts), covariances(whole))


def test_sums_are_weighted_moments():
    y, share = randn(50, 3), torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sums = Sums(2, y)
    sums.add(1, y[:20], share[:20])
    sums.add(1, y[20:], share[20:])
    mean, covariance = sums._moments(torch.tensor([False, True]))
    torch.testing.assert_close(mean[0], share @ y / share.sum())
    torch.testing.assert_close(covariance[0], torch.cov(y.T, aweights=share, correction=0))
    assert sums.size[0] == 0


def test_sums_keep_the_variance_of_bright_patches():
    """In single precision the difference of the squares would be rounding."""
    y = (200 + 0.01 * randn(1000, 4)).float()
    sums = sums_of_groups(y, torch.zeros(1000, dtype=torch.int64), 1)
    _, covariance = sums._moments(torch.tensor([True]))
    torch.testing.assert_close(covariance[0], torch.cov(y.double().T, correction=0), rtol=1e-3, atol=1e-8)


def test_groups_that_are_too_small_are_left_out_but_never_all():
    y = randn(100, 3)
    group = torch.cat([torch.full((95,), 2), torch.full((5,), 0)])
    assert len(sums_of_groups(y, group, 4).mixture(SIGMA2, y.dtype).mean) == 1
    few = sums_of_groups(y[:7], torch.tensor([0, 0, 0, 0, 1, 1, 2]), 3).mixture(SIGMA2, torch.float32)
    torch.testing.assert_close(few.mean, y[:4].mean(0, keepdim=True).float())
    assert few.log_weight.dtype == torch.float32
    one = sums_of_groups(y[:1], torch.tensor([0]), 1).mixture(SIGMA2, y.dtype)
    torch.testing.assert_close(one.moments(y[:1])[0], y[:1])


@pytest.mark.parametrize("guess", [1.0, 1.2, 1.5])
@pytest.mark.parametrize("rank", [0, 2, 8])
def test_the_noise_is_told_by_the_flattest_groups(guess, rank):
    """Within 2 % of sigma, from guesses that are too high, beside groups whose signal fills all dimensions."""
    n_values, n_groups, n_points, sigma = 25, 12, 4000, 3.0
    rng = torch.Generator().manual_seed(rank)
    y = sigma * torch.randn(n_groups, n_points, n_values, generator=rng, dtype=torch.float64)
    for k in range(n_groups):
        n_signal = rank if k < 8 else n_values
        signal = torch.randn(n_points, n_signal, generator=rng, dtype=torch.float64)
        y[k] += 4 * sigma * signal @ torch.randn(n_signal, n_values, generator=rng, dtype=torch.float64)
    sums = sums_of_groups(y.flatten(0, 1), torch.arange(n_groups).repeat_interleave(n_points), n_groups)
    assert sums.noise_variance((guess * sigma) ** 2) ** 0.5 == pytest.approx(sigma, rel=0.02)


def test_the_noise_of_small_groups_is_not_too_low(monkeypatch):
    """With r of D directions taken out and a mean, n patches have n - r - 1 degrees of freedom."""
    n_values, n_groups, rank = 20, 200, 4
    rng = torch.Generator().manual_seed(0)
    y = torch.randn(n_groups, 3 * n_values, n_values, generator=rng, dtype=torch.float64)
    y[..., :rank] += 20 * torch.randn(n_groups, 3 * n_values, rank, generator=rng, dtype=torch.float64)
    sums = sums_of_groups(y.flatten(0, 1), torch.arange(n_groups).repeat_interleave(3 * n_values), n_groups)
    monkeypatch.setattr(module, "FLATTEST", 0.5)
    assert sums.noise_variance(1.5) == pytest.approx(1, rel=0.02)


def test_the_noise_stays_as_guessed_where_nothing_tells_it():
    small = sums_of_groups(randn(50, 20), torch.zeros(50, dtype=torch.int64), 1)
    assert small.noise_variance(7.0) == 7.0
    flat = sums_of_groups(torch.full((500, 4), 0.3), torch.zeros(500, dtype=torch.int64), 1)
    assert flat.noise_variance(7.0) == 7.0


def test_groups_without_any_noise_do_not_tell_it():
    y = torch.cat([torch.zeros(2000, 4, dtype=torch.float64), 3 * randn(2000, 4)])
    sums = sums_of_groups(y, torch.arange(40).repeat_interleave(100), 40)
    assert sums.noise_variance(9.0) ** 0.5 == pytest.approx(3, rel=0.15)


def test_clusters_are_decided_by_the_rng_and_put_every_row_to_its_centre(monkeypatch):
    monkeypatch.setattr(module, "N_CLUSTERED", 150)
    centres = 20 * randn(4, 3, seed=8)
    x = (centres[:, None] + randn(4, 100, 3)).flatten(0, 1)
    before = x.clone()
    first, again, other = (cluster(x, 4, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(x, before)
    assert torch.equal(nearest_centre(x, centres), torch.cdist(x, centres).argmin(1))
    assert all(len(own.unique()) == 1 for own in first.view(4, 100)), "a cluster is never torn apart here"


def test_clusters_of_equal_rows_and_of_few():
    assert cluster(torch.ones(50, 3), 5, torch.Generator().manual_seed(0)).unique().numel() == 1
    assert cluster(randn(2, 3), 5, torch.Generator().manual_seed(0)).max() < 5
