"""The slab model before training: means by k-means on smoothed data points, one latent on in the best state of each.

With U = 0 the first E-step assigns every data point to its nearest mean, and the first M-step finds the directions.
Where values are missing, U = 0 makes them independent of the known ones, and EM takes long to find out that they are
not: there the first visit and M-step take the data points as completed by a guess (`Source.completed`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations, islice

import torch
from torch import Tensor

from tvae.inference.evolution import EaConfig
from tvae.inference.streams import Stream, generator
from tvae.model.covariance import Whitening
from tvae.model.decoder import Mlp
from tvae.model.packed import pack
from tvae.model.slab import Slab
from tvae.model.vae import Model
from tvae.training.backend import Minibatch, VisitFunction
from tvae.training.m_step import Totals, update_closed_forms
from tvae.training.points import Points, Reader
from tvae.training.team import Team

N_CLUSTERED = 12_000  # data points that the means are found on
N_ROUNDS = 8
BLUR = 1.0  # pixels
CHUNK = 8192


@torch.no_grad()
def start_slabs(
    model: Model,
    points: Points,
    completed: Reader,
    shape: tuple[int, ...],
    seed: int,
    whitening: Whitening | None = None,
) -> None:
    """Set the decoder's weights, and the states of this rank's `points`; `completed` reads all data points.

    `whitening`: by which they have been whitened.
    """
    decoder = model.decoder
    assert isinstance(decoder, Mlp)
    rng, n_latents = generator(seed, "clusters"), model.n_latents
    blur = smoothing(shape)
    if whitening is not None:
        blur = whitening.inverse @ blur @ whitening.root
    blur = blur.to(model.pi)
    chosen = torch.randperm(points.n_points, generator=rng)[:N_CLUSTERED].to(model.pi.device)
    means = k_means(completed.take(chosen)[0] @ blur.T, n_latents, rng)
    decoder.weights[0].copy_(means)
    decoder.biases[0].zero_()
    by_rank = first_combinations(n_latents, points.sets.tensor.shape[1]).to(means.device)
    n_used = by_rank.shape[1]
    for index in torch.arange(len(points.own), device=means.device).split(CHUNK):
        x, _ = completed.take(index + points.own.start)
        nearest = _distances(x @ blur.T, means).topk(n_used, dim=1, largest=False).indices  # (B, n_used)
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


@torch.no_grad()
def learn_completed(
    model: Model, visit: VisitFunction, ea: EaConfig, points: Points, completed: Reader, team: Team
) -> None:
    """One M-step from the first states and completed data points; sigma2 stays as it is."""
    assert isinstance(model.likelihood, Slab)
    sigma2, totals = model.likelihood.sigma2.clone(), Totals(model, True, False)
    for index in torch.arange(len(points.own), device=sigma2.device).split(CHUNK):
        number = index + points.own.start
        x, packed = completed.take(number)[0], points.sets.take(index)[:, :1]
        visit(model, replace(ea, n_generations=0), 0.0, Minibatch(x, None, packed, Stream(0, number), len(x)), totals)
    team.add(list(totals.sums.values()))
    update_closed_forms(model, totals)
    model.likelihood.sigma2.copy_(sigma2)


def smoothing(shape: tuple[int, ...]) -> Tensor:
    """(D, D): a blur within a patch of this shape (rows, columns, channels); of other data the identity."""
    if len(shape) != 3:
        return torch.eye(int(torch.tensor(shape).prod()))

    def line(n: int) -> Tensor:
        place = torch.arange(n, dtype=torch.float64)
        return torch.exp(-0.5 * ((place[:, None] - place) / BLUR) ** 2)

    both = torch.kron(torch.kron(line(shape[0]), line(shape[1])), torch.eye(shape[2], dtype=torch.float64))
    return both / both.sum(1, keepdim=True)


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
