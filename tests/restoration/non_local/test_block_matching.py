"""Groups of similar patches against a loop over all patches of the neighbourhood."""

import pytest
import torch
from grids import corners, untimed
from hypothesis import given
from hypothesis import strategies as st

from tvae.data.patches import extract
from tvae.restoration.non_local import block_matching
from tvae.restoration.non_local.block_matching import similar_patches


def random_picture(height, width, n_channels=1, seed=0):
    return torch.rand(height, width, n_channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def all_similar(*search):
    return torch.cat([*similar_patches(*search)])


def by_a_loop(pixels, patch_size, step, radius, n_similar):
    """Numbers of the nearest patches around each reference patch; itself first, and as a filler."""
    patches, places = extract(pixels, patch_size, 1), corners(pixels, patch_size, 1)
    number = {place: i for i, place in enumerate(places)}
    n_similar = min(n_similar, (2 * radius + 1) ** 2)
    groups = []
    for top, left in corners(pixels, patch_size, step):
        own = number[top, left]
        around = [i for (y, x), i in number.items() if abs(y - top) <= radius and abs(x - left) <= radius]
        others = sorted(set(around) - {own}, key=lambda i: (patches[i] - patches[own]).square().sum())
        groups.append(([own, *others] + [own] * n_similar)[:n_similar])
    return torch.tensor(groups)


@st.composite
def searches(draw):
    patch_size = draw(st.integers(1, 4))
    height, width = (draw(st.integers(patch_size, 11)) for _ in range(2))
    pixels = random_picture(height, width, draw(st.sampled_from([1, 3])), draw(st.integers(0, 99)))
    return pixels, patch_size, draw(st.integers(1, patch_size)), draw(st.integers(0, 4)), draw(st.integers(1, 12))


@untimed
@given(searches())
def test_groups_equal_a_loop(search):
    before = search[0].clone()
    found = all_similar(*search)
    assert found.dtype == torch.int64
    assert torch.equal(found, by_a_loop(*search))
    assert torch.equal(search[0], before)


@pytest.mark.parametrize("n_rows", [1, 2, 3])
def test_rows_at_once_make_no_difference(n_rows, monkeypatch):
    pixels = random_picture(14, 9, 3)
    whole = all_similar(pixels, 3, 2, 3, 8)
    monkeypatch.setattr(block_matching, "ROWS", n_rows)
    assert torch.equal(all_similar(pixels, 3, 2, 3, 8), whole)


@pytest.mark.parametrize("rows", [range(0, 3), range(5, 9), range(20, 30)])
def test_all_groups_that_reach_into_some_rows(rows, monkeypatch):
    """Only rows of references that reach into the rows are left, if rows are taken one by one."""
    monkeypatch.setattr(block_matching, "ROWS", 1)
    pixels = random_picture(30, 9)
    whole, some = all_similar(pixels, 3, 2, 3, 8), all_similar(pixels, 3, 2, 3, 8, rows)
    reached = [top for top in range(0, 28, 2) if top + 3 + 3 > rows.start and top - 3 < rows.stop]
    if rows.stop == 30:
        reached.append(27)
    is_reached = torch.isin(whole[:, 0] // 7, torch.tensor(reached))
    assert torch.equal(some, whole[is_reached])


def test_what_is_repeated_is_found_wherever_it_is():
    """A tile of 5x5 pixels, over and over: the nearest patches are its copies."""
    pixels = random_picture(5, 5).repeat(5, 5, 1)
    groups = all_similar(pixels, 5, 5, 10, 9)
    patches = extract(pixels, 5, 1)
    assert groups.shape == (25, 9)
    assert all(len(group.unique()) == 9 for group in groups)
    torch.testing.assert_close(patches[groups], patches[groups[:, :1]].expand(-1, 9, -1))


def test_the_reference_is_first_among_equals():
    groups = all_similar(torch.full((9, 8, 1), 0.3), 3, 2, 2, 4)
    assert groups[:, 0].tolist() == [top * 6 + left for top, left in corners(torch.zeros(9, 8, 1), 3, 2)]
    assert (groups >= 0).all()
    assert (groups < 42).all()


def test_pictures_with_one_patch_and_one_pixel():
    assert all_similar(random_picture(4, 4), 4, 3, 15, 6).tolist() == [[0] * 6]
    assert all_similar(random_picture(1, 1), 1, 1, 2, 6).tolist() == [[0] * 6]
    assert all_similar(random_picture(1, 3), 1, 1, 0, 6).tolist() == [[0], [1], [2]]


def test_single_precision_finds_patches_as_near():
    """Cumulative sums over a wide picture lose digits, but not so many that it matters."""
    pixels = random_picture(40, 400, seed=4)
    patches = extract(pixels, 6, 1)

    def distances(groups):
        return (patches[groups] - patches[groups[:, :1]]).square().sum(-1)

    exact, single = (distances(all_similar(values, 6, 3, 5, 20)) for values in (pixels, pixels.float()))
    torch.testing.assert_close(single, exact, rtol=0, atol=1e-3)
