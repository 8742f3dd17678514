"""The contract of every source of data points: in memory, in a file, and as patches of a picture."""

import numpy as np
import pytest
import torch
from grids import grids, untimed
from hypothesis import given
from hypothesis import strategies as st

from tvae.data import mapped
from tvae.data.mapped import Mapped, MappedSource
from tvae.data.patch_source import PatchSource
from tvae.data.patches import extract
from tvae.data.picture import Picture, drop_pixels
from tvae.io.image_file import from_array
from tvae.model.units import Units
from tvae.training.points import InMemory, units_of
from tvae.training.team import Team

CPU = torch.device("cpu")
UNITS = Units(3.0, 0.5)


def picture_of(image, missing=None):
    """(H, W, C) and (H, W) bool as tensors; 0 where missing."""
    noisy = image.double().numpy().copy()
    if missing is not None:
        missing = missing.numpy()
        noisy[missing] = 0
    return Picture(from_array(noisy), noisy, missing=missing)


def in_memory(tmp_path):
    data = torch.randn(30, 12, dtype=torch.float64)
    return InMemory(data), data, None


def in_memory_masked(tmp_path):
    data, observed = torch.randn(30, 12, dtype=torch.float64), torch.rand(30, 12) < 0.5
    data[~observed] = torch.nan  # must not come through
    return InMemory(data, observed), data, observed


def in_a_file(tmp_path):
    data = np.random.default_rng(0).normal(size=(30, 2, 3, 2))
    np.save(tmp_path / "data.npy", data)
    file = Mapped(np.load(tmp_path / "data.npy", mmap_mode="r"))
    return MappedSource(file), torch.from_numpy(data).flatten(1), None


def patches(tmp_path):
    image = torch.rand(9, 8, 3)
    return PatchSource(picture_of(image), 2, 3), extract(image.double(), 2, 3), None


def patches_masked(tmp_path):
    image, missing = torch.rand(9, 8, 3), torch.from_numpy(drop_pixels((9, 8), 0.6, seed=0))
    picture = picture_of(image, missing)
    known = torch.from_numpy(~picture.missing)[..., None].expand(9, 8, 3)
    return PatchSource(picture, 2, 1), extract(torch.from_numpy(picture.noisy), 2, 1), extract(known, 2, 1)


@pytest.fixture(params=[in_memory, in_memory_masked, in_a_file, patches, patches_masked])
def made(request, tmp_path):
    """A source, all its data points (N, D), and which of their values are observed."""
    return request.param(tmp_path)


def standardised(data, observed):
    x = (data - UNITS.mean) / UNITS.std
    return x if observed is None else torch.where(observed, x, 0.0)


def test_a_source_says_what_it_has(made):
    source, data, observed = made
    assert (source.n_points, source.n_values) == data.shape
    assert source.is_masked == (observed is not None)
    assert torch.equal(source.known_values(), data if observed is None else data[observed])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("part", [slice(None), slice(7, 19), slice(11, 11)])
def test_a_reader_takes_rows_of_the_full_matrix(made, part, dtype):
    """Standardised, zero where not observed, numbered from the beginning of the part, in any order."""
    source, data, observed = made
    own = range(*part.indices(source.n_points))
    reader = source.reader(own, UNITS, CPU, dtype)
    order = torch.randperm(len(own))
    for index in (order, order[:1], order[:0], order.repeat(2)):
        x, known = reader.take(index)
        assert x.dtype == dtype
        rows = own.start + index
        torch.testing.assert_close(x, standardised(data, observed)[rows].to(dtype), rtol=1e-6, atol=1e-6)
        assert (known is None) == (observed is None)
        if known is not None:
            assert torch.equal(known, observed[rows])
            assert not x[~known].any()


def test_parts_of_ranks_are_the_whole(made):
    source, _, _ = made
    whole, _ = source.reader(range(source.n_points), UNITS, CPU, torch.float64).take(torch.arange(source.n_points))
    parts = [Team(rank, 3).part(source.n_points) for rank in range(3)]
    taken = [source.reader(part, UNITS, CPU, torch.float64).take(torch.arange(len(part)))[0] for part in parts]
    assert torch.equal(torch.cat(taken), whole)


def test_blind_data_points_are_counted(made):
    source, _, observed = made
    for part in (range(source.n_points), range(5, 12), range(3, 3)):
        blind = 0 if observed is None else int((~observed[part.start : part.stop].any(1)).sum())
        assert source.n_blind(part) == blind
    if isinstance(source, PatchSource) and observed is not None:
        assert source.n_blind(range(source.n_points)) > 0


def test_units_are_those_of_the_observed_values(made):
    source, data, observed = made
    known = (data if observed is None else data[observed]).numpy()
    units = units_of(source, standardise=True)
    assert (units.mean, units.std) == pytest.approx((known.mean(), known.std()))
    assert units_of(source, standardise=False) == Units()


@untimed
@given(grids(), st.integers(1, 7), st.integers(0, 9), st.data())
def test_patches_are_those_that_are_extracted(grid, stride, n_missing, draw):
    """Pictures of all shapes, strides that leave gaps too, any pixels missing, any part."""
    image, patch_size, _ = grid
    missing = torch.zeros(image.shape[:2], dtype=torch.bool)
    missing.view(-1)[torch.randperm(missing.numel())[:n_missing]] = True
    picture = picture_of(image, missing if n_missing else None)
    source = PatchSource(picture, patch_size, stride)
    data = extract(torch.from_numpy(picture.noisy), patch_size, stride)
    observed = extract((~missing)[..., None].expand(image.shape), patch_size, stride)
    start = draw.draw(st.integers(0, source.n_points))
    own = range(start, draw.draw(st.integers(start, source.n_points)))
    x, known = source.reader(own, UNITS, CPU, torch.float64).take(torch.arange(len(own)))
    assert torch.equal(x, standardised(data, observed)[own.start : own.stop])
    assert (known is None) == (n_missing == 0)
    assert known is None or torch.equal(known, observed[own.start : own.stop])


def test_a_picture_is_not_changed():
    image, missing = torch.rand(9, 8, 3), torch.rand(9, 8) < 0.3
    picture = picture_of(image, missing)
    before = picture.noisy.copy(), picture.missing.copy()
    source = PatchSource(picture, 4, 1)
    x, _ = source.reader(range(source.n_points), UNITS, CPU, torch.float64).take(torch.arange(source.n_points))
    x.fill_(7)
    np.testing.assert_array_equal(picture.noisy, before[0])
    np.testing.assert_array_equal(picture.missing, before[1])


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8", "int32"])
def test_rows_of_a_file_of_any_type(tmp_path, monkeypatch, dtype):
    """A few at a time, between which pages are dropped."""
    monkeypatch.setattr(mapped, "ROWS_BETWEEN", 4)
    values = (50 * np.random.default_rng(0).random((33, 5))).astype(dtype)
    np.save(tmp_path / "data.npy", values)
    source = MappedSource(Mapped(np.load(tmp_path / "data.npy", mmap_mode="r")))
    index = torch.randperm(33)
    x, observed = source.reader(range(33), UNITS, CPU, torch.float64).take(index)
    assert observed is None
    torch.testing.assert_close(x, standardised(torch.from_numpy(values).double(), None)[index])


def test_of_a_large_file_a_sample_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "ROWS_SEEN", 11)
    np.save(tmp_path / "data.npy", np.arange(1001.0)[:, None])
    source = MappedSource(Mapped(np.load(tmp_path / "data.npy", mmap_mode="r")))
    assert source.is_sampled
    assert source.known_values().flatten().tolist() == list(range(0, 1001, 100))  # over all of the file
