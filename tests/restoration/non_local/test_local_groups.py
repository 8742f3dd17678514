"""Channels of local groups: the opponent space, what groups are found on, a gain and a noise level for each."""

import pytest
import torch

from tvae.restoration.non_local.block_matching import similar_patches
from tvae.restoration.non_local.local_groups import channels_for, refine_locally
from tvae.restoration.non_local.nl_ridge import refine

SEARCH = 4, 2, 5, 9  # patch size, step, radius, similar patches


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alone(y, pilot, groups, sigma2):
    """(2, H, W): one channel in given groups."""
    return refine(y[..., None], pilot[..., None], groups, SEARCH[0], torch.tensor([sigma2]))[..., 0]


def test_colours_are_turned_into_opponents_and_back():
    """Channel by channel, each refined alone in the groups of the luminance."""
    noisy, pilot = 0.3 * randn(14, 12, 3), 0.3 * randn(14, 12, 3, seed=1)
    sigma2 = torch.tensor([0.01, 0.02, 0.06], dtype=torch.float64)
    r, g, b = sigma2.tolist()
    groups = [*similar_patches(pilot.sum(-1, keepdim=True), *SEARCH)]

    def opponents(x):
        red, green, blue = x.unbind(-1)
        return (red + green + blue) / 3**0.5, (red - blue) / 2**0.5, (red - 2 * green + blue) / 6**0.5

    levels = (r + g + b) / 3, (r + b) / 2, (r + 4 * g + b) / 6
    each = zip(opponents(noisy), opponents(pilot), levels, strict=True)
    (light, v_light), (rb, v_rb), (rgb, v_rgb) = (alone(y, first, groups, level) for y, first, level in each)
    mean, variance = refine_locally(noisy, pilot, *SEARCH, sigma2, range(14))
    torch.testing.assert_close(mean[..., 0], light / 3**0.5 + rb / 2**0.5 + rgb / 6**0.5)
    torch.testing.assert_close(mean[..., 1], light / 3**0.5 - 2 * rgb / 6**0.5)
    torch.testing.assert_close(mean[..., 2], light / 3**0.5 - rb / 2**0.5 + rgb / 6**0.5)
    torch.testing.assert_close(variance[..., 0], v_light / 3 + v_rb / 2 + v_rgb / 6)
    torch.testing.assert_close(variance[..., 1], v_light / 3 + 4 * v_rgb / 6)


@pytest.mark.parametrize("n_channels", [1, 2, 4])
def test_other_channels_are_refined_along_their_principal_axes(n_channels):
    """Two pairs of channels that differ in scale, turned: the axes are known."""
    turn = torch.linalg.qr(randn(n_channels, n_channels, seed=2)).Q
    scale = torch.tensor([0.5, 0.3, 0.2, 0.1], dtype=torch.float64)[:n_channels]
    apart, before = randn(14, 12, n_channels) * scale, randn(14, 12, n_channels, seed=1).flatten(0, 1)
    before = torch.linalg.qr(before - before.mean(0)).Q * 10 * scale  # exactly uncorrelated
    noisy, pilot = apart @ turn, before.view(14, 12, n_channels) @ turn
    groups = [*similar_patches(pilot.sum(-1, keepdim=True), *SEARCH)]
    found = refine_locally(noisy, pilot, *SEARCH, 0.02, range(14))
    each = [alone(apart[..., i], before.view(14, 12, -1)[..., i], groups, 0.02) for i in range(n_channels)]
    mean, variance = torch.stack(each, -1)
    torch.testing.assert_close(found[0], mean @ turn)
    torch.testing.assert_close(found[1], variance @ turn.square())


@pytest.mark.parametrize("n_channels", range(1, 6))
def test_channels_are_orthonormal(n_channels):
    mix = channels_for(randn(9, 7, n_channels))
    torch.testing.assert_close(mix @ mix.T, torch.eye(n_channels, dtype=torch.float64))


def test_equal_channels_are_the_grey_picture():
    """Chroma is zero in the picture and in its pilot, and luminance is sqrt(3) times the grey one."""
    noisy, pilot = 0.3 * randn(14, 12, 1), 0.3 * randn(14, 12, 1, seed=1)
    grey = refine_locally(noisy, pilot, *SEARCH, 0.02, range(14))
    colour = refine_locally(noisy.expand(-1, -1, 3), pilot.expand(-1, -1, 3), *SEARCH, 0.06, range(14))
    torch.testing.assert_close(colour[0], grey[0].expand(-1, -1, 3))
