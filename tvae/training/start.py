"""The slab model before training: means by k-means on smoothed data points, one latent on in the best state of each.

With U = 0 the first E-step assigns every data point to its nearest mean, and the first M-step finds the directions.
"""

from __future__ import annotations

from itertools import chain, combinations, islice

import torch
from torch import Tensor

from tvae.inference.streams import generator
from tvae.model.decoder import Mlp
from tvae.model.packed import pack
from tvae.model.vae import Model
from tvae.training.points import Batch, Points, Reader

N_CLUSTERED = 12_000  # data points that the means are found on
N_ROUNDS = 8
BLUR = 1.0  # pixels
CHUNK = 8192


@torch.no_grad()
def start_slabs(model: Model, points: Points, every: Reader, shape: tuple[int, ...], seed: int) -> None:
    """Set the decoder's weights, and the states of this rank's `points`; `every`: reads all data points there are."""
    decoder = model.decoder
    assert isinstance(decoder, Mlp)
    rng, n_latents = generator(seed, "clusters"), model.n_latents
    blur = smoothing(shape).to(model.pi)
    chosen = torch.randperm(points.n_points, generator=rng)[:N_CLUSTERED].to(model.pi.device)
    sample = smoothed(every.take(chosen), blur)
    means = k_means(sample, n_latents, rng)
    decoder.weights[0].copy_(means)
    decoder.biases[0].zero_()
    by_rank = first_combinations(n_latents, points.sets.tensor.shape[1]).to(means.device)
    n_used = by_rank.shape[1]
    for index in torch.arange(len(points.own), device=means.device).split(CHUNK):
        distances = _distances(smoothed(points.rows(index), blur), means)
        nearest = distances.topk(n_used, dim=1, largest=False).indices  # (B, n_used)
        z = by_rank.new_zeros(len(index), len(by_rank), n_latents)
        z.scatter_(2, nearest[:, None].expand(-1, len(by_rank), -1), by_rank.expand(len(index), -1, -1))
        points.sets.put(index, pack(z))


def first_combinations(n_latents: int, n_states: int) -> Tensor:
    """(S, K) uint8: distinct states of the K first of H latents: one on, then two and so on, and at last none."""
    every = chain.from_iterable(combinations(range(n_latents), n_on) for n_on in range(1, n_latents + 1))
    on = list(islice(every, n_states))
    z = torch.zeros(n_states, 1 + max(map(max, on)), dtype=torch.uint8)
    for state, latents in zip(z, on, strict=False):
        state[list(latents)] = 1
    return z


def smoothing(shape: tuple[int, ...]) -> Tensor:
    """(D, D): a blur within a patch of this shape (rows, columns, channels); of other data the identity."""
    if len(shape) != 3:
        return torch.eye(int(torch.tensor(shape).prod()))

    def line(n: int) -> Tensor:
        place = torch.arange(n, dtype=torch.float64)
        return torch.exp(-0.5 * ((place[:, None] - place) / BLUR) ** 2)

    both = torch.kron(torch.kron(line(shape[0]), line(shape[1])), torch.eye(shape[2], dtype=torch.float64))
    return both / both.sum(1, keepdim=True)


def smoothed(batch: Batch, blur: Tensor) -> Tensor:
    """(B, D): the average of observed values around each; zero where there are none."""
    x, observed = batch
    if observed is None:
        return x @ blur.T
    known = observed.to(x.dtype)
    return (x * known) @ blur.T / (known @ blur.T).clamp(min=1e-6)


def k_means(x: Tensor, n_means: int, rng: torch.Generator) -> Tensor:
    """(K, D): of data points x (N, D); a mean that has lost all of its points stays where it was."""
    means = x[torch.randperm(len(x), generator=rng)[torch.arange(n_means) % len(x)].to(x.device)].clone()
    for _ in range(N_ROUNDS):
        nearest = _distances(x, means).argmin(1)
        count = torch.bincount(nearest, minlength=n_means)[:, None].to(x.dtype)
        sums = torch.zeros_like(means).index_add_(0, nearest, x)
        means = torch.where(count > 0, sums / count.clamp(min=1), means)
    return means


def _distances(x: Tensor, means: Tensor) -> Tensor:
    """(N, K): squared distances without |x|^2."""
    return means.square().sum(1) - 2 * x @ means.T
