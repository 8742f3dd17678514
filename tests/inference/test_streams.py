import itertools

import pytest
import torch
from reference import PointStream, choose_distinct

from tvae.inference.streams import Stream, derive, generator


def stream(n_points=3, seed=5):
    return Stream(seed, torch.arange(n_points))


def test_splitmix64_gives_the_published_numbers():
    rng = stream(1)
    rng.key = torch.tensor([1234567])
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [value % 2**64 for value in rng.bits(4)[0].tolist()] == expected


def test_agrees_with_plain_integers():
    rng = Stream(derive(3, "search"), torch.tensor([17]))
    slow = PointStream(derive(3, "search"), 17)
    assert [v % 2**64 for v in rng.bits(3)[0].tolist()] == [slow.bits() for _ in range(3)]
    assert rng.uniform(2)[0].tolist() == [slow.uniform() for _ in range(2)]


def test_a_data_point_draws_the_same_in_any_batch():
    whole = Stream(1, torch.arange(10)).uniform(4)
    part = Stream(1, torch.tensor([7, 2])).uniform(4)
    assert torch.equal(part, whole[[7, 2]])


def test_successive_calls_continue():
    at_once, in_parts = stream(), stream()
    assert torch.equal(at_once.bits(5), torch.cat([in_parts.bits(2), in_parts.bits(3)], 1))


def test_uniform_is_uniform_and_uncorrelated():
    u = stream(200).uniform(500)
    counts = torch.histc(u, 20, 0, 1)
    assert ((counts - 5000).abs() < 4 * (5000 * 0.95) ** 0.5).all()
    correlation = torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten(), u.roll(1, 0)[:, 1:].flatten()]))
    assert (correlation - torch.eye(3)).abs().max() < 4 / 10**2.5


@pytest.mark.parametrize(("high", "count"), [(5, 2), (5, 5), (4, 3)])
def test_distinct_integers_are_distinct_and_every_subset_equally_likely(high, count):
    n = 20000
    drawn = stream(n).distinct_integers(high, 1, count)[:, 0].sort(1).values
    assert (drawn[:, 1:] > drawn[:, :-1]).all()
    assert drawn.min() >= 0
    assert drawn.max() < high
    subsets = list(itertools.combinations(range(high), count))
    p = 1 / len(subsets)
    for subset in subsets:
        share = (drawn == torch.tensor(subset)).all(1).double().mean()
        assert abs(share - p) <= 4 * (p * (1 - p) / n) ** 0.5


def test_purposes_are_separate():
    assert derive(0, "order", 1) != derive(0, "order", 2) != derive(1, "order", 2)
    assert generator(0, "a").initial_seed() != generator(0, "b").initial_seed()


@pytest.mark.parametrize("count", [0, 1, 4, 9, 40])
def test_what_is_drawn_ahead_is_what_would_be_drawn(count):
    ahead, plain = stream(), stream()
    assert torch.equal(ahead.bits(2), plain.bits(2))
    ahead.draw_ahead(count)
    for _ in range(3):
        assert torch.equal(ahead.distinct_integers(9, 2, 3), plain.distinct_integers(9, 2, 3))
        assert torch.equal(ahead.uniform(3), plain.uniform(3))
    assert ahead.n_drawn == plain.n_drawn == 2 + 3 * (6 + 3)


@pytest.mark.parametrize(("high", "count"), [(1, 1), (2, 2), (9, 9), (10, 9), (64, 9)])
def test_distinct_integers_are_those_of_floyds_algorithm(high, count):
    drawn = stream(500).distinct_integers(high, 2, count)
    for n in range(500):
        slow = PointStream(5, n)
        assert drawn[n].tolist() == [choose_distinct(high, count, slow) for _ in range(2)]
