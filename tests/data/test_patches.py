"""Patches against slow loops, for pictures of all shapes."""

import pytest
import torch
from grids import corners, grids, untimed
from hypothesis import given
from hypothesis import strategies as st

from tvae.data.patches import extract, gaussian_weights, nearest, positions, take, uniform_weights, windows


@untimed
@given(st.integers(1, 9), st.integers(0, 20), st.integers(1, 9))
def test_positions_are_multiples_of_the_stride_and_the_last(patch_size, extra, stride):
    found = positions(patch_size + extra, patch_size, stride).tolist()
    assert found == sorted({*range(0, extra + 1, stride), extra})


@pytest.mark.parametrize("patch_size", [0, 6])
def test_patch_that_does_not_fit(patch_size):
    with pytest.raises(ValueError, match="does not fit"):
        positions(5, patch_size, 1)


@untimed
@given(grids())
def test_extract_equals_slicing(grid):
    image, patch_size, stride = grid
    expected = [image[i : i + patch_size, j : j + patch_size].flatten() for i, j in corners(image, patch_size, stride)]
    torch.testing.assert_close(extract(image, patch_size, stride), torch.stack(expected), rtol=0, atol=0)


@untimed
@given(grids(), st.randoms(use_true_random=False))
def test_patches_are_taken_by_their_numbers(grid, order):
    image, patch_size, _ = grid
    everything = extract(image, patch_size, 1)
    index = torch.tensor([[order.randrange(len(everything)) for _ in range(3)] for _ in range(2)])
    assert torch.equal(take(image, patch_size, index), everything[index])
    assert torch.equal(take(image, patch_size, index[0]), everything[index[0]])


def test_windows_are_a_view_of_every_patch():
    image = torch.rand(7, 6, 3)
    found = windows(image, 4)
    assert found.shape == (4, 3, 4, 4, 3)
    assert found.data_ptr() == image.data_ptr()
    assert torch.equal(found.reshape(12, -1), extract(image, 4, 1))


def test_masks_are_cut_like_images():
    mask = torch.rand(8, 9, 1) < 0.5
    assert torch.equal(extract(mask, 3, 2), extract(mask.double(), 3, 2).bool())


def test_weights():
    assert torch.equal(uniform_weights(3), torch.ones(9, dtype=torch.float64))
    gaussian = gaussian_weights(5).view(5, 5)
    assert gaussian.argmax() == 12
    assert gaussian.min() > 0
    torch.testing.assert_close(gaussian, gaussian.T)
    torch.testing.assert_close(gaussian, gaussian.flip(0))


@untimed
@given(grids(), st.integers(1, 7))
def test_nearest_is_nearest(grid, stride_from):
    image, patch_size, stride_to = grid
    source = torch.tensor(corners(image, patch_size, stride_from)).double()
    target = torch.tensor(corners(image, patch_size, stride_to)).double()
    rows, columns = nearest(tuple(image.shape), patch_size, stride_from, stride_to)
    found = (rows[:, None] + columns).flatten()
    assert found.dtype == torch.int64
    distances = torch.cdist(target, source)
    torch.testing.assert_close(distances.gather(1, found[:, None])[:, 0], distances.min(1).values)


def test_nearest_of_the_same_grid_is_itself():
    rows, columns = nearest((12, 10), 4, 3, 3)
    assert torch.equal((rows[:, None] + columns).flatten(), torch.arange(len(extract(torch.zeros(12, 10, 1), 4, 3))))
