"""Slow errors taken out at half resolution."""

import numpy as np
import torch
from made_up_noise import NOISY, scene
from scipy.ndimage import zoom

from tvae.data.picture import Picture
from tvae.io.image_file import Image
from tvae.noise.choice import with_noise_model
from tvae.restoration.coarser import doubled, halved, refine_seen
from tvae.restoration.non_local.stage import refine_restored
from tvae.restoration.posterior_mean import Restored


def picture_of(noisy):
    return Picture(Image(noisy, noisy.dtype, 255.0, 0.0, is_bounded=True), noisy, None, None, 255.0)


def test_halved_means_of_two_by_two():
    values = torch.arange(30.0).reshape(1, 5, 6)
    expected = values[0, :4].reshape(2, 2, 3, 2).mean((1, 3))  # the odd row is left out
    torch.testing.assert_close(halved(values)[0], expected)


def test_a_slow_change_is_doubled_in_size():
    """Against another interpolation, away from the edges, for odd sizes too."""
    y, x = np.mgrid[:16, :20]
    change = np.sin(x / 5) + y / 8
    large = doubled(torch.from_numpy(change)[None], torch.zeros(1, 33, 41, dtype=torch.float64))[0].numpy()
    assert large.shape == (33, 41)
    expected = zoom(change, 2, order=3, mode="nearest", grid_mode=True)
    np.testing.assert_allclose(large[4:28, 4:36], expected[4:28, 4:36], atol=0.02)


def test_white_noise_is_refined_as_ever():
    picture = with_noise_model(picture_of(NOISY["gaussian 25"](scene(64))), "auto", None)
    first = Restored(picture.noisy, np.ones_like(picture.noisy))
    found, plain = (each(picture, lambda: first, False, "fast") for each in (refine_seen, refine_restored))
    np.testing.assert_array_equal(found.pixels, plain.pixels)
