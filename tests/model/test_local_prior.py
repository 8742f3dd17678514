"""A prior that follows the neighbourhood."""

import pytest
import torch

from tvae.errors import UserError
from tvae.model import local_prior
from tvae.model.local_prior import CELL, MIX, Local
from tvae.model.packed import UNPACKED, pack
from tvae.model.parts import Places, Rows, Start, Visited
from tvae.model.units import Units
from tvae.model.vae import ModelConfig

SIDE, H = 64, 3


def places(side=SIDE, n_pages=1):
    page, row, column = (
        each.flatten() for each in torch.meshgrid(*map(torch.arange, (n_pages, side, side)), indexing="ij")
    )
    return Places((page, row, column), (n_pages, side, side))


def made(at=None, n_latents=H):
    at = places() if at is None else at
    return Local.start(Start(ModelConfig(n_latents=n_latents), len(at.at[0]), 4, 1.0, Units(), torch.Generator(), at))


def updated(prior, z):
    """One M-step in which data point n has the state z_n."""
    n_points = len(z)
    index = torch.arange(n_points)
    rows = Rows(index, pack(z), torch.ones(n_points, dtype=torch.float64))
    sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in prior.statistics_shapes().items()}
    x = torch.zeros(n_points, 4)
    prior.add_statistics(sums, Visited(x, None, index, None, None, rows, None, UNPACKED))
    prior.update({**sums, "n_points": torch.tensor(float(n_points), dtype=torch.float64)})


def test_density_sums_to_one_for_every_data_point():
    prior = made()
    updated(prior, (torch.rand(SIDE**2, H, generator=torch.Generator().manual_seed(0)) < 0.3).double())
    z = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * H).expand(5, -1, -1)
    index = torch.tensor([0, 7, 100, 2000, SIDE**2 - 1])
    torch.testing.assert_close(prior.log_prob(z, index).logsumexp(1), torch.zeros(5, dtype=torch.float64))


def test_latents_cost_little_where_the_neighbours_use_them():
    prior, at = made(), places()
    z = torch.zeros(SIDE**2, H, dtype=torch.float64)
    left = at.at[2] < SIDE // 2
    z[left, 0], z[~left, 1] = 1, 1
    updated(prior, z)
    assert prior.pi.tolist() == pytest.approx([0.5, 0.5, 1e-6])
    logits = prior.logits(torch.tensor([20 * SIDE + 2, 20 * SIDE + 60]))
    assert logits[0, 0] > 2 > -2 > logits[0, 1]
    assert logits[1, 1] > 2 > -2 > logits[1, 0]
    assert prior.logits().shape == (H,)


def test_smoothing_is_the_gaussian_average_of_cells():
    """Against a plain sum over all cells."""
    prior = made()
    z = (torch.rand(SIDE**2, H, generator=torch.Generator().manual_seed(1)) < 0.3).double()
    updated(prior, z)
    n = SIDE // CELL
    q = z.view(n, CELL, n, CELL, H).mean((1, 3))  # (n, n, H)
    place, deviation = torch.arange(n).double(), local_prior.REACH / CELL
    weight = torch.exp(-0.5 * ((place - 5) / deviation) ** 2) * ((place - 5).abs() <= 8)
    both = weight[:, None] * weight
    wanted = (1 - MIX) * (both[..., None] * q).sum((0, 1)) / both.sum() + MIX * z.mean(0)
    torch.testing.assert_close(prior.local.view(n, n, H)[5, 5], wanted)


def test_pages_are_apart():
    at = places(16, 2)
    prior = made(at)
    z = torch.zeros(2 * 256, H, dtype=torch.float64)
    z[at.at[0] == 0, 0] = 1
    updated(prior, z)
    assert prior.logits(torch.tensor([15 * 16, 256]))[:, 0].tolist() == pytest.approx([2.944, -2.944], abs=1e-3)


def test_large_pictures_have_larger_cells(monkeypatch):
    monkeypatch.setattr(local_prior, "VALUES_MAX", 100)
    prior = made()
    assert len(prior.local) * H <= 100
    assert prior.cells.max() < len(prior.local)


def test_data_without_a_neighbourhood_are_refused():
    with pytest.raises(UserError, match="not patches of a picture"):
        Local.start(Start(ModelConfig(n_latents=2), 5, 4, 1.0, Units(), torch.Generator()))
