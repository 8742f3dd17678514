"""The noise of a picture, from the picture alone: of smooth pictures to 2 %, of others roughly."""

import numpy as np
import pytest
import torch

from tvae.data.named import camera
from tvae.data.picture import add_noise, drop_pixels
from tvae.noise.level import at_extremes, diagonal_details, estimate_noise, smallest_directions


def smooth(height=128, width=160, n_channels=1):
    """(H, W, C) with values in 50..200."""
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / 23 + k) + np.cos(columns / 17 - k) for k in range(n_channels)]
    return 125 + 35 * np.stack(waves, -1)


def of_noise(pixels, noise, seeds=range(4)):
    """The mean estimate over some seeds."""
    return np.mean([estimate_noise(add_noise(pixels, noise, seed), None) for seed in seeds])


@pytest.mark.parametrize("noise", [5, 15, 25, 50])
@pytest.mark.parametrize("n_channels", [1, 3])
def test_noise_of_smooth_pictures(noise, n_channels):
    assert of_noise(smooth(n_channels=n_channels), noise) == pytest.approx(noise, rel=0.02)


@pytest.mark.parametrize("shape", [(64, 64), (65, 300), (40, 60), (300, 20)])
def test_noise_of_small_and_narrow_pictures(shape):
    """Fewer pixels tell less: 3 % here, 6 % where there are hardly more than a thousand."""
    assert of_noise(smooth(*shape), 20, range(8)) == pytest.approx(20, rel=0.03 if min(shape) >= 64 else 0.06)


@pytest.mark.parametrize(("scale", "offset"), [(1e-3, 0.0), (1 / 255, 0.0), (257, 0.0), (1.0, 1e6), (1e8, -1e9)])
def test_units_make_no_difference(scale, offset):
    noisy = add_noise(smooth(80, 80), 20, 0)
    before = noisy.copy()
    found = estimate_noise(noisy * scale + offset, None)
    assert found == pytest.approx(scale * estimate_noise(noisy, None), rel=1e-4)
    np.testing.assert_array_equal(noisy, before)


@pytest.mark.parametrize("noise", [5, 15, 25, 50])
def test_noise_of_a_photograph(noise):
    assert of_noise(camera().pixels, noise, [0]) == pytest.approx(noise, rel=0.06)


@pytest.mark.parametrize("noise", [10, 25, 50])
def test_with_missing_pixels_the_finest_details_tell(noise):
    """Levels are right to 15 %, and a little less where the picture's own detail passes for noise."""
    pixels = add_noise(camera().pixels, noise, seed=3)
    missing = drop_pixels(pixels.shape, 0.5, seed=4)
    assert abs(diagonal_details(pixels, None) - noise) < 0.15 * noise + 2
    pixels[missing] = 0
    assert abs(estimate_noise(pixels, missing) - noise) < 0.15 * noise + 2


def test_details_are_the_median_of_whole_blocks():
    pixels = np.random.default_rng(0).normal(size=(9, 8, 3))
    missing = drop_pixels(pixels.shape, 0.2, seed=0)
    found = []
    for i in range(8):
        for j in range(7):
            if not missing[i : i + 2, j : j + 2].any():
                found += list(np.abs(pixels[i, j] - pixels[i, j + 1] - pixels[i + 1, j] + pixels[i + 1, j + 1]) / 2)
    assert diagonal_details(pixels, missing) == pytest.approx(np.median(found) / 0.6745)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 9, 1), (9, 1, 3)])
def test_without_a_block_there_is_no_noise(shape):
    assert estimate_noise(np.random.default_rng(0).normal(size=shape), None) == 0.0


def test_without_a_known_block_there_is_no_noise():
    assert estimate_noise(np.ones((4, 4, 1)), np.ones((4, 4), dtype=bool)) == 0.0
    few = np.ones((70, 70), dtype=bool)
    few[::2, ::2] = False
    assert estimate_noise(smooth(70, 70), few) == 0.0


@pytest.mark.parametrize("shape", [(20, 20), (128, 128)])
def test_clean_pictures_have_hardly_any(shape):
    assert estimate_noise(smooth(*shape), None) < 0.1
    assert estimate_noise(np.full((*shape, 1), 7.0), None) == 0.0


@pytest.mark.parametrize("noise", [25, 50])
def test_clipped_noise_is_not_taken_for_less_noise(noise):
    """A noisy picture with dark parts, saved in 8 bit."""
    clipped = np.rint(add_noise(camera().pixels, noise, seed=0)).clip(0, 255)
    assert (clipped == 0).mean() > 0.05
    assert estimate_noise(clipped, None) == pytest.approx(noise, rel=0.05)


@pytest.mark.parametrize("noise", [5, 15])
def test_texture_with_quiet_places_is_not_taken_for_noise(noise):
    """Half of the picture is texture as fine as noise; the rest tells how much of it is noise."""
    texture = np.random.default_rng(1).choice([-20.0, 20.0], (192, 192, 1))
    texture[:, np.arange(192) % 48 >= 24] = 0
    noisy = add_noise(smooth(192, 192) + texture, noise, seed=0)
    assert diagonal_details(noisy, None) > noise + 3
    assert estimate_noise(noisy, None) == pytest.approx(noise, rel=0.1)


def test_noise_beside_a_black_frame():
    """The frame is clean, and most of the picture."""
    pixels = np.zeros((160, 160, 1))
    pixels[40:120, 40:120] = add_noise(smooth(80, 80), 10, seed=0)
    assert estimate_noise(pixels, None) == pytest.approx(10, rel=0.1)


def test_a_drawing_of_two_values_counts_as_a_whole():
    rows, columns = np.mgrid[:100, :100]
    assert estimate_noise(np.where((rows // 9 + columns // 7) % 2, 0.0, 255.0)[..., None], None) == 0.0


def test_extremes_are_those_of_known_values():
    pixels = np.array([[0.0, 3.0], [5.0, 4.0]])[..., None]
    assert at_extremes(pixels)[..., 0].tolist() == [[True, False], [True, False]]
    known = np.array([[False, True], [True, True]])
    assert at_extremes(pixels, known)[..., 0].tolist() == [[False, True], [True, False]]


def test_the_smallest_directions_ignore_what_varies_in_others():
    """Stripes of any strength are in few directions."""
    columns = torch.arange(100.0, dtype=torch.float64)
    noise = torch.randn(100, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nowhere = torch.zeros(100, 100, dtype=torch.bool)
    found = [smallest_directions(noise + a * torch.sin(columns / 3), nowhere) for a in (0, 10, 1000)]
    assert found == pytest.approx([1, 1, 1], rel=0.05)
    assert smallest_directions(noise, ~nowhere) == float("inf")
