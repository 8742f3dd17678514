"""Random numbers: one seed, separate streams, the same draws whatever the batch.

Two kinds of source are derived from the run's `seed`. `generator` gives a `torch.Generator` for things drawn once
(weights, initial states, the order of an epoch). `Stream` gives every data point a counter-based stream of its own,
so that what the search draws for a data point depends on (seed, epoch, data point) alone: not on the batch it is in,
nor on the number of processes, nor on whether the run was interrupted before.
"""

from __future__ import annotations

import hashlib
import math
from functools import cached_property, lru_cache

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea and Flood 2014): a counter in steps of GOLDEN, then two rounds of shift, xor, multiply.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
ROUND_1 = 0xBF58476D1CE4E5B9 - 2**64
ROUND_2 = 0x94D049BB133111EB - 2**64


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, unrelated to those of other purposes."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose; what it draws is then moved, so that every device sees the same numbers."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def _shift_right(x: Tensor, n: int) -> Tensor:
    return (x >> n) & ((1 << (64 - n)) - 1)  # torch shifts int64 arithmetically


def mix(x: Tensor) -> Tensor:
    """SplitMix64's output function on int64, elementwise."""
    x = (x ^ _shift_right(x, 30)) * ROUND_1
    x = (x ^ _shift_right(x, 27)) * ROUND_2
    return x ^ _shift_right(x, 31)


@lru_cache
def _counters(first: int, count: int, device: torch.device) -> Tensor:
    """(count,): SplitMix64's counter before each of the numbers that follow the first."""
    return torch.arange(first + 1, first + count + 1, device=device) * GOLDEN


@lru_cache
def _floyd_tables(high: int, count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Tables for `distinct_integers`: places, the greatest number at each, (count, count) which are further left."""
    place = torch.arange(count, device=device)
    return place, place + high - count, place < place[:, None]


class Stream:
    """Independent random numbers for each of B data points; successive calls continue the streams."""

    def __init__(self, seed: int, index: Tensor, n_drawn: int = 0):
        """`index` (B,): the numbers of the data points in the whole data set; `n_drawn`: what was drawn before."""
        self.seed, self.index = seed, index
        self.n_drawn = n_drawn
        self._ahead = index.new_empty(len(index), 0)  # numbers drawn ahead, from the one numbered `_first_ahead`
        self._first_ahead = n_drawn

    @cached_property
    def key(self) -> Tensor:
        """(B,) int64: where each data point's stream starts."""
        return mix(self.index * GOLDEN + self.seed)

    def draw_ahead(self, count: int) -> None:
        """Draw the next numbers at once. Calls that follow take theirs from these: the same, in fewer operations."""
        self._ahead, self._first_ahead = self._draw(count), self.n_drawn

    def _draw(self, count: int) -> Tensor:
        return mix(self.key[:, None] + _counters(self.n_drawn, count, self.key.device))

    def bits(self, *shape: int) -> Tensor:
        """(B, *shape) int64, all 64 bits random."""
        count, first = math.prod(shape), self.n_drawn - self._first_ahead
        is_there = first + count <= self._ahead.shape[1]
        drawn = self._ahead[:, first : first + count] if is_there else self._draw(count)
        self.n_drawn += count
        return drawn.view(-1, *shape)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """(B, *shape) in [0, 1), multiples of 2^-24."""
        return _shift_right(self.bits(*shape), 40).to(dtype) * 2.0**-24

    def integers(self, high: int, *shape: int) -> Tensor:
        """(B, *shape) int64 in [0, high)."""
        return (_shift_right(self.bits(*shape), 32) * high) >> 32

    def distinct_integers(self, high: int, *shape: int) -> Tensor:
        """(B, *shape) int64 in [0, high), distinct along the last axis: Floyd's algorithm.

        Every subset of `shape[-1]` numbers is equally likely; their order within the subset is not.
        """
        count = shape[-1]
        place, top, is_left = _floyd_tables(high, count, self.key.device)
        draw = (_shift_right(self.bits(*shape), 32) * (top + 1)) >> 32
        # Chosen before: the draws before, and the top of each place whose own draw was chosen before.
        taken = ((draw[..., None] == draw[..., None, :]) & is_left).any(-1)
        whose_top = torch.where(draw < top[0], place, draw - top[0])  # at the place whose top was drawn, else its own
        for _ in range((count - 1).bit_length()):  # from place to place, twice as far at a time
            taken = taken | taken.gather(-1, whose_top)
            whose_top = whose_top.gather(-1, whose_top)
        return torch.where(taken, top, draw)
