"""Phi: the sets of binary states, S distinct ones for each data point, packed (`model.packed`).

A state's `code` is the sum (modulo 2^64) of one fixed random 64-bit
number for each latent that is on: flipping a latent adds or subtracts its number, equal states have equal codes, and
two different states among the few hundred of a data point share one with probability below 1e-14.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.fields import Open, option
from tvae.inference.streams import generator
from tvae.model.packed import byte_table, pack


@dataclass
class StatesConfig:
    n_states: Open[int] = option(64, "S: states of each data point; null: by the model", is_open=True, ge=1)
    shared: bool = option(True, "all data points start from the same states, else each from its own")
    memmap: bool = option(
        False, "states live in a file of the run directory, for more than fit into memory (CPU)", for_arrays=False
    )


@lru_cache
def code_numbers(n_latents: int, device: torch.device) -> Tensor:
    """(H,) int64: the random number of each latent, the same in every run."""
    return torch.randint(-(2**63), 2**63 - 1, (n_latents,), generator=generator(0, "codes")).to(device)


@lru_cache
def _code_table(n_latents: int, device: torch.device) -> Tensor:
    """(ceil(H/8) * 256,) int64: the code of every value of every byte."""
    numbers = F.pad(code_numbers(n_latents, device), (0, -n_latents % 8)).view(-1, 1, 8)
    return (numbers * byte_table(torch.int64, device)).sum(-1).flatten()


def codes(packed: Tensor, n_latents: int) -> Tensor:
    """(..., ceil(H/8)) uint8 -> (...) int64."""
    return _code_table(n_latents, packed.device)[packed + _byte_offsets(packed.shape[-1], packed.device)].sum(-1)


@lru_cache
def _byte_offsets(n_bytes: int, device: torch.device) -> Tensor:
    """(ceil(H/8),): the place in the code table at which each byte's part begins."""
    return torch.arange(0, n_bytes * 256, 256, dtype=torch.int64, device=device)


def is_repeated(code: Tensor) -> Tensor:
    """(B, C) int64 -> (B, C) bool: true where the same code stands further left in the row."""
    in_order, place = code.sort(dim=1, stable=True)
    repeated = F.pad(in_order[:, 1:] == in_order[:, :-1], (1, 0))
    return torch.zeros_like(repeated).scatter(1, place, repeated)


def keep_best(log_joint: Tensor, code: Tensor, n_states: int, in_order: bool = False) -> Tensor:
    """(B, C) fitness and codes -> (B, S) places of the S fittest distinct states: Eq. (8) for all pairs at once.

    `in_order`: the fittest last.
    """
    fitness = log_joint.masked_fill(is_repeated(code), -torch.inf)
    kept = fitness.topk(n_states, dim=1, sorted=in_order).indices
    return kept.flip(1) if in_order else kept


def put_rows(states: Tensor, index: Tensor, packed: Tensor) -> None:
    """states[index] = packed, for (N, S, ceil(H/8)) and (B, S, ceil(H/8)); eight bytes at a time if they divide."""
    unit = torch.int64 if states.shape[1:].numel() % 8 == 0 else torch.uint8
    states.flatten(1).view(unit)[index] = packed.flatten(1).view(unit)


def all_states(n_latents: int) -> Tensor:
    """(2^H, H) uint8: every state there is."""
    return (torch.arange(2**n_latents)[:, None] >> torch.arange(n_latents) & 1).to(torch.uint8)


def init_states(
    out: Tensor,
    pi: Tensor,
    shared: bool,
    rng: Callable[[int], torch.Generator],
    first: int = 0,
    n_points: int | None = None,
    release: Callable[[], None] = lambda: None,
) -> None:
    """Fill `out` (N, S, ceil(H/8)) uint8 from the prior: S distinct states for each data point, or one set for all.

    `rng`: for a set that begins with this data point. `first`, `n_points`: the number of the first data point and of
    all, where `out` is only of some of them. `release`: called now and then, to drop what is in memory of a file.
    """
    n_latents, n_states = len(pi), out.shape[1]
    n_all = 2**n_latents if n_latents <= 12 else 0
    draw = _draw_from_all if n_all else _draw_by_rejection
    n_points = len(out) if n_points is None else n_points
    n_at_once = max(1, 2**24 // (n_states * n_latents + n_all))
    one_set = draw(pi, n_states, 1, rng(0)) if n_states == n_all or shared else None
    for start in range(first - first % n_at_once, first + len(out), n_at_once):
        low, high = max(start, first), min(start + n_at_once, first + len(out))
        if one_set is not None:
            drawn = one_set
        else:  # drawn together, so that a data point gets the same states on any rank
            drawn = draw(pi, n_states, min(n_at_once, n_points - start), rng(start))[low - start : high - start]
        out[low - first : high - first] = drawn
        release()


def _draw_from_all(pi: Tensor, n_states: int, n_sets: int, rng: torch.Generator) -> Tensor:
    """Sampling without replacement from all 2^H states: the S largest of log p(z) + Gumbel noise."""
    z = all_states(len(pi))
    log_prior = z.to(pi.dtype) @ torch.logit(pi)
    noise = -torch.rand(n_sets, len(z), generator=rng, dtype=torch.float64).log().neg().log()
    return pack(z)[(log_prior + noise).topk(n_states, dim=1).indices]


def _draw_by_rejection(pi: Tensor, n_states: int, n_sets: int, rng: torch.Generator) -> Tensor:
    """The first S distinct ones of a row of draws. Where the prior is too sharp for S, it is flattened step by step."""
    n_latents, n_draws = len(pi), 2 * n_states + 16
    p = pi
    packed = torch.empty(n_sets, 0, (n_latents + 7) // 8, dtype=torch.uint8)
    while True:
        z = torch.rand(n_sets, n_draws, n_latents, generator=rng, dtype=p.dtype) < p
        packed = torch.cat([packed, pack(z)], dim=1)
        repeated = is_repeated(codes(packed, n_latents))
        if (~repeated).sum(1).min() >= n_states:
            first = repeated.to(torch.int8).argsort(dim=1, stable=True)[:, :n_states]
            return packed.gather(1, first[..., None].expand(-1, -1, packed.shape[-1]))
        p = 0.8 * p + 0.1
