import pytest
import torch

from tvae.inference.evolution import (
    SELECTIONS,
    EaConfig,
    breed,
    cross,
    draw_flips,
    flip,
    mutate_sparsely,
    mutate_uniformly,
)
from tvae.inference.streams import Stream


def streams(n_points, seed=0):
    return Stream(seed, torch.arange(n_points))


def parent_shares(fitness, selection, n_parents=20000):
    """(B, C): how often each state became a parent."""
    place = SELECTIONS[selection](fitness, n_parents, streams(len(fitness)))
    return torch.stack([torch.bincount(row, minlength=fitness.shape[1]) for row in place]) / n_parents


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_rank_may_have_no_data_point_of_a_minibatch(selection):
    assert SELECTIONS[selection](torch.empty(0, 7), 3, streams(0)).shape == (0, 3)


@pytest.mark.parametrize("batch", [1, 2, 32])
@pytest.mark.parametrize("selection", ["fitness", "posterior", "uniform"])
def test_parents_are_drawn_in_proportion_per_data_point(batch, selection):
    rng = torch.Generator().manual_seed(batch)
    fitness = -100 + 3 * torch.randn(batch, 7, generator=rng, dtype=torch.float64)
    expected = {
        "fitness": (fitness - fitness.amin(1, keepdim=True)),
        "posterior": fitness.exp(),
        "uniform": torch.ones_like(fitness),
    }[selection]
    expected = expected / expected.sum(1, keepdim=True)
    shares = parent_shares(fitness, selection)
    tolerance = 4 * (expected * (1 - expected) / 20000).sqrt() + 1e-12
    assert ((shares - expected).abs() <= tolerance).all()


@pytest.mark.parametrize("level", [-100, 40])  # a density may exceed one, and the fitness zero
@pytest.mark.parametrize("batch", [1, 2, 32])
def test_the_published_program_normalises_over_the_minibatch(batch, level):
    """Place by place: a draw below the first share, and one above them all, fall on the last place."""
    rng = torch.Generator().manual_seed(batch)
    fitness = level + 3 * torch.randn(batch, 7, generator=rng, dtype=torch.float64)
    values = [value for row in fitness.tolist() for value in row]
    offset = 2 * min(*values, 0)
    total = sum(value - offset for value in values)
    for row, shares in zip(fitness.tolist(), parent_shares(fitness, "authors").tolist(), strict=True):
        expected = [(value - offset) / total for value in row[1:]]
        expected.append(1 - sum(expected))
        for share, p in zip(shares, expected, strict=True):
            assert abs(share - p) <= 4 * (p * (1 - p) / 20000) ** 0.5
        assert shares[-1] == pytest.approx(1 - 1 / batch, abs=0.2 if batch < 32 else 0.01)


def test_the_fittest_become_parents():
    fitness = torch.tensor([[1.0, 5.0, 3.0, 4.0], [9.0, 1.0, 2.0, 8.0]])
    place = SELECTIONS["best"](fitness, 2, streams(2))
    assert place.tolist() == [[1, 3], [0, 3]], "in order"


@pytest.mark.parametrize("selection", ["fitness", "posterior"])
def test_equal_fitness_means_equal_chances(selection):
    shares = parent_shares(torch.full((2, 4), -1e6), selection)
    assert (shares - 0.25).abs().max() < 4 * (0.25 * 0.75 / 20000) ** 0.5


def test_very_unequal_fitness_is_no_problem():
    fitness = torch.tensor([[-1e30, -5.0, -3.0], [-1e4, -2.0, -2.0]])
    for selection in ("fitness", "posterior"):
        place = SELECTIONS[selection](fitness, 1000, streams(2))
        assert place.min() >= 1
        assert place.max() <= 2


@pytest.mark.parametrize("n_flips", [1, 3])
def test_uniform_mutation_flips_k_distinct_latents_uniformly(n_flips):
    z = (torch.rand(5000, 3, 4, 11, generator=torch.Generator().manual_seed(0)) < 0.4).float()
    child = mutate_uniformly(z, n_flips, torch.tensor(2.0), streams(5000))
    assert torch.equal(child, flip(z, draw_flips(11, 3, 4, n_flips, streams(5000))))
    changed = (child != z).float()
    assert (changed.sum(-1) == n_flips).all()
    p = n_flips / 11
    # children of one parent are not independent, parents are
    assert (changed.mean((0, 1, 2)) - p).abs().max() < 4 * (p * (1 - p) / 15000) ** 0.5
    if n_flips == 1:
        assert changed.sum(2).max() == 1, "the children of a parent differ"


@pytest.mark.parametrize(("n_on", "mean_activity"), [(0, 2.0), (3, 5.5), (6, 2.0), (12, 1.0), (4, 4.0)])
def test_sparse_mutation_aims_at_the_priors_activity(n_on, mean_activity):
    n, n_latents, n_flips = 40000, 12, 2
    z = torch.zeros(n, 1, 1, n_latents, dtype=torch.float64)
    z[..., :n_on] = 1
    child = mutate_sparsely(z, n_flips, torch.tensor(mean_activity), streams(n))
    change = max(-n_flips, min(n_flips, mean_activity - n_on))
    on, off = (n_flips + change) / 2, (n_flips - change) / 2
    if n_on == 0:
        off = 0
    if n_on == n_latents:
        on = 0
    flips = (child != z).double().sum(-1)
    assert flips.mean().item() == pytest.approx(on + off, abs=4 * (n_flips / n) ** 0.5)
    assert child.sum(-1).mean().item() == pytest.approx(n_on + on - off, abs=4 * (n_flips / n) ** 0.5)


def test_crossover_joins_a_head_and_another_parents_tail():
    rng = torch.Generator().manual_seed(0)
    parents = (torch.rand(50, 4, 9, generator=rng) < 0.5).float()
    children = cross(parents, 3, streams(50))
    mates = torch.zeros(4, 4)
    for b in range(50):
        for i in range(4):
            for child in children[b, i]:
                fits = {
                    j
                    for j in range(4)
                    for cut in range(1, 9)
                    if j != i and torch.equal(child, torch.cat([parents[b, i, :cut], parents[b, j, cut:]]))
                }
                assert fits
                for j in fits:
                    mates[i, j] += 1 / len(fits)
    assert (mates[~torch.eye(4, dtype=torch.bool)] > 20).all(), "every other parent is a mate now and then"


def test_a_single_parent_crosses_with_itself():
    parents = torch.tensor([[[1.0, 0.0, 1.0]]])
    assert torch.equal(cross(parents, 2, streams(1)), parents[:, :, None].expand(1, 1, 2, 3))


@pytest.mark.parametrize("crossover", [False, True])
@pytest.mark.parametrize("mutation", ["uniform", "sparse"])
def test_children_are_bred_parent_by_parent(mutation, crossover):
    """Crossover changes nothing if all parents are alike: children differ from theirs by mutation alone."""
    parents = (torch.arange(3.0)[:, None, None] == 1).expand(3, 4, 10).double()  # (B, P, H)
    ea = EaConfig(mutation=mutation, crossover=crossover, n_parents=4, n_children=5)
    children = breed(parents, ea, torch.tensor(2.0), streams(3))
    assert children.shape == (3, 20, 10)
    n_flipped = (children - parents.repeat_interleave(5, 1)).abs().sum(-1)
    assert (n_flipped == 1).all() if mutation == "uniform" else 0 < n_flipped.mean() < 2
    assert ea.is_by_flips == (mutation == "uniform" and not crossover)
