"""Bars: images in which each of the rows and columns lights up with the same probability, plus Gaussian noise.

The generator is itself a model of Eq. (1), so that samples and the exact log-likelihood come from one place: linear,
or (paper, Appendix B) with a first layer in which one bar of a pair suppresses the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tvae.data.dataset import DataConfig, DataConfigT, Dataset, DatasetConfig, with_paper_model
from tvae.fields import fill, option
from tvae.inference.streams import generator
from tvae.model.decoder import Mlp, decoder_from
from tvae.model.vae import Model, gaussian_model
from tvae.training.points import InMemory

SIMILAR = 0.95  # cosine from which on a latent counts as a bar
EXACT_LATENTS_MAX = 20  # 2^20 states of a data point are as many as can be listed


@dataclass
class BarsConfig(DatasetConfig):
    names = ("bars",)
    schema = "bars"

    name: str = option("bars", "bars", choices=names)
    n_points: int = option(500, "images", ge=1)
    size: int = option(4, "pixels along a side; there are 2 * size bars", ge=2, le=EXACT_LATENTS_MAX // 2)
    mean_bars: float = option(2.0, "bars in an image, on average", gt=0)
    sigma2: float = option(0.01, "variance of the noise", gt=0)
    correlated: bool = option(False, "the first bar suppresses the second, the last one the last but one")
    seed: int = option(0, "seed of the images, apart from the run's seed: runs see the same data", ge=0)

    def complete(self, config: DataConfigT, opened: Any) -> DataConfigT:
        if config.model.likelihood != "slab":
            ea = fill(config.ea, selection="fitness", n_parents=5, n_children=4, mutation="uniform")
            config = replace(config, ea=ea)
        completed = with_paper_model(config, config.model.n_latents or 2 * self.size, sigma2=0.01, impute=True)
        lr = fill(config.lr, max=0.01, epochs_per_cycle=20)
        return replace(completed, lr=lr, epochs=config.epochs or 200)

    def problems(self, config: DataConfig) -> list[str]:
        n_bars = 2 * self.size
        too_many = f"dataset.mean_bars={self.mean_bars}: must be below the number of bars, {n_bars}"
        return super().problems(config) + ([too_many] if self.mean_bars >= n_bars else [])

    def recovered(self, model: Model) -> dict[str, int]:
        similarity = match_bars(model, self.size)
        return {"bars": len(similarity), "bars_found": int((similarity > SIMILAR).sum())}

    @torch.no_grad()
    def make(self, config: DataConfig, opened: Any) -> Dataset:
        truth = generating_model(self)
        data = truth.sample(self.n_points, generator(self.seed, "bars"))
        return Dataset(InMemory(data), (self.size, self.size), truth=truth)


def bar_images(size: int) -> Tensor:
    """(2 * size, size * size): every row, then every column of a picture."""
    line = torch.eye(size, dtype=torch.float64)
    rows = line[:, :, None].expand(-1, -1, size)
    columns = line[:, None, :].expand(-1, size, -1)
    return torch.cat([rows, columns]).flatten(1)


@torch.no_grad()
def match_bars(model: Model, size: int) -> Tensor:
    """Each true bar's cosine with the one-hot output matched to it, a different one for each bar; at best 1."""
    parameters = {name: value.cpu().double() for name, value in model.decoder.state_dict().items()}
    decoder = decoder_from(model.decoder.spec(), parameters)
    z = torch.eye(model.n_latents, dtype=torch.float64)
    fields = decoder(z) - decoder(torch.zeros_like(z[:1]))
    cosine = torch.nn.functional.cosine_similarity(bar_images(size)[:, None], fields, dim=-1)
    from scipy.optimize import linear_sum_assignment  # a third of a second: where bars are matched

    bars, latents = linear_sum_assignment(-cosine.numpy())
    found = torch.zeros(2 * size, dtype=torch.float64)
    found[bars] = cosine[bars, latents]
    return found


def inhibited_pairs(size: int) -> list[tuple[int, int]]:
    """(a, b): bar a suppresses bar b, in the correlated variant."""
    last = 2 * size - 1
    return [(0, 1), (last, last - 1)]


def generating_model(config: BarsConfig) -> Model:
    bars = bar_images(config.size)
    n_bars = len(bars)
    rng = torch.Generator()  # whose draws are all overwritten below
    linear = Mlp(n_bars, [], config.size**2, "relu", rng).double()
    with torch.no_grad():
        linear.weights[0].copy_(bars)
    decoder = linear
    if config.correlated:
        decoder = Mlp(n_bars, [n_bars], config.size**2, "relu", rng).double()
        decoder.start_from_linear(linear)
        with torch.no_grad():
            for a, b in inhibited_pairs(config.size):
                decoder.weights[0][a, b] = -1.0
    pi = torch.full((n_bars,), config.mean_bars / n_bars, dtype=torch.float64)
    return gaussian_model(decoder, pi, config.sigma2)
