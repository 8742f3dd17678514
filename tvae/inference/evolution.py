"""The evolutionary operators: parent selection, one-point crossover, mutation.

Each is a pure function of states or fitness and of the data points' random streams, and treats every data point by
itself, but for the selection `authors`. "Fitness" is the log-joint; Eq. (9) of the paper is the same up to terms that
do not depend on the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from tvae.fields import Open, option
from tvae.inference.streams import Stream


def _draw_in_proportion(share: Tensor, n_parents: int, rng: Stream) -> Tensor:
    """(B, C) shares, not normalised -> (B, P) places, drawn with replacement."""
    cumulative = share.cumsum(1)
    draw = rng.uniform(n_parents, dtype=share.dtype) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, draw, right=True).clamp_(max=share.shape[1] - 1)


def select_by_fitness(fitness: Tensor, n_parents: int, rng: Stream) -> Tensor:
    """Parents in proportion to the fitness above the worst of the same data point (deviation 1 in the README)."""
    share = fitness - fitness.amin(1, keepdim=True)
    share = share + (share.amax(1, keepdim=True) == 0)  # all equally fit: each with the same probability
    return _draw_in_proportion(share, n_parents, rng)


def select_by_posterior(fitness: Tensor, n_parents: int, rng: Stream) -> Tensor:
    """Parents in proportion to q, Eq. (3)."""
    return _draw_in_proportion(fitness.softmax(1), n_parents, rng)


def select_best(fitness: Tensor, n_parents: int, rng: Stream) -> Tensor:
    """The P fittest, in order; nothing is drawn."""
    return fitness.topk(n_parents, dim=1).indices


def select_uniformly(fitness: Tensor, n_parents: int, rng: Stream) -> Tensor:
    """Parents with the same probability each."""
    return rng.integers(fitness.shape[1], n_parents)


def select_as_authors(fitness: Tensor, n_parents: int, rng: Stream) -> Tensor:
    """Selection of the published program (deviation 1 in the README): shares sum to one over the minibatch.

    With f = fitness - 2 min(least fitness of the minibatch, 0) and F its sum over the minibatch, of C states the k-th
    becomes a parent with probability f_{k+1} / F, and the last one with all the rest: of B data points, for about
    1 - 1/B of the parents. The last one is the fittest of a set, see `EaConfig.keeps_order`, and any of the children.
    """
    least = torch.cat([fitness.flatten(), fitness.new_zeros(1)]).amin()  # a rank may have no data point
    share = fitness - 2 * least
    cumulative = (share / share.sum()).cumsum(1)
    n_below = torch.searchsorted(cumulative, rng.uniform(n_parents, dtype=share.dtype), right=True)
    return (n_below - 1) % fitness.shape[1]


Selection = Callable[[Tensor, int, Stream], Tensor]  # (B, C) fitness, P -> (B, P) places of the parents
SELECTIONS: dict[str, Selection] = {
    "fitness": select_by_fitness,
    "posterior": select_by_posterior,
    "best": select_best,
    "uniform": select_uniformly,
    "authors": select_as_authors,
}


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


def mutate_uniformly(z: Tensor, n_flips: int, mean_activity: Tensor, rng: Stream) -> Tensor:
    """`n_flips` latents of each child flip, see `draw_flips`."""
    _, n_parents, n_children, n_latents = z.shape
    return flip(z, draw_flips(n_latents, n_parents, n_children, n_flips, rng))


def mutate_sparsely(z: Tensor, n_flips: int, mean_activity: Tensor, rng: Stream) -> Tensor:
    """Every latent flips by itself, towards the prior's activity.

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


Mutation = Callable[[Tensor, int, Tensor, Stream], Tensor]  # (B, P, C, H), n_flips, latents on -> (B, P, C, H)
MUTATIONS: dict[str, Mutation] = {"uniform": mutate_uniformly, "sparse": mutate_sparsely}


def cross(parents: Tensor, n_children: int, rng: Stream) -> Tensor:
    """(B, P, H) -> (B, P, n_children, H): each parent up to a random point, then a random other parent."""
    batch, n_parents, n_latents = parents.shape
    step = rng.integers(max(1, n_parents - 1), n_parents, n_children) + 1
    mate = (torch.arange(n_parents, device=parents.device)[:, None] + step) % n_parents
    point = 1 + rng.integers(max(1, n_latents - 1), n_parents, n_children, 1)
    other = parents.gather(1, mate.flatten(1)[..., None].expand(-1, -1, n_latents)).view(
        batch, n_parents, n_children, n_latents
    )
    head = torch.arange(n_latents, device=parents.device) < point
    return torch.where(head, parents[:, :, None], other)


@dataclass
class EaConfig:
    selection: Open[str] = option(
        "fitness", "which states become parents; authors: as the published program; null: by the data", is_open=True,
        choices=tuple(SELECTIONS),
    )  # fmt: skip
    n_parents: Open[int] = option(5, "parents in a generation; null: by the data", is_open=True, ge=1)
    n_children: Open[int] = option(4, "children of each parent; null: by the data", is_open=True, ge=1)
    n_generations: int = option(1, "generations in a visit", ge=1)
    mutation: Open[str] = option(
        "uniform", "which latents flip: any, or towards the prior's activity; residual: those that explain best what a "
        "state leaves (linear decoders); null: by the model", is_open=True, choices=(*MUTATIONS, "residual"),
    )  # fmt: skip
    n_flips: int = option(1, "latents that flip in a child (sparse: on average)", ge=1)
    crossover: bool = option(False, "one-point crossover before mutation")
    most_on: Open[int] = option(
        2, "residual: latents that are on in a state, at most; null: by the data", is_open=True, ge=1, le=8
    )
    n_candidates: Optional[int] = option(
        None, "residual: latents that are tried, those of highest prior; null: all, of pictures 40", is_open=True, ge=1
    )
    far_below: float = option(12.0, "residual: children expected so many nats below the best are not evaluated", gt=0)

    @property
    def is_by_flips(self) -> bool:
        """True if every child is a parent with a given number of latents flipped."""
        return self.mutation == "uniform" and not self.crossover

    @property
    def keeps_order(self) -> bool:
        """True if the states of a set stay in ascending order of the fitness they had when they were last visited."""
        return self.selection == "authors"


def breed(parents: Tensor, ea: EaConfig, mean_activity: Tensor, rng: Stream) -> Tensor:
    """(B, P, H) -> (B, P * n_children, H): crossover, if wanted, and mutation."""
    if ea.crossover:
        children = cross(parents, ea.n_children, rng)
    else:
        children = parents[:, :, None].expand(-1, -1, ea.n_children, -1)
    return MUTATIONS[ea.mutation](children, ea.n_flips, mean_activity, rng).flatten(1, 2)
