"""Gaussian residuals of local groups against the dense formula of each group, and a loop that averages them."""

import pytest
import torch

from tvae.data.patches import extract
from tvae.restoration.non_local import nl_ridge
from tvae.restoration.non_local.block_matching import similar_patches
from tvae.restoration.non_local.nl_ridge import WEIGHT_FLOOR, refine


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pictures(height=9, width=8, n_channels=1):
    """A first estimate, and a noisy picture."""
    first = 50 + 10 * randn(height, width, n_channels)
    return first + 3 * randn(height, width, n_channels, seed=1), first


def dense(y, pilot, sigma2):
    """(n, D), (n,): mean and variance of a group's patches, by the inverse of the whole matrix."""
    centre = pilot.mean()
    covariance = (pilot - centre) @ (pilot - centre).T / y.shape[1]
    inverse = torch.linalg.inv(covariance + sigma2 * torch.eye(len(y), dtype=y.dtype))
    return centre + covariance @ inverse @ (y - centre), (covariance - covariance @ inverse @ covariance).diagonal()


def by_a_loop(noisy, first, groups, patch_size, sigma2):
    """Mean and variance of every value: a mixture of all estimates of it, by 1 / (variance / sigma2 + floor)."""
    n_columns = noisy.shape[1] - patch_size + 1
    of_noisy, of_first = (extract(each, patch_size, 1) for each in (noisy, first))
    total, square, weight = (torch.zeros_like(noisy) for _ in range(3))
    for group in groups.tolist():
        for number, mean, variance in zip(group, *dense(of_noisy[group], of_first[group], sigma2), strict=True):
            top, left = divmod(number, n_columns)
            window = slice(top, top + patch_size), slice(left, left + patch_size)
            certainty = 1 / (variance / sigma2 + WEIGHT_FLOOR)
            patch = mean.view(patch_size, patch_size, 1)
            total[window] += certainty * patch
            square[window] += certainty * (patch**2 + variance)
            weight[window] += certainty
    return total / weight, square / weight - (total / weight) ** 2


def test_one_group_is_the_dense_formula():
    """Patches as large as the picture, three times: one group and one estimate of every pixel."""
    noisy, first = pictures(4, 4)
    mean, variance = refine(noisy, first, [torch.zeros(1, 3, dtype=torch.int64)], 4, torch.tensor([9.0]))
    patch, pilot = noisy.flatten().expand(3, -1), first.flatten().expand(3, -1)
    wanted, deviation = dense(patch, pilot, 9.0)
    torch.testing.assert_close(mean.flatten(), wanted[0])
    torch.testing.assert_close(variance.flatten(), deviation[:1].expand(16))


def test_the_variance_is_sigma2_times_the_gain():
    """Var = sigma2 K (K + sigma2 I)^-1 is the same as K - K (K + sigma2 I)^-1 K."""
    noisy, first = pictures()
    y, pilot = (extract(each, 3, 1)[None, :7] for each in (noisy, first))
    mean, gain = nl_ridge._posterior(y, pilot, 5.0)
    wanted = dense(y[0], pilot[0], 5.0)
    torch.testing.assert_close(mean[0], wanted[0])
    torch.testing.assert_close(5.0 * gain[0], wanted[1])


@pytest.mark.parametrize("n_channels", [1, 3])
@pytest.mark.parametrize("n_values_at_once", [1, 1 << 22])
def test_refined_pictures_equal_a_loop(n_channels, n_values_at_once, monkeypatch):
    monkeypatch.setattr(nl_ridge, "CHUNK_VALUES", n_values_at_once)
    noisy, first = pictures(n_channels=n_channels)
    before = noisy.clone(), first.clone()
    groups = torch.cat([*similar_patches(first, 3, 2, 3, 6)])
    sigma2 = 9.0 + torch.arange(n_channels)
    found = refine(noisy, first, [groups], 3, sigma2)
    for i in range(n_channels):
        one = slice(i, i + 1)
        wanted = by_a_loop(noisy[..., one], first[..., one], groups, 3, float(sigma2[i]))
        for value, expected in zip(found[..., one], wanted, strict=True):
            torch.testing.assert_close(value, expected)
    assert torch.equal(noisy, before[0])
    assert torch.equal(first, before[1])


def test_much_noise_gives_the_centre_and_none_the_picture():
    noisy, first = pictures()
    group = torch.tensor([[0, 9, 23]])
    y, pilot = (extract(each, 3, 1)[group] for each in (noisy, first))
    mean, gain = nl_ridge._posterior(y, pilot, 1e12)
    torch.testing.assert_close(mean, pilot.mean().expand_as(mean), rtol=1e-6, atol=0)
    assert gain.max() < 1e-6
    mean, gain = nl_ridge._posterior(y, pilot, 1e-9)
    torch.testing.assert_close(mean, y)
    torch.testing.assert_close(gain, torch.ones_like(gain))


def test_equal_patches_are_averaged():
    """Noise is averaged out if all patches of the first estimate are the same."""
    clean = 20 * randn(5, 5, 1).repeat(4, 4, 1)
    noisy = clean + 4 * randn(20, 20, 1, seed=1)
    groups = similar_patches(clean, 5, 5, 10, 9)
    mean, variance = refine(noisy, clean, groups, 5, torch.tensor([16.0]))
    assert 16 / 16 * 0.8 < (mean - clean).square().mean() < 16 / 9, "over 9 patches a group, 16 in all"
    assert variance.mean() == pytest.approx(16 / 9, rel=0.3)


@pytest.mark.parametrize("sigma", [1e-4, 1e-2])
def test_single_precision_with_hardly_any_noise(sigma):
    """The groups' covariances are all but singular."""
    rows, columns = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    clean = (torch.sin(rows / 4) + torch.cos(columns / 3))[..., None] / 4
    noisy = clean + sigma * randn(24, 24, 1).float()
    mean, variance = refine(noisy, noisy, similar_patches(noisy, 8, 3, 15, 90), 8, torch.tensor([sigma**2]))
    assert torch.isfinite(variance).all()
    assert (mean - clean).square().mean().sqrt() < 1.05 * sigma


def test_a_constant_picture():
    flat = torch.full((9, 9, 1), 7.0)
    mean, variance = refine(flat, flat, similar_patches(flat, 4, 3, 2, 5), 4, torch.tensor([1e-6]))
    torch.testing.assert_close(mean, flat.double())
    assert variance.max() < 1e-5
