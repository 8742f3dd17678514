"""The E-step, which is the same in every backend: against a slow and obvious one, against the exact posterior."""

import pytest
import torch
from reference import PointStream, Theta
from reference import e_step as slow_e_step
from reference import elbo as slow_elbo

from tests.conftest import draw_states, random_data, random_mask, random_model
from tvae.backends import choose_backend, torch_backend
from tvae.inference.evolution import EaConfig
from tvae.inference.states import all_states, codes, is_repeated
from tvae.inference.streams import Stream
from tvae.model.packed import pack, unpack
from tvae.model.vae import log_likelihood


@pytest.fixture(params=["fastest", "torch"])
def e_step(request):
    """The E-step of the fastest backend for a model and search, and that of torch."""
    if request.param == "torch":
        return torch_backend.e_step
    return lambda model, ea, *arguments: choose_backend(model, ea).e_step(model, ea, *arguments)


def initial(model, n_states, n_points=5, seed=4):
    return draw_states(model.pi, n_states, n_points, False, torch.Generator().manual_seed(seed))


def as_tuples(packed, n_latents):
    return [tuple(row) for row in unpack(packed, n_latents, torch.int64).tolist()]


@pytest.mark.parametrize("selection", ["fitness", "posterior", "uniform", "best"])
@pytest.mark.parametrize(("n_flips", "n_generations"), [(1, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize(("hidden", "masked"), [([], False), ([5], True), ([4, 3], False)])
def test_equals_the_slow_visit(e_step, selection, n_flips, n_generations, hidden, masked):
    model, x = random_model(n_latents=9, hidden=hidden), random_data()
    observed = random_mask() if masked else None
    ea = EaConfig(selection, n_parents=4, n_children=3, n_generations=n_generations, n_flips=n_flips)
    packed, theta = initial(model, 12), Theta(model)
    sets = [as_tuples(packed[n], 9) for n in range(5)]
    for seed in range(3):  # several visits, each from what the one before kept
        step = e_step(model, ea, x, packed, Stream(seed, torch.arange(5)), observed)
        for n in range(5):
            mask = None if observed is None else observed[n].tolist()
            expected = slow_e_step(theta, ea, x[n].tolist(), sets[n], PointStream(seed, n), mask)
            # The next slow visit draws from the pool in the same order, so that equal numbers choose equal parents.
            sets[n] = as_tuples(step.packed[n], 9)
            assert set(sets[n]) == set(expected)
            for z, value in zip(sets[n], step.log_joint[n].tolist(), strict=True):
                assert value == pytest.approx(expected[z], abs=1e-9)
            assert step.elbo[n].item() == pytest.approx(slow_elbo(list(expected.values())), abs=1e-9)
        packed = step.packed


@pytest.mark.parametrize("mutation", ["uniform", "sparse"])
@pytest.mark.parametrize("crossover", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_never_lowers_the_elbo_and_keeps_distinct_states(e_step, mutation, crossover, dtype):
    model = random_model(n_latents=20, dtype=dtype)
    x = random_data(dtype=dtype)
    ea = EaConfig(mutation=mutation, crossover=crossover, n_generations=2, n_flips=2)
    packed = initial(model, 10)
    before = e_step(model, ea, x, packed, None).elbo
    first = before
    for seed in range(20):
        step = e_step(model, ea, x, packed, Stream(seed, torch.arange(5)))
        packed = step.packed
        assert (step.elbo >= before - 1e-5).all()
        assert not is_repeated(codes(packed, 20)).any()
        exact = model.log_joint(x, unpack(packed, 20, dtype))
        torch.testing.assert_close(step.log_joint, exact, rtol=1e-5, atol=1e-4)
        before = step.elbo
    assert (before > first + 0.1).all(), "the search finds something"


@pytest.mark.parametrize("selection", ["fitness", "posterior", "uniform"])  # `best` may stay in a local optimum
def test_the_search_finds_the_best_states(e_step, selection):
    """Evolution leads from S arbitrary states to nearly all of the mass of the exact posterior."""
    model, x = random_model(n_latents=10), random_data()
    exact = log_likelihood(model, x, all_states(10).double())
    packed = initial(model, 40)
    for seed in range(60):
        step = e_step(model, EaConfig(selection), x, packed, Stream(seed, torch.arange(5)))
        packed = step.packed
    best = model.log_joint(x, all_states(10).double().expand(5, -1, -1)).topk(40).values.logsumexp(1)
    assert (step.elbo <= exact).all()
    torch.testing.assert_close(step.elbo, best, atol=0.05, rtol=0)


def test_with_all_states_the_elbo_is_the_log_likelihood(e_step):
    model, x, observed = random_model(), random_data(), random_mask()
    packed = pack(all_states(6)).expand(5, -1, -1)
    step = e_step(model, EaConfig(), x, packed, Stream(0, torch.arange(5)), observed)
    torch.testing.assert_close(step.elbo, log_likelihood(model, x, all_states(6).double(), observed))
    assert step.n_accepted == 0


def test_a_data_point_fares_the_same_in_any_batch(e_step):
    model, x, packed = random_model(n_latents=12), random_data(), initial(random_model(n_latents=12), 8)
    whole = e_step(model, EaConfig(), x, packed, Stream(0, torch.arange(5)))
    index = torch.tensor([3, 1])
    part = e_step(model, EaConfig(), x[index], packed[index], Stream(0, index))
    torch.testing.assert_close(part.log_joint.sort(1).values, whole.log_joint[index].sort(1).values)


def test_inputs_stay_as_they_are(e_step):
    model, x, observed = random_model(n_latents=12), random_data(), random_mask()
    packed = initial(model, 8)
    copies = [t.clone() for t in (x, observed, packed, *model.state_dict().values())]
    e_step(model, EaConfig(n_generations=2), x, packed, Stream(0, torch.arange(5)), observed)
    for now, before in zip((x, observed, packed, *model.state_dict().values()), copies, strict=True):
        assert torch.equal(now, before)


def test_counts_accepted_states(e_step):
    model, x = random_model(n_latents=12), random_data()
    packed = initial(model, 8)
    step = e_step(model, EaConfig(), x, packed, Stream(0, torch.arange(5)))
    new = sum(len(set(as_tuples(step.packed[n], 12)) - set(as_tuples(packed[n], 12))) for n in range(5))
    assert step.n_accepted == new > 0
