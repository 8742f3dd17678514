import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import draw_states
from tvae.inference.states import all_states, code_numbers, codes, is_repeated, keep_best, put_rows
from tvae.model.packed import pack, unpack


@settings(max_examples=30, deadline=None)
@given(n_latents=st.integers(1, 70), seed=st.integers(0, 99))
def test_packing_there_and_back(n_latents, seed):
    z = torch.rand(3, 4, n_latents, generator=torch.Generator().manual_seed(seed)) < 0.3
    packed = pack(z)
    assert packed.shape == (3, 4, (n_latents + 7) // 8)
    assert torch.equal(unpack(packed, n_latents), z.float())
    expected = (z.long() * code_numbers(n_latents, z.device)).sum(-1)
    assert torch.equal(codes(packed, n_latents), expected)


def test_all_states_are_all_and_have_distinct_codes():
    z = all_states(10)
    assert len({tuple(row) for row in z.tolist()}) == 2**10
    assert len(codes(pack(z), 10).unique()) == 2**10


def test_repeated_codes_are_found_and_the_first_is_kept():
    code = torch.tensor([[3, 1, 3, 2, 1, 3], [1, 2, 3, 4, 5, 6]])
    expected = [[False, False, True, False, True, True], [False] * 6]
    assert is_repeated(code).tolist() == expected


def test_the_fittest_distinct_states_stay():
    code = torch.tensor([[1, 2, 1, 3]])
    fitness = torch.tensor([[5.0, 1.0, 5.0, 2.0]])
    assert sorted(keep_best(fitness, code, 2)[0].tolist()) == [0, 3]


@pytest.mark.parametrize("n_latents", [6, 40])
@pytest.mark.parametrize("shared", [True, False])
def test_initial_states_are_distinct_and_shared_or_not(n_latents, shared):
    pi = torch.full((n_latents,), 1 / n_latents, dtype=torch.float64)
    packed = draw_states(pi, 30, 5, shared, torch.Generator().manual_seed(0))
    assert packed.shape == (5, 30, (n_latents + 7) // 8)
    code = codes(packed, n_latents)
    assert not is_repeated(code).any()
    same = (code.sort(1).values == code[:1].sort(1).values).all()
    assert bool(same) == shared


@pytest.mark.parametrize("n_latents", [8, 30])
def test_initial_states_come_from_the_prior(n_latents):
    """A single state per set is a plain draw from the prior."""
    pi = torch.linspace(0.05, 0.6, n_latents, dtype=torch.float64)
    n = 20000
    z = unpack(draw_states(pi, 1, n, False, torch.Generator().manual_seed(1)), n_latents, torch.float64)[:, 0]
    assert ((z.mean(0) - pi).abs() <= 4 * (pi * (1 - pi) / n).sqrt()).all()


def test_a_prior_too_sharp_for_s_distinct_states_is_flattened():
    pi = torch.full((20,), 1e-6, dtype=torch.float64)
    packed = draw_states(pi, 500, 1, True, torch.Generator().manual_seed(0))
    assert not is_repeated(codes(packed, 20)).any()


@pytest.mark.parametrize("n_bytes", [3, 8])
def test_rows_are_put_where_they_belong(n_bytes):
    states, rows = torch.zeros(5, 3, n_bytes, dtype=torch.uint8), torch.arange(6 * n_bytes).to(torch.uint8)
    rows, index = rows.view(2, 3, n_bytes), torch.tensor([4, 1])
    put_rows(states, index, rows)
    assert torch.equal(states[index], rows)
    assert not states[[0, 2, 3]].any()
