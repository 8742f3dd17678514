"""Bars: images in which each of the rows and columns lights up with the same probability, plus Gaussian noise.

The generator is itself a model of Eq. (1), so that samples and the exact log-likelihood come from one place: linear,
or (paper, Appendix B) with a first layer in which one bar of a pair suppresses the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.config import BarsConfig
from tvae.datasets import Dataset
from tvae.decoder import Decoder
from tvae.model import Model
from tvae.streams import generator


def bar_images(size: int) -> Tensor:
    """(2 * size, size * size): every row, then every column of a picture."""
    line = torch.eye(size, dtype=torch.float64)
    rows = line[:, :, None].expand(-1, -1, size)
    columns = line[:, None, :].expand(-1, size, -1)
    return torch.cat([rows, columns]).flatten(1)


def inhibited_pairs(size: int) -> list[tuple[int, int]]:
    """(a, b): bar a suppresses bar b, in the correlated variant."""
    last = 2 * size - 1
    return [(0, 1), (last, last - 1)]


def generating_model(config: BarsConfig) -> Model:
    bars = bar_images(config.size)
    n_bars = len(bars)
    rng = torch.Generator()  # whose draws are all overwritten below
    linear = Decoder(n_bars, [], config.size**2, "relu", rng).double()
    with torch.no_grad():
        linear.weights[0].copy_(bars)
    decoder = linear
    if config.correlated:
        decoder = Decoder(n_bars, [n_bars], config.size**2, "relu", rng).double()
        decoder.start_from_linear(linear)
        with torch.no_grad():
            for a, b in inhibited_pairs(config.size):
                decoder.weights[0][a, b] = -1.0
    pi = torch.full((n_bars,), config.mean_bars / n_bars, dtype=torch.float64)
    return Model(decoder, pi, config.sigma2)


@torch.no_grad()
def make(config: BarsConfig) -> Dataset:
    truth = generating_model(config)
    data = truth.sample(config.n_points, generator(config.seed, "bars"))
    return Dataset(data, (config.size, config.size), truth=truth)
