"""From natural images to whitened patches: positions, held-out strips, contrast."""

import tracemalloc

import numpy as np
import pytest

from tests.conftest import smooth_picture
from tvae.data.natural_images import NaturalImage
from tvae.data.natural_patches import Cutting, columns, cut, make_patches, prepare, shares
from tvae.errors import UserError


def source(name, pixels):
    return NaturalImage(name, "", lambda: pixels)


def test_the_brightest_are_clamped_to_the_brightest_of_the_others():
    image = np.arange(1.0, 101.0).reshape(10, 10)
    clamped = prepare(image, 0.02)
    expected = np.minimum(image, 98.0)
    assert np.allclose(clamped, expected / expected.mean())
    assert np.allclose(prepare(image, 0.0), image / image.mean())


def test_shares_are_even():
    assert shares(10, 3) == [4, 3, 3]
    assert shares(2, 3) == [1, 1, 0]


@pytest.mark.parametrize(
    ("width", "size", "n_strips"), [(1536, 16, 5), (512, 16, 3), (90, 6, 1), (50, 8, 1), (32, 16, 1)]
)
def test_held_out_strips_share_no_column_with_the_rest(width, size, n_strips):
    train, test = ({c for first in firsts for c in range(first, first + size)} for firsts in columns(width, size, True))
    assert not train & test
    assert train | test == set(range(width))
    assert len(test) == pytest.approx(max(size, 0.2 * width), abs=n_strips)
    assert sum(c + 1 not in test for c in test) == n_strips
    assert columns(width, size, False)[0].tolist() == list(range(width - size + 1))


def test_patches_are_pieces_of_the_image_without_their_means():
    image = np.random.default_rng(0).normal(size=(12, 15))
    patches = cut(image, np.arange(12), 400, 4, 0.0, np.random.default_rng(1))
    pieces = np.stack([image[r : r + 4, c : c + 4].ravel() for r in range(9) for c in range(12)])
    distance = np.abs(patches[:, None] - (pieces - pieces.mean(1, keepdims=True))).max(-1)  # (400, 108)
    assert distance.min(1).max() < 1e-6
    assert len(set(distance.argmin(1))) > 100  # 400 draws of 108: 2.6 are missed on average


def test_the_flattest_are_left_out():
    image = np.zeros((20, 40))
    image[:, 20:] = np.random.default_rng(0).normal(size=(20, 20))
    patches = cut(image, np.arange(37), 50, 4, 0.6, np.random.default_rng(1))
    assert patches.shape == (50, 16)
    everything = cut(image, np.arange(37), 125, 4, 0.0, np.random.default_rng(1))  # the same draws, none left out
    assert np.allclose(np.sort(patches.var(1)), np.sort(everything.var(1))[-50:])


def test_patches_are_balanced_over_images_mixed_and_white():
    """Each image has an intensity pattern of its own, by which its patches are told apart."""
    sources = [source(str(i), smooth_picture(i)) for i in range(3)]
    options = Cutting(patch_size=6, retained=0.99, equalise=False)
    patches = make_patches(sources, options, 3001, 300)
    assert patches.train.shape == (3001, 36)
    assert patches.test.shape == (300, 36)
    inside = patches.whitening.directions
    covariance = np.cov(patches.train.astype(np.float64) @ inside, rowvar=False, bias=True)
    assert np.abs(covariance - np.eye(len(covariance))).max() < 1e-3
    unwhitened = patches.whitening.colour(patches.train) + patches.whitening.mean
    assert np.allclose(unwhitened.mean(1), 0, atol=1e-5)

    def pieces(image):
        windows = np.lib.stride_tricks.sliding_window_view(prepare(image, 0.02), (6, 6)).reshape(-1, 36)
        return windows - windows.mean(1, keepdims=True)

    belongs = [cdist_min(unwhitened[:200], pieces(smooth_picture(i))) < 1e-3 for i in range(3)]
    assert np.sum(belongs, axis=0).tolist() == [1] * 200
    assert all(40 < b.sum() < 95 for b in belongs)  # mixed: 200 / 3 of each, within 4 standard deviations


def test_equalised_patches_have_similar_contrast():
    """One image of low and one of high contrast: x / sqrt(var + 0.1 mean var), before the whitening."""
    sources = [source("a", 1000 + 0.2 * (smooth_picture(0) - 1000)), source("b", smooth_picture(1))]

    def made(equalise):
        options = Cutting(patch_size=6, retained=1.0, equalise=equalise)
        patches = make_patches(sources, options, 400, 40)
        return [patches.whitening.colour(x) + patches.whitening.mean for x in (patches.train, patches.test)]

    (train, test), (equal_train, equal_test) = made(False), made(True)
    floor = 0.1 * train.var(1).mean()
    assert np.allclose(equal_train, train / np.sqrt(train.var(1, keepdims=True) + floor), atol=1e-3)
    assert np.allclose(equal_test, test / np.sqrt(test.var(1, keepdims=True) + floor), atol=1e-3)
    assert equal_train.std(1).std() < 0.5 * train.std(1).std() / train.std(1).mean()


def cdist_min(a, b):
    return np.array([np.abs(b - row).max(1).min() for row in a])


def test_images_are_not_kept():
    """Thirty images of 8 MB each: what is held at a time is a few of them, not all."""
    n_reads = 0

    def read():
        nonlocal n_reads
        n_reads += 1
        return np.random.default_rng(n_reads).random((1000, 1000))

    sources = [NaturalImage(str(i), "", read) for i in range(30)]
    tracemalloc.start()
    make_patches(sources, Cutting(patch_size=6), 60, 6)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n_reads == 30
    assert most < 15 * 8e6


def test_positions_depend_on_the_seed_alone():
    sources = [source("a", smooth_picture(0)), source("b", smooth_picture(1))]

    def made(seed):
        return make_patches(sources, Cutting(patch_size=6, seed=seed), 100, 10).train

    assert np.array_equal(made(0), made(0))
    assert not np.array_equal(made(0), made(1))


@pytest.mark.parametrize(
    ("size", "n_test", "message"),
    [
        (61, 0, "90x60 pixels do not hold a patch of 61x61$"),
        (50, 5, "do not hold a patch of 50x50 and as many held-out"),
    ],
)
def test_patch_larger_than_image(size, n_test, message):
    with pytest.raises(UserError, match=message):
        make_patches([source("a", smooth_picture(0))], Cutting(patch_size=size), 10, n_test)


def test_flat_images():
    for image, n_patches in ((np.zeros((40, 40)), 10), (np.tile([1.0, 2.0], (40, 20)), 1), (smooth_picture(0), 1)):
        with pytest.raises(UserError, match="all patches are alike"):
            make_patches([source("a", image)], Cutting(patch_size=4), n_patches, 0)
