"""Mixtures of Gaussians fitted to noisy patches: against simulation, and data whose mixture is known."""

import pytest
import torch
from mixture_samples import SIGMA2, covariances, dense_log_joint, draw, randn, random_mixture

from tvae.restoration.non_local import mixture as module
from tvae.restoration.non_local.mixture import Sums, cluster, fit_mixture, nearest_centre, spikes, sums_of_groups


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
