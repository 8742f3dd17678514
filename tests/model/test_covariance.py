"""Correlated noise inside the model, against Gaussians computed directly."""

import numpy as np
import pytest
import torch
from model.test_slab import every_state, made_model

from tvae.data.patch_source import PatchSource
from tvae.data.picture import Picture
from tvae.inference.posterior import EStep, clean_moments, significant_states
from tvae.io.image_file import Image
from tvae.model.covariance import Covariance
from tvae.model.packed import UNPACKED, pack
from tvae.model.units import Units


def table(n_channels=1, n_lags=3):
    """Covariances that decay with distance, with the same between channels times a half."""
    lag = 0.5 ** np.arange(n_lags + 1) * (1 - np.arange(n_lags + 1) / (n_lags + 1))
    levels = np.linspace(1, 1.5, n_channels)
    between = np.where(np.eye(n_channels, dtype=bool), 1, 0.5) * np.outer(levels, levels)
    found = between[..., None, None] * np.outer(lag, lag)
    return found / np.mean(levels**2)


def drawn_noise(found, height, width, rng):
    """Samples with these covariances over a whole picture (H, W, C), by a Cholesky factor."""
    big = Covariance(found).matrix(max(height, width))
    values = np.linalg.cholesky(big + 1e-9 * np.eye(len(big))) @ rng.standard_normal(len(big))
    return values.reshape(max(height, width), max(height, width), -1)[:height, :width]


@pytest.mark.parametrize("n_channels", [1, 3])
def test_matrix_is_the_covariance_of_patches(n_channels):
    rng, found = np.random.default_rng(0), Covariance(table(n_channels))
    patches = np.concatenate(
        [
            np.lib.stride_tricks.sliding_window_view(drawn_noise(found.table, 12, 12, rng), (3, 3), axis=(0, 1))
            .transpose(0, 1, 3, 4, 2)
            .reshape(-1, 9 * n_channels)
            for _ in range(60)
        ]
    )
    expected = patches.T @ patches / len(patches)
    np.testing.assert_allclose(found.matrix(3), expected, atol=0.1)


def test_whitening():
    covariance = Covariance(table(3), detail=0.1)
    found = covariance.whitening(4)
    v = covariance.matrix(4) + 0.1 * np.eye(48)
    np.testing.assert_allclose(found.root @ found.root, v, atol=1e-9)
    np.testing.assert_allclose(found.root @ found.inverse, np.eye(48), atol=1e-9)
    assert found.log_det == pytest.approx(np.linalg.slogdet(v)[1])


def test_variance_of_a_sum():
    found = Covariance(table())
    template = np.zeros((5, 5))
    template[:, 2] = 1
    template[1, 1] = 2
    assert found.variance_of_sum(template, 0) == pytest.approx(template.ravel() @ found.matrix(5) @ template.ravel())


def gaussian_of(model, z, whitening, covariance, size):
    """Mean, covariance of the clean patch and of the noisy one, given z, from the definition."""
    weight, bias = model.decoder.weights[0], model.decoder.biases[0]
    directions = torch.cat(
        [model.likelihood.directions[h] for h in range(len(z)) if z[h]] or [bias.new_zeros(1, len(bias))]
    )
    sigma2, root = model.likelihood.sigma2, whitening.root
    mean = (bias + z @ weight) @ root
    detail = sigma2 * covariance.detail * torch.eye(len(root), dtype=root.dtype)
    clean = root @ (directions.T @ directions) @ root + detail
    return mean, clean, clean + sigma2 * torch.as_tensor(covariance.matrix(size))


@pytest.mark.parametrize("detail", [1e-3, 0.2])
def test_density_and_posterior_are_those_of_a_gaussian_with_covariance_r(detail):
    """log p(x) with R and detail inside, and the moments of the clean patch, against brute force over all states."""
    size, sigma2 = 3, 0.3
    covariance = Covariance(table(), detail)
    whitening = covariance.whitening(size)
    model = made_model(n_values=size**2, sigma2=sigma2)
    z = every_state()
    x = torch.randn(5, size**2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ whitening.root
    log_joint = model.log_joint(x @ whitening.inverse, z.expand(5, -1, -1)) - whitening.log_det / 2
    prior = model.log_prior(z)
    expected, means, variances = [], [], []
    for state in z:
        mean, clean, noisy = gaussian_of(model, state, whitening, covariance, size)
        gaussian = torch.distributions.MultivariateNormal(mean, noisy)
        expected.append(gaussian.log_prob(x))
        gain = clean @ torch.linalg.inv(noisy)
        means.append(mean + (x - mean) @ gain.T)
        variances.append((clean - gain @ clean).diagonal().expand_as(x))
    torch.testing.assert_close(log_joint, prior + torch.stack(expected, 1))
    q = log_joint.softmax(1)
    wanted = torch.einsum("bs,sbd->bd", q, torch.stack(means))
    square = torch.einsum("bs,sbd->bd", q, torch.stack(means).square() + torch.stack(variances))
    packed = pack(z)[None].expand(5, -1, -1).contiguous()
    step = EStep(packed, torch.zeros_like(log_joint), log_joint, torch.tensor(0))
    rows = significant_states(step, 0)
    mean, variance = clean_moments(model, x @ whitening.inverse, rows, None, UNPACKED, whitening)
    torch.testing.assert_close(mean, wanted)
    torch.testing.assert_close(variance, square - wanted.square())


def test_patches_of_a_picture_are_whitened():
    rng, covariance = np.random.default_rng(1), Covariance(table(3))
    pixels = drawn_noise(covariance.table, 10, 10, rng)
    picture = Picture(Image(pixels, pixels.dtype, 1.0, 0.0), pixels, covariance=covariance)
    source = PatchSource(picture, 4, 1)
    x, observed = source.reader(range(source.n_points), Units(), torch.device("cpu"), torch.float64).take(
        torch.arange(source.n_points)
    )
    assert observed is None
    patches = np.lib.stride_tricks.sliding_window_view(pixels, (4, 4), axis=(0, 1)).transpose(0, 1, 3, 4, 2)
    whitening = covariance.whitening(4)
    np.testing.assert_allclose(x.numpy(), patches.reshape(-1, 48) @ whitening.inverse.numpy())
    assert source.log_volume == pytest.approx(-whitening.log_det / 2)
