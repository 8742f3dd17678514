"""Missing pixels by conditional Gaussians: against textbook formulas with index sets, and on data of known origin."""

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import MultivariateNormal

from tvae.data.picture import drop_pixels
from tvae.restoration.non_local import completion
from tvae.restoration.non_local.completion import (
    Groups,
    Moments,
    best_group,
    complete_patches,
    complete_pixels,
    conditional,
    evidence,
)

NOISE = 0.2


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_groups(n_groups=3, n_values=6, distance=1.0):
    root = randn(n_groups, n_values, n_values)
    return Groups(
        torch.arange(20.0, 20.0 + n_groups, dtype=torch.float64),
        distance * randn(n_groups, n_values, seed=5),
        root @ root.transpose(1, 2) / n_values + 0.05 * torch.eye(n_values, dtype=torch.float64),
    )


def random_patches(n_patches=12, n_values=6):
    """Values and which of them are observed: in the first patch all, in the second none."""
    observed = torch.rand(n_patches, n_values, generator=torch.Generator().manual_seed(3)) < 0.6
    observed[0], observed[1] = True, False
    return randn(n_patches, n_values, seed=4) * observed, observed


def textbook(y, observed, mean, covariance, s):
    """Mean and covariance of one whole patch given y[o], with index sets."""
    o = observed.nonzero()[:, 0]
    inverse = torch.linalg.inv(covariance[o][:, o] + s * torch.eye(len(o), dtype=y.dtype))
    gain = covariance[:, o] @ inverse
    return mean + gain @ (y[o] - mean[o]), covariance - gain @ covariance[o]


def test_conditional_is_the_textbook_formula():
    groups, (y, observed) = random_groups(), random_patches()
    before = y.clone()
    mean, covariance = conditional(y, observed, groups.mean[1], groups.covariance[1], NOISE)
    for n in range(len(y)):
        wanted = textbook(y[n], observed[n], groups.mean[1], groups.covariance[1], NOISE)
        torch.testing.assert_close(mean[n], wanted[0])
        torch.testing.assert_close(covariance[n], wanted[1])
    torch.testing.assert_close(mean[1], groups.mean[1])
    torch.testing.assert_close(covariance[1], groups.covariance[1])
    assert torch.equal(y, before)


def test_evidence_is_the_density_of_the_observed_part():
    groups, (y, observed) = random_groups(), random_patches()
    which = torch.arange(len(y)) % 3
    found = evidence(y, observed, groups, which, NOISE)
    for n, k in enumerate(which):
        o = observed[n].nonzero()[:, 0]
        wanted = torch.log(groups.size[k])
        if len(o):
            noisy = groups.covariance[k][o][:, o] + NOISE * torch.eye(len(o), dtype=y.dtype)
            wanted = wanted + MultivariateNormal(groups.mean[k, o], noisy).log_prob(y[n, o])
            wanted = wanted + 0.5 * len(o) * math.log(2 * math.pi)  # which all groups share
        torch.testing.assert_close(found[n], wanted)


def test_candidates_are_the_most_likely_groups_of_whole_patches():
    groups, x = random_groups(n_groups=7), randn(40, 6, seed=8)
    noisy = groups.covariance + NOISE * torch.eye(6, dtype=torch.float64)
    log_joint = groups.size.log() + MultivariateNormal(groups.mean, noisy).log_prob(x[:, None])
    assert torch.equal(groups.candidates(x, NOISE), log_joint.topk(3, dim=1).indices)
    assert random_groups(n_groups=2).candidates(x, NOISE).shape == (40, 2)


@pytest.mark.parametrize("n_values_at_once", [1, 1 << 22])
def test_best_group_has_the_highest_evidence_of_the_candidates(n_values_at_once, monkeypatch):
    monkeypatch.setattr(completion, "CHUNK_VALUES", n_values_at_once)
    groups, (y, observed) = random_groups(n_groups=5), random_patches()
    x = randn(len(y), 6, seed=9)
    found = best_group(x, y, observed, groups, NOISE)
    for n, candidates in enumerate(groups.candidates(x, NOISE)):
        scores = [evidence(y[n : n + 1], observed[n : n + 1], groups, k[None], NOISE).item() for k in candidates]
        assert found[n] == candidates[scores.index(max(scores))]


@pytest.mark.parametrize("n_values_at_once", [1, 1 << 22])
def test_patches_are_completed_in_their_groups_and_moments_added_up(n_values_at_once, monkeypatch):
    monkeypatch.setattr(completion, "CHUNK_VALUES", n_values_at_once)
    groups, (y, observed) = random_groups(n_groups=4), random_patches()
    group = torch.arange(len(y)) % 3  # the last group has none
    mean, variance, moments = complete_patches(y, observed, groups, group, NOISE)
    second = torch.zeros(4, 6, 6, dtype=torch.float64)
    for n, k in enumerate(group):
        wanted = textbook(y[n], observed[n], groups.mean[k], groups.covariance[k], NOISE)
        torch.testing.assert_close(mean[n], wanted[0])
        torch.testing.assert_close(variance[n], wanted[1].diagonal())
        second[k] += torch.outer(wanted[0], wanted[0]) + wanted[1]
    torch.testing.assert_close(moments.second, second)
    torch.testing.assert_close(moments.first[1], mean[group == 1].sum(0))
    assert moments.size.tolist() == [4, 4, 4, 0]


def test_groups_of_moments_are_sample_covariances_with_a_ridge():
    x, y = randn(40, 3) + 7, randn(30, 3, seed=1)
    moments = Moments(3, 3)
    moments.add(0, x, None)
    moments.add(1, y[:3], None)
    moments.add(2, y, 30 * torch.eye(3, dtype=torch.float64))
    groups = moments.groups()
    assert groups.size.tolist() == [40, 30], "a group of three is left out"
    wanted = torch.stack([torch.cov(x.T, correction=0), torch.cov(y.T, correction=0) + torch.eye(3)])
    ridge = completion.RIDGE * wanted.diagonal(dim1=1, dim2=2).mean() * torch.eye(3)
    torch.testing.assert_close(groups.mean, torch.stack([x.mean(0), y.mean(0)]).float())
    torch.testing.assert_close(groups.covariance, (wanted + ridge).float())


def test_the_largest_group_is_kept_however_small():
    moments = Moments(2, 3)
    moments.add(1, randn(2, 3), None)
    assert moments.groups().size.tolist() == [2]


def test_em_does_not_lower_the_likelihood_of_what_is_observed(monkeypatch):
    """One group, where EM is exact, on data of which half is missing."""
    monkeypatch.setattr(completion, "RIDGE", 0.0)
    truth = random_groups(n_groups=1)
    x = truth.mean + randn(3000, 6, seed=1) @ torch.linalg.cholesky(truth.covariance[0]).T
    observed = torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    y = ((x + NOISE**0.5 * randn(*x.shape, seed=3)) * observed).float()
    only = torch.zeros(len(y), dtype=torch.int64)
    groups = Groups(torch.ones(1), torch.zeros(1, 6), torch.eye(6)[None])
    likelihood = []
    for _ in range(40):
        likelihood.append(evidence(y.double(), observed, replace(groups, size=torch.ones(1)), only, NOISE).mean())
        moments = complete_patches(y, observed, groups, only, NOISE)[2]
        groups = moments.groups()
    steps = torch.stack(likelihood).diff()
    assert (steps > -1e-5).all()
    assert steps.sum() > 0.1
    torch.testing.assert_close(groups.covariance.double(), truth.covariance, atol=0.12, rtol=0.1)
    torch.testing.assert_close(groups.mean.double(), truth.mean, atol=0.08, rtol=0)


def low_rank_picture(height=40, width=40):
    """Waves that repeat: patches lie in few dimensions."""
    rows, columns = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    return (torch.sin(rows / 3) + 0.7 * torch.cos(columns / 2 + rows / 5))[..., None]


def incomplete(picture, share):
    missing = torch.from_numpy(drop_pixels(tuple(picture.shape), share, seed=0))[..., None].expand_as(picture)
    return torch.where(missing, 0, picture), ~missing


@pytest.mark.parametrize(("n_channels", "patch_size"), [(1, 6), (3, 4)])
def test_missing_pixels_of_a_low_rank_picture_are_recovered(n_channels, patch_size):
    """From a first estimate that is far off."""
    picture = low_rank_picture() * torch.linspace(1, 2, n_channels)
    y, known = incomplete(picture, 0.5)
    pilot = torch.where(known, picture, picture + 0.5 * randn(*picture.shape).float())
    before = y.clone(), known.clone(), pilot.clone()
    rng = torch.Generator().manual_seed(0)
    mean, variance = complete_pixels(y, known, pilot, 1e-4, patch_size, 3, 8, rng)
    assert mean.shape == variance.shape == picture.shape

    def error(found):
        return (found - picture)[~known].square().mean().sqrt()

    assert error(mean) < 0.05 * error(pilot)
    assert error(mean) < 2 * variance[~known].mean().sqrt()
    assert variance[~known].mean() > 2 * variance[known].mean()
    for value, copy in zip((y, known, pilot), before, strict=True):
        assert torch.equal(value, copy)


def test_the_rng_decides():
    picture = low_rank_picture(20, 22)
    y, known = incomplete(picture, 0.4)
    first, again, other = (
        complete_pixels(y, known, y, 1e-3, 5, 4, 2, torch.Generator().manual_seed(seed))[0] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_noise_on_what_is_known_is_taken_away():
    picture = low_rank_picture()
    noisy = picture + 0.3 * randn(40, 40, 1).float()
    y, known = incomplete(noisy, 0.3)
    pilot = picture + 0.2 * randn(40, 40, 1, seed=1).float()
    mean, _ = complete_pixels(y, known, pilot, 0.09, 6, 3, 4, torch.Generator().manual_seed(0))
    assert (mean - picture)[known].square().mean() < 0.3 * 0.09


@pytest.mark.parametrize("shape", [(8, 8, 1), (9, 30, 1), (3, 3, 3)])
def test_few_patches_and_constant_ones(shape):
    flat = torch.full(shape, 0.4)
    y, known = incomplete(flat, 0.5)
    mean, variance = complete_pixels(y, known, flat, 1e-5, min(8, *shape[:2]), 2, 2, torch.Generator().manual_seed(0))
    torch.testing.assert_close(mean, flat.double(), atol=1e-5, rtol=0)
    assert torch.isfinite(variance).all()
