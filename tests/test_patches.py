"""Patches against slow loops, and round trips of pictures of all shapes."""

import itertools
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tvae.patches import AVERAGES, average, extract, nearest, patch_weights, positions

untimed = settings(deadline=None, max_examples=60)


@st.composite
def grids(draw):
    """A picture (H, W, C), a patch size that fits and a stride that covers it."""
    patch_size = draw(st.integers(1, 6))
    height, width = (draw(st.integers(patch_size, 14)) for _ in range(2))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    image = torch.rand(height, width, draw(st.sampled_from([1, 3])), generator=rng, dtype=torch.float64)
    return image, patch_size, draw(st.integers(1, patch_size))


def corners(image, patch_size, stride):
    rows, columns = (positions(length, patch_size, stride).tolist() for length in image.shape[:2])
    return list(itertools.product(rows, columns))


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
@given(grids(), st.sampled_from(AVERAGES))
def test_patches_average_back_to_the_image(grid, kind):
    image, patch_size, stride = grid
    before = image.clone()
    patches = extract(image, patch_size, stride)
    restored = average(patches, tuple(image.shape), patch_size, stride, patch_weights(kind, patch_size))
    torch.testing.assert_close(restored, image)
    assert torch.equal(image, before)


@untimed
@given(grids())
def test_average_equals_a_loop(grid):
    image, patch_size, stride = grid
    places = corners(image, patch_size, stride)
    patches = torch.rand(len(places), patch_size**2 * image.shape[2], dtype=torch.float64)
    weights = torch.rand(patch_size**2, dtype=torch.float64) + 0.1
    total, norm = torch.zeros_like(image), torch.zeros_like(image)
    for patch, (i, j) in zip(patches, places, strict=True):
        window = slice(i, i + patch_size), slice(j, j + patch_size)
        total[window] += patch.view(patch_size, patch_size, -1) * weights.view(patch_size, patch_size, 1)
        norm[window] += weights.view(patch_size, patch_size, 1)
    before = patches.clone(), weights.clone()
    found = average(patches, tuple(image.shape), patch_size, stride, weights)
    torch.testing.assert_close(found, total / norm)
    assert torch.equal(patches, before[0])
    assert torch.equal(weights, before[1])


def test_average_in_chunks(monkeypatch):
    image = torch.rand(20, 17, 3)
    patches, weights = torch.rand(len(extract(image, 5, 2)), 75), patch_weights("gaussian", 5)
    whole = average(patches, (20, 17, 3), 5, 2, weights)
    monkeypatch.setattr("tvae.patches.CHUNK_VALUES", 100)
    torch.testing.assert_close(average(patches, (20, 17, 3), 5, 2, weights), whole)
    assert whole.dtype == torch.float32


def test_patch_as_large_as_the_image():
    image = torch.rand(9, 9, 3)
    patches = extract(image, 9, 1)
    assert patches.shape == (1, 243)
    assert torch.equal(average(patches, (9, 9, 3), 9, 1, patch_weights("uniform", 9)), image)


def test_masks_are_cut_like_images():
    mask = torch.rand(8, 9, 1) < 0.5
    assert torch.equal(extract(mask, 3, 2), extract(mask.double(), 3, 2).bool())


def test_stride_that_leaves_gaps_is_refused():
    with pytest.raises(ValueError, match="do not cover"):
        average(torch.zeros(4, 4), (5, 5, 1), 2, 3, patch_weights("uniform", 2))


def test_wrong_number_of_patches_is_refused():
    with pytest.raises((ValueError, RuntimeError)):
        average(torch.zeros(3, 4), (3, 3, 1), 2, 1, patch_weights("uniform", 2))


def test_weights():
    assert torch.equal(patch_weights("uniform", 3), torch.ones(9, dtype=torch.float64))
    gaussian = patch_weights("gaussian", 5).view(5, 5)
    assert gaussian.argmax() == 12
    assert gaussian.min() > 0
    torch.testing.assert_close(gaussian, gaussian.T)
    torch.testing.assert_close(gaussian, gaussian.flip(0))
    with pytest.raises(ValueError, match="uniform, gaussian"):
        patch_weights("hann", 5)


@untimed
@given(grids(), st.integers(1, 7))
def test_nearest_is_nearest(grid, stride_from):
    image, patch_size, stride_to = grid
    source = torch.tensor(corners(image, patch_size, stride_from)).double()
    target = torch.tensor(corners(image, patch_size, stride_to)).double()
    found = nearest(tuple(image.shape), patch_size, stride_from, stride_to)
    assert found.dtype == torch.int64
    distances = torch.cdist(target, source)
    torch.testing.assert_close(distances.gather(1, found[:, None])[:, 0], distances.min(1).values)


def test_nearest_of_the_same_grid_is_itself():
    assert torch.equal(nearest((12, 10), 4, 3, 3), torch.arange(len(extract(torch.zeros(12, 10, 1), 4, 3))))


def test_a_whole_picture_takes_little_time():
    image = torch.rand(256, 256, 1)
    started = time.perf_counter()
    patches = extract(image, 12, 1)
    average(patches, (256, 256, 1), 12, 1, patch_weights("uniform", 12))
    assert patches.shape == (60025, 144)
    assert time.perf_counter() - started < 5  # 0.1 s on two idle cores
