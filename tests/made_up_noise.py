"""A made-up picture with flat parts, edges and texture, and noise of several kinds."""

import numpy as np
from scipy.ndimage import gaussian_filter

from tvae.data.corruption import add_correlated_noise, add_salt_and_pepper, count_photons
from tvae.data.picture import add_noise


def scene(side=128):
    """(side, side, 1) in 30..230: a ramp, bright and dark discs, and stripes in a corner."""
    y, x = np.mgrid[:side, :side] / side
    pixels = 60 + 80 * x
    for row, column, radius, value in ((0.3, 0.3, 0.2, 220), (0.7, 0.25, 0.15, 30), (0.35, 0.75, 0.18, 150)):
        pixels = np.where((y - row) ** 2 + (x - column) ** 2 < radius**2, value, pixels)
    stripes = 120 + 60 * np.sin(2 * np.pi * side / 6 * (x + y))
    return np.where((x > 0.65) & (y > 0.65), stripes, pixels)[..., None]


def leaves(side=128):
    """(side, side, 1) in 30..220: texture all over, small discs one above the other, as a lens draws them."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side]
    pixels = np.full((side, side), 120.0)
    for row, column, radius, value in rng.uniform((0, 0, 1, 30), (side, side, 3.5, 220), (side**2 // 6, 4)):
        pixels[(y - row) ** 2 + (x - column) ** 2 < radius**2] = value
    return gaussian_filter(pixels, 0.5)[..., None]


NOISY = {
    "gaussian 5": lambda clean: add_noise(clean, 5, 0),
    "gaussian 25": lambda clean: add_noise(clean, 25, 0),
    "gaussian 50": lambda clean: add_noise(clean, 50, 0),
    "poisson 4": lambda clean: count_photons(clean, 4, 0),
    "poisson 30": lambda clean: count_photons(clean, 30, 0),
    "correlated": lambda clean: add_correlated_noise(clean, 25, 1.0, 0),
    "saltpepper": lambda clean: add_salt_and_pepper(add_noise(clean, 15, 0), 0.02, 0),
}
