"""Block matching, NL-Ridge and filling of the kernel beside those in torch, which have oracles of their own."""

import pytest
import torch
from grids import untimed
from hypothesis import given
from hypothesis import strategies as st
from native_samples import needs_kernel

from tvae.backends.native import local_groups as native
from tvae.data.patches import extract, positions
from tvae.restoration.non_local import local_filling
from tvae.restoration.non_local.block_matching import similar_patches
from tvae.restoration.non_local.local_groups import refine_locally

pytestmark = needs_kernel

SIGMA = 0.1


def random_picture(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def pictures(height, width, n_channels, sigma=SIGMA):
    """A noisy picture and a pilot, smooth and with texture, in single precision."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    waves = (torch.sin(rows / 5) + torch.cos(columns / 3))[..., None] / 4
    pilot = waves * torch.linspace(1, 0.5, n_channels) + 0.1 * random_picture(height, width, n_channels)
    return pilot + sigma * torch.randn(pilot.shape, generator=torch.Generator().manual_seed(1)), pilot


def by_torch(function, *args):
    """Double precision, which the kernel leaves to torch."""
    return function(*(arg.double() if isinstance(arg, torch.Tensor) else arg for arg in args))


def in_one(*search):
    return torch.cat([*similar_patches(*search)])


@st.composite
def searches(draw):
    patch_size = draw(st.integers(1, 5))
    height, width = (draw(st.integers(patch_size, 60)) for _ in range(2))
    pixels = random_picture(height, width, draw(st.integers(1, 3)), seed=draw(st.integers(0, 99)))
    return pixels, patch_size, draw(st.integers(1, patch_size)), draw(st.integers(0, 5)), draw(st.integers(1, 12))


@untimed
@given(searches())
def test_groups_are_as_near_as_those_by_torch(search):
    """Groups agree up to rounding: equally near patches may change places; the reference is first, none is twice."""
    pixels, patch_size, *_ = search
    found, wanted = in_one(*search), by_torch(in_one, *search)
    patches = extract(pixels.double(), patch_size, 1)
    distances = [(patches[groups] - patches[groups[:, :1]]).square().sum(-1) for groups in (found, wanted)]
    torch.testing.assert_close(*distances, rtol=1e-5, atol=1e-5)
    assert torch.equal(found[:, 0], wanted[:, 0])
    assert [len(group.unique()) for group in found] == [len(group.unique()) for group in wanted]


def test_of_equal_patches_the_first_are_taken():
    groups = in_one(torch.full((9, 8, 1), 0.3), 3, 2, 2, 4)
    n_columns = 6
    for group in groups.tolist():
        row, column = divmod(group[0], n_columns)
        around = [
            y * n_columns + x
            for y in range(max(0, row - 2), min(6, row + 3))
            for x in range(max(0, column - 2), min(5, column + 2) + 1)
        ]
        assert group == [group[0], *(i for i in around if i != group[0])][:4]


@pytest.mark.parametrize("n_channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("patch_size", "n_similar"), [(3, 4), (5, 45), (8, 90)])
def test_pictures_are_those_by_torch(n_channels, patch_size, n_similar):
    """Far enough apart for the groups to be the same; gains are then as exact as single precision is."""
    noisy, pilot = pictures(41, 67, n_channels)
    search = patch_size, 3, 9, n_similar, SIGMA**2, range(41)
    mean, variance = refine_locally(noisy, pilot, *search)
    wanted, wanted_variance = by_torch(refine_locally, noisy, pilot, *search)
    assert (mean - wanted).abs().max() < 1e-4 * SIGMA
    assert (variance - wanted_variance).abs().max() < 1e-4 * SIGMA**2


@pytest.mark.parametrize("sigma", [1e-4, 1e-3, 1e-2])
def test_little_noise_takes_double_precision(sigma):
    noisy, pilot = pictures(30, 30, 1, sigma)
    search = 8, 3, 15, 90, sigma**2, range(30)
    mean, variance = refine_locally(noisy, pilot, *search)
    wanted, wanted_variance = by_torch(refine_locally, noisy, pilot, *search)
    assert (mean - wanted).abs().max() < 5e-3 * sigma
    torch.testing.assert_close(variance, wanted_variance, rtol=2e-2, atol=1e-3 * sigma**2)


def test_each_channel_may_have_its_own_noise():
    noisy, pilot = pictures(30, 24, 2)
    sigma2 = torch.tensor([0.01, 0.04], dtype=torch.float64)
    both = refine_locally(noisy, pilot, 5, 3, 6, 10, sigma2, range(30))
    torch.testing.assert_close(both, by_torch(refine_locally, noisy, pilot, 5, 3, 6, 10, sigma2, range(30)))
    alike = refine_locally(noisy, pilot, 5, 3, 6, 10, sigma2[:1].expand(2).contiguous(), range(30))
    assert torch.equal(alike, refine_locally(noisy, pilot, 5, 3, 6, 10, 0.01, range(30)))
    assert not torch.equal(both, alike)


@pytest.mark.parametrize("step", [1, 3, 4])
def test_neither_threads_nor_bands_nor_parts_change_a_bit(step, monkeypatch):
    """Last places that are nearer than the step included."""
    noisy, pilot = pictures(150, 142, 1)
    search = 4, step, 15, 8, SIGMA**2
    monkeypatch.setattr(native, "VALUES_AT_ONCE", 1)
    monkeypatch.setattr(native, "n_threads_for", lambda n: 1)
    whole = refine_locally(noisy, pilot, *search, range(150))
    monkeypatch.setattr(native, "n_threads_for", lambda n: 4)
    for _ in range(3):
        assert torch.equal(refine_locally(noisy, pilot, *search, range(150)), whole)
    bands = [refine_locally(noisy, pilot, *search, rows) for rows in (range(0, 7), range(7, 90), range(90, 150))]
    assert torch.equal(torch.cat(bands, 1), whole)


def test_tiles_of_a_phase_never_meet():
    """Every pixel that a tile of references may reach is out of the reach of the others of its phase."""
    for length, patch_size, step, radius in [
        (97, 8, 3, 15),
        (98, 8, 3, 15),
        (99, 5, 1, 15),
        (150, 4, 4, 15),
        (66, 1, 1, 7),
    ]:
        places = positions(length, patch_size, step)
        tiles = places.split(native.TILE)
        n_apart = native.tiles_apart(step, patch_size, radius)
        for first, second in zip(tiles, tiles[n_apart:], strict=False):
            assert first[-1] + patch_size - 1 + radius < second[0] - radius


def test_pictures_stay_as_they_are():
    noisy, pilot = pictures(20, 20, 3)
    before = noisy.clone(), pilot.clone()
    refine_locally(noisy, pilot, 5, 3, 6, 10, SIGMA**2, range(20))
    assert torch.equal(noisy, before[0])
    assert torch.equal(pilot, before[1])


def test_a_constant_picture():
    flat = torch.full((30, 30, 1), 0.7)
    mean, variance = refine_locally(flat, flat, 4, 3, 5, 20, 1e-6, range(30))
    assert torch.equal(mean, flat.double())
    assert variance.max() < 1e-12


@untimed
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 27), st.sampled_from([0.0, 0.3, 1.0]))
def test_filled_groups_are_those_by_torch(n_groups, n_patches, n_values, share):
    """`share` of the values is known, all or none among them."""
    pilot = random_picture(n_groups, n_patches, n_values).cumsum(2) / 5
    y, observed = pilot + 0.1 * random_picture(*pilot.shape, seed=1), random_picture(*pilot.shape, seed=2) < share
    before = y.clone(), observed.clone(), pilot.clone()
    found = native.fill(y, observed, pilot, 1e-3)
    wanted = local_filling._posterior(y.double(), observed, pilot.double(), 1e-3)
    for value, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(value.double(), expected, atol=1e-3, rtol=1e-3)
    assert all(torch.equal(a, b) for a, b in zip((y, observed, pilot), before, strict=True))


def test_filling_does_not_depend_on_the_number_of_threads(monkeypatch):
    pilot = random_picture(100, 12, 9)
    found = []
    for n_threads in (1, 3):
        monkeypatch.setattr(native, "n_threads_for", lambda n, n_threads=n_threads: n_threads)
        found.append(native.fill(pilot + 0.1, pilot > 0.4, pilot, 1e-3))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
