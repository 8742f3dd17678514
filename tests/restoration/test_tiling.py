"""Bands of rows: they cover every page once, ranks share them out, and patches that reach into them are found."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from turns import InTurn

from tvae.restoration.tiling import ROWS_MAX, ROWS_MIN, Bands, chunks, overlapping, split


@given(st.integers(1, 3000), st.integers(1, 4), st.integers(1, 10**6), st.integers(1, 5))
def test_bands_cover_every_page_once(height, n_pages, row_values, n_ranks):
    bands = split(height, n_pages, row_values, n_ranks)
    places = [row for band in bands for row in range(band.place.start, band.place.stop)]
    assert places == list(range(height * n_pages))
    for band in bands:
        assert band.page.start % height == 0
        assert band.page.stop - band.page.start == height
        assert 0 <= band.rows.start < band.rows.stop <= height
        assert len(band.rows) <= ROWS_MAX
        assert len(band.rows) >= min(height, ROWS_MIN // 2)
    if height * n_pages >= n_ranks * ROWS_MIN * n_pages:
        assert len(bands) >= n_ranks


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_ranks_share_them_out(n_ranks):
    """Each band is computed once, and the last rank, which has heard all others, has the whole."""
    sent, seen = [], []

    def rows_of(band):
        seen.append(band.place)
        return torch.arange(band.place.start, band.place.stop).double().view(1, -1, 1, 1).expand(2, -1, 3, 1)

    for rank in range(n_ranks):
        out = torch.full((2, 600, 3, 1), torch.nan, dtype=torch.float64)
        Bands(InTurn(rank, n_ranks, sent)).fill("rows", out, 2, rows_of)
    assert torch.equal(out, torch.arange(600).double().view(1, -1, 1, 1).expand(2, -1, 3, 1))
    assert sorted(row for place in seen for row in range(place.start, place.stop)) == list(range(600))


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(1, 9), st.integers(0, 50), st.integers(1, 9))
def test_overlapping_patches_are_found(places, patch_size, top, n_rows):
    places, rows = torch.tensor(sorted(places)), range(top, top + n_rows)
    wanted = [i for i, place in enumerate(places.tolist()) if {*range(place, place + patch_size)} & {*rows}]
    assert list(overlapping(places, patch_size, rows)) == wanted


def test_chunks_are_the_same_wherever_one_begins():
    assert [part.tolist() for part in chunks(range(5, 8), 3, 8)] == [[3, 4, 5], [6, 7]]
    assert [part.tolist() for part in chunks(range(0, 8), 3, 8)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
