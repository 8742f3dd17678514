"""The average of overlapping patches against slow loops: in any order, by any number of ranks."""

import time

import pytest
import torch
from grids import corners, grids, untimed
from hypothesis import given
from hypothesis import strategies as st
from turns import InTurn

from tvae.data.patches import AVERAGES, extract, gaussian_weights, uniform_weights
from tvae.restoration.aggregation import Accumulator
from tvae.training.team import ALONE


def average(patches, shape, patch_size, stride, weights):
    """(N, D) -> (H, W, C): of patches that are certain."""
    sums = Accumulator(tuple(shape), patch_size, stride, weights)
    sums.add(torch.arange(len(patches)), patches, torch.zeros_like(patches))
    return sums.result()[0]


@untimed
@given(grids(), st.sampled_from(sorted(AVERAGES)))
def test_patches_average_back_to_the_image(grid, kind):
    image, patch_size, stride = grid
    before = image.clone()
    patches = extract(image, patch_size, stride)
    restored = average(patches, image.shape, patch_size, stride, AVERAGES[kind](patch_size))
    torch.testing.assert_close(restored, image)
    assert torch.equal(image, before)


def estimates(image, patch_size, stride):
    """Mean and variance (N, D) of every patch of a picture, and weights (p * p,)."""
    shape = len(corners(image, patch_size, stride)), patch_size**2 * image.shape[2]
    mean, variance = torch.randn(shape, dtype=torch.float64), torch.rand(shape, dtype=torch.float64)
    return mean, variance, torch.rand(patch_size**2, dtype=torch.float64) + 0.1


def mixtures(image, patch_size, stride, mean, variance, weights, certainty):
    """Mean and variance of every value by a loop: that of a mixture of the patches that hold it."""
    held = {}  # (row, column, channel) -> (weight, mean, variance) of each patch
    for n, (top, left) in enumerate(corners(image, patch_size, stride)):
        side, n_channels = range(patch_size), image.shape[2]
        places = [(top + i, left + j, c) for i in side for j in side for c in range(n_channels)]
        for d, place in enumerate(places):
            held.setdefault(place, []).append((certainty[n, d] * weights[d // n_channels], mean[n, d], variance[n, d]))
    means, variances = torch.empty_like(image), torch.empty_like(image)
    for place, entries in held.items():
        weight, m, v = (torch.stack(column) for column in zip(*entries, strict=True))
        share = weight / weight.sum()
        means[place] = (share * m).sum()
        variances[place] = (share * v).sum() + (share * (m - means[place]) ** 2).sum()
    assert len(held) == image.numel()
    return means, variances


@untimed
@given(grids(), st.integers(1, 9), st.sampled_from(["alike", "patches", "values"]), st.randoms(use_true_random=False))
def test_result_equals_a_loop_in_any_order(grid, n_at_once, certain, order):
    """`certain`: what counts differently, if anything does."""
    image, patch_size, stride = grid
    mean, variance, weights = estimates(image, patch_size, stride)
    certainty = {"alike": None, "patches": torch.rand(len(mean)) + 0.1, "values": torch.rand(mean.shape) + 0.1}[certain]
    before = mean.clone(), variance.clone(), weights.clone()
    sums = Accumulator(tuple(image.shape), patch_size, stride, weights)
    numbers = list(range(len(mean)))
    order.shuffle(numbers)
    for index in torch.tensor(numbers).split(n_at_once):
        sums.add(index, mean[index], variance[index], None if certainty is None else certainty[index])
    sums.merge(ALONE)
    counts = torch.ones_like(mean) if certainty is None else certainty.view(len(mean), -1).expand_as(mean)
    expected = mixtures(image, patch_size, stride, mean, variance, weights, counts)
    for found, wanted in zip(sums.result(), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    for value, copy in zip((mean, variance, weights), before, strict=True):
        assert torch.equal(value, copy)


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_what_ranks_have_added_is_merged(n_ranks):
    image = torch.zeros(9, 8, 3)
    mean, variance, weights = estimates(image, 4, 2)
    whole = Accumulator((9, 8, 3), 4, 2, weights)
    whole.add(torch.arange(len(mean)), mean, variance)
    owner, sent = torch.randint(n_ranks, (len(mean),)), []
    for rank in range(n_ranks):
        sums = Accumulator((9, 8, 3), 4, 2, weights)
        index = (owner == rank).nonzero()[:, 0]  # may be none
        sums.add(index, mean[index], variance[index])
        sums.merge(InTurn(rank, n_ranks, sent))
    for found, wanted in zip(sums.result(), whole.result(), strict=True):
        torch.testing.assert_close(found, wanted)


def test_single_precision_is_added_up_in_double():
    mean, variance, _ = (values.float() for values in estimates(torch.zeros(20, 17, 3), 5, 2))
    sums, exact = (Accumulator((20, 17, 3), 5, 2, gaussian_weights(5)) for _ in range(2))
    for index in torch.arange(len(mean)).split(7):
        sums.add(index, mean[index], variance[index])
    exact.add(torch.arange(len(mean)), mean.double(), variance.double())
    for found, wanted in zip(sums.result(), exact.result(), strict=True):
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_equal_estimates_have_no_variance():
    """Nor, by rounding, less than none: its root is shown."""
    patches = torch.full((len(corners(torch.zeros(9, 8, 1), 4, 1)), 16), 1 / 3)
    sums = Accumulator((9, 8, 1), 4, 1, gaussian_weights(4))
    sums.add(torch.arange(len(patches)), patches, torch.zeros_like(patches))
    mean, variance = sums.result()
    torch.testing.assert_close(mean, torch.full((9, 8, 1), patches[0, 0].item(), dtype=torch.float64))
    assert (variance >= 0).all()
    assert variance.max() < 1e-7


def test_patch_as_large_as_the_image():
    image = torch.rand(9, 9, 3)
    patches = extract(image, 9, 1)
    assert patches.shape == (1, 243)
    assert torch.equal(average(patches, (9, 9, 3), 9, 1, uniform_weights(9)), image.double())


def test_stride_that_leaves_gaps_is_refused():
    with pytest.raises(ValueError, match="do not cover"):
        Accumulator((5, 5, 1), 2, 3, uniform_weights(2))


def test_wrong_number_of_patches_is_refused():
    sums = Accumulator((3, 3, 1), 2, 1, uniform_weights(2))
    for index, n_patches in ((torch.arange(4), 3), (torch.arange(5), 5)):
        with pytest.raises((ValueError, RuntimeError, IndexError)):
            sums.add(index, torch.zeros(n_patches, 4), torch.zeros(n_patches, 4))


def test_a_whole_picture_takes_little_time():
    image = torch.rand(256, 256, 1)
    started = time.perf_counter()
    patches = extract(image, 12, 1)
    average(patches, (256, 256, 1), 12, 1, uniform_weights(12))
    assert patches.shape == (60025, 144)
    assert time.perf_counter() - started < 5  # 0.1 s on two idle cores
