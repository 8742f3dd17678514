"""Filling from local groups against the conditional Gaussian with index sets, and a loop that averages it."""

import pytest
import torch

from tvae.data.patches import extract
from tvae.restoration.non_local import local_filling
from tvae.restoration.non_local.block_matching import similar_patches
from tvae.restoration.non_local.local_filling import SLACK, fill_locally

NOISE = 0.3


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pictures(height=8, width=7, n_channels=1):
    """Values of which some are known, which those are, and a first estimate."""
    first = 5 + randn(height, width, n_channels)
    known = torch.rand(first.shape, generator=torch.Generator().manual_seed(2)) < 0.6
    return (first + 0.3 * randn(*first.shape, seed=1)) * known, known, first


def textbook(y, observed, pilot, s):
    """(n, D) each: mean and variance of one group's patches, pixel by pixel, with index sets."""
    centre = pilot.mean()
    covariance = (pilot - centre) @ (pilot - centre).T / pilot.shape[1]
    mean, variance = torch.empty_like(y), torch.empty_like(y)
    for j in range(y.shape[1]):
        o = observed[:, j].nonzero()[:, 0]
        gain = covariance[:, o] @ torch.linalg.inv(covariance[o][:, o] + s * torch.eye(len(o), dtype=y.dtype))
        mean[:, j] = centre + gain @ (y[o, j] - centre)
        variance[:, j] = (covariance - gain @ covariance[o]).diagonal()
    return mean, variance


def by_a_loop(y, known, first, groups, patch_size, s):
    """Mean and variance of every value: a mixture of all estimates of it, by 1 / (variance + s)."""
    n_columns = y.shape[1] - patch_size + 1
    patches = [extract(each, patch_size, 1) for each in (y, known, first)]
    total, square, weight = (torch.zeros_like(y) for _ in range(3))
    for group in torch.cat(groups).tolist():
        for number, mean, variance in zip(group, *textbook(*(each[group] for each in patches), s), strict=True):
            top, left = divmod(number, n_columns)
            window = slice(top, top + patch_size), slice(left, left + patch_size)
            mean, variance = (each.view(patch_size, patch_size, -1) for each in (mean, variance))
            total[window] += mean / (variance + s)
            square[window] += (mean**2 + variance) / (variance + s)
            weight[window] += 1 / (variance + s)
    return total / weight, square / weight - (total / weight) ** 2


@pytest.mark.parametrize("n_channels", [1, 3])
@pytest.mark.parametrize("n_values_at_once", [1, 1 << 22])
def test_filled_pictures_equal_a_loop(n_channels, n_values_at_once, monkeypatch):
    monkeypatch.setattr(local_filling, "CHUNK_VALUES", n_values_at_once)
    y, known, first = pictures(n_channels=n_channels)
    known[:3, :3] = False  # a pixel that some group knows nothing of
    before = y.clone(), known.clone(), first.clone()
    groups = list(similar_patches(first, 3, 2, 3, 5))
    found = fill_locally(y, known, first, groups, 3, NOISE)
    for value, expected in zip(found, by_a_loop(y, known, first, groups, 3, NOISE), strict=True):
        torch.testing.assert_close(value, expected)
    for value, copy in zip((y, known, first), before, strict=True):
        assert torch.equal(value, copy)


def test_values_that_are_not_known_do_not_count():
    y, known, first = pictures()
    groups = list(similar_patches(first, 3, 2, 3, 5))
    mean, _ = fill_locally(y, known, first, groups, 3, NOISE)
    other, _ = fill_locally(torch.where(known, y, 99.0), known, first, groups, 3, NOISE)
    assert torch.equal(mean, other)


def test_values_known_for_certain_are_given_some_slack():
    y, known, first = pictures()
    groups = list(similar_patches(first, 3, 2, 3, 5))
    exact, slack = (fill_locally(y, known, first, groups, 3, s)[0] for s in (0.0, SLACK**2))
    assert torch.equal(exact, slack)


def test_a_repeated_picture_is_filled_from_its_repetitions():
    """A tile of 6x6 over and over: every pixel is known in one of them, and the first estimate is a rough one."""
    tile = randn(6, 6)
    picture = tile.repeat(6, 6)[..., None]
    known = torch.rand(picture.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    first = torch.where(known, picture, picture + 0.5 * randn(*picture.shape, seed=1))
    groups = list(similar_patches(first, 5, 2, 15, 20))
    mean, variance = fill_locally(picture * known, known, first, groups, 5, 0.0)
    error = (mean - picture)[~known].square().mean().sqrt()
    assert error < 0.3 * (first - picture)[~known].square().mean().sqrt()
    assert variance[~known].mean() > variance[known].mean()
