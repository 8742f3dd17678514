"""The evolutionary operators: parent selection, one-point crossover, mutation.

Each is a pure function of states or fitness and of the data points' random streams, and treats every data point by
itself. "Fitness" is the log-joint; Eq. (9) of the paper is the same up to terms that do not depend on the state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.streams import Stream

SELECTIONS = ("fitness", "posterior", "best", "uniform")
MUTATIONS = ("uniform", "sparse")


def select_parents(fitness: Tensor, n_parents: int, selection: str, rng: Stream) -> Tensor:
    """(B, C) -> (B, P) places of parents, drawn with replacement, or for `best` the P fittest in order.

    `fitness`: in proportion to the fitness above the worst of the same data point (deviation 1 in the README);
    `posterior`: in proportion to q, Eq. (3); `uniform`: each with the same probability.
    """
    if selection == "best":
        return fitness.topk(n_parents, dim=1).indices
    if selection == "uniform":
        return rng.integers(fitness.shape[1], n_parents)
    if selection == "posterior":
        share = fitness.softmax(1)
    else:
        share = fitness - fitness.amin(1, keepdim=True)
        share = share + (share.amax(1, keepdim=True) == 0)  # all equally fit: each with the same probability
    reached = share.cumsum(1)
    draw = rng.uniform(n_parents, dtype=share.dtype) * reached[:, -1:]
    return torch.searchsorted(reached, draw, right=True).clamp_(max=fitness.shape[1] - 1)


def draw_flips(n_latents: int, n_parents: int, n_children: int, n_flips: int, rng: Stream) -> Tensor:
    """(B, P, C, n_flips): the latents that `uniform` mutation flips, distinct for each child.

    With one flip to a child, the children of one parent also differ from each other.
    """
    if n_flips == 1:
        return rng.distinct_integers(n_latents, n_parents, n_children)[..., None]
    return rng.distinct_integers(n_latents, n_parents, n_children, n_flips)


def flip(z: Tensor, flips: Tensor) -> Tensor:
    """(..., H) states with the latents (..., n_flips) inverted."""
    return z.scatter(-1, flips, 1 - z.gather(-1, flips))


def mutate_sparsely(z: Tensor, n_flips: float, mean_activity: Tensor, rng: Stream) -> Tensor:
    """(B, C, H) -> (B, C, H): every latent flips by itself, towards the prior's activity.

    Expected flips on and off, u and d, obey u + d = n_flips and u - d = mean_activity - |z|, as far as n_flips and the
    latents that are on and off allow (of a state with none on, none can flip off).
    """
    n_latents = z.shape[-1]
    n_on = z.sum(-1, keepdim=True)
    change = (mean_activity - n_on).clamp(-n_flips, n_flips)
    p_on = (n_flips + change) / 2 / (n_latents - n_on).clamp(min=1)
    p_off = (n_flips - change) / 2 / n_on.clamp(min=1)
    flipped = rng.uniform(*z.shape[1:], dtype=z.dtype) < torch.where(z > 0, p_off, p_on)
    return torch.where(flipped, 1 - z, z)


def cross(parents: Tensor, n_children: int, rng: Stream) -> Tensor:
    """(B, P, H) -> (B, P * n_children, H): each parent up to a random point, then a random other parent."""
    batch, n_parents, n_latents = parents.shape
    step = rng.integers(max(1, n_parents - 1), n_parents, n_children) + 1
    mate = (torch.arange(n_parents, device=parents.device)[:, None] + step) % n_parents
    point = 1 + rng.integers(max(1, n_latents - 1), n_parents, n_children, 1)
    other = parents.gather(1, mate.flatten(1)[..., None].expand(-1, -1, n_latents)).view(
        batch, n_parents, n_children, n_latents
    )
    head = torch.arange(n_latents, device=parents.device) < point
    return torch.where(head, parents[:, :, None], other).flatten(1, 2)
