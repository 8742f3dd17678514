"""The slab model before training."""

import numpy as np
import pytest
import torch

from tvae.backends.torch_backend import e_step
from tvae.data.patch_source import PatchSource
from tvae.data.patches import extract
from tvae.data.picture import Picture, drop_pixels
from tvae.inference.evolution import EaConfig
from tvae.inference.states import StatesConfig
from tvae.io.image_file import from_array
from tvae.model.packed import UNPACKED
from tvae.model.units import Units
from tvae.model.vae import ModelConfig, start_model
from tvae.training.backend import visit_by
from tvae.training.points import InMemory, Points
from tvae.training.start import first_combinations, k_means, learn_completed, smoothing, start_slabs
from tvae.training.team import ALONE


def test_means_of_well_separated_clusters_are_found():
    rng = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0], [10, 0], [0, 10]])
    x = centres.repeat(50, 1) + 0.1 * torch.randn(150, 2, generator=rng)
    found = k_means(x, 3, torch.Generator().manual_seed(3))
    assert torch.cdist(centres, found).amin(1).max() < 0.1


def test_more_means_than_points():
    assert k_means(torch.randn(2, 3), 5, torch.Generator().manual_seed(0)).shape == (5, 3)


def test_smoothing_keeps_constants_and_channels_apart():
    blur = smoothing((4, 4, 2))
    x = torch.tensor([1.0, 5.0], dtype=torch.float64).repeat(16)
    torch.testing.assert_close(blur @ x, x)
    spike = torch.zeros(4, 4, 2, dtype=torch.float64)
    spike[1, 1, 0] = 1
    found = (blur @ spike.flatten()).view(4, 4, 2)
    assert found[1, 1, 0] > found[1, 2, 0] > found[1, 3, 0] > 0
    assert not found[..., 1].any()
    torch.testing.assert_close(smoothing((6,)), torch.eye(6))


def test_states_at_the_start_are_distinct():
    """States are distinct even if there are more of them than latents, up to all of them."""
    assert first_combinations(200, 3).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    for n_states in range(1, 9):
        found = first_combinations(3, n_states)
        assert len({*map(tuple, found.tolist())}) == n_states
        assert found.sum(1)[: min(n_states, 3)].eq(1).all()


def test_the_first_parameters_of_incomplete_data_are_those_of_the_completed():
    """PCA of each cluster, the noise taken off; states on every point's own cluster; sigma2 as it was told."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0, 0, 0], [20, 0, 0, 0]], dtype=torch.float64)
    basis = torch.tensor([[0.0, 1, 1, 0], [0, 0, 1, -1]], dtype=torch.float64) / 2**0.5
    label = torch.arange(4000) % 2
    x = centres[label] + 3 * torch.randn(4000, 1, generator=rng, dtype=torch.float64) * basis[label]
    x = x + 0.1 * torch.randn(x.shape, generator=rng, dtype=torch.float64)
    observed = torch.rand(x.shape, generator=rng) < 0.5
    model = start_model(
        ModelConfig(n_latents=2, hidden=[], likelihood="slab", slab=1, prior="bernoulli", sigma2=0.01), 4000, 4, 1.0,
        Units(), rng,
    )  # fmt: skip
    model = model.double()
    source = InMemory(x * observed, observed)
    points = Points(source, ALONE, Units(), torch.device("cpu"), torch.float64)
    points.draw_states(model.pi, StatesConfig(n_states=2), 0)
    completed = InMemory(x).reader(range(4000), Units(), torch.device("cpu"), torch.float64)
    start_slabs(model, points, completed, (4,), seed=1)
    learn_completed(model, visit_by(e_step, None, UNPACKED), EaConfig(), points, completed, ALONE)
    order = model.decoder.weights[0][:, 0].argsort()
    torch.testing.assert_close(model.decoder.weights[0].detach()[order], centres, atol=0.3, rtol=0)
    found = model.likelihood.directions[order][:, 0]
    for mine, true in zip(found, basis, strict=True):
        torch.testing.assert_close(torch.outer(mine, mine), 9 * torch.outer(true, true), atol=0.6, rtol=0)
    assert model.likelihood.sigma2.item() == pytest.approx(0.01)
    torch.testing.assert_close(model.pi, torch.full((2,), 0.5, dtype=torch.float64), atol=0.01, rtol=0)


def test_arrays_are_completed_by_the_mean_of_what_is_known():
    x = torch.tensor([[1.0, 0], [3, 5], [0, 7]])
    source = InMemory(x, torch.tensor([[True, False], [True, True], [False, True]]))
    assert torch.equal(source.completed().data, torch.tensor([[1.0, 6], [3, 5], [2, 7]]))
    assert InMemory(x).completed().data is x


def test_pictures_are_completed_smoothly_and_known_pixels_stay():
    rows, columns = torch.meshgrid(torch.arange(24.0), torch.arange(20.0), indexing="ij")
    clean = (rows + columns)[..., None].double().numpy()
    missing = drop_pixels(clean.shape, 0.5, 0)
    missing[5:17, 4:18] = True
    picture = Picture(from_array(clean), np.where(missing[..., None], 0, clean), missing=missing)
    source = PatchSource(picture, 4, 3)
    whole = source.completed()
    found = whole.pixels.numpy()
    assert not whole.is_masked
    assert (found[~missing] == clean[~missing]).all()
    assert np.abs(found - clean).max() < 16
    assert np.abs(found - clean)[:3].max() < 1.5
    x, observed = whole.reader(range(2, 5), Units(), torch.device("cpu"), torch.float64).take(torch.tensor([0, 2]))
    assert observed is None
    torch.testing.assert_close(x, extract(whole.pixels, 4, 3)[[2, 4]])
    assert source.known is not None
    assert (source.pixels.numpy()[missing] == 0).all()
