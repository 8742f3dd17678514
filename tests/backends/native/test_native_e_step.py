"""The native E-step against that of torch: the same random numbers, so the same states."""

from itertools import product

import pytest
import torch
from native_samples import needs_kernel, setting

from tests.conftest import random_mask
from tvae.backends import native, torch_backend
from tvae.backends.native.bindings import SELECTIONS
from tvae.inference.evolution import EaConfig
from tvae.inference.states import all_states, codes, is_repeated
from tvae.inference.streams import Stream
from tvae.model.decoder import ACTIVATIONS
from tvae.model.packed import pack

pytestmark = needs_kernel

HIDDEN = {0: [], 1: [37], 3: [9, 70, 12]}


def assert_same(ours, theirs, n_latents, **tolerance):
    """The same sets, in whatever order, with the same values."""
    places = [codes(step.packed, n_latents).argsort(1) for step in (ours, theirs)]
    for field in ("error", "log_joint"):
        a, b = (getattr(s, field).gather(1, p) for s, p in zip((ours, theirs), places, strict=True))
        torch.testing.assert_close(a, b, **tolerance)
    a, b = (codes(s.packed, n_latents).gather(1, p) for s, p in zip((ours, theirs), places, strict=True))
    assert torch.equal(a, b)
    assert ours.n_accepted == theirs.n_accepted


@pytest.mark.parametrize("depth", HIDDEN)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_the_same_states_are_kept_and_the_same_draws_counted(selection, masked, depth):
    for (n_latents, n_outputs), n_flips, n_generations in product([(11, 13), (70, 101)], [1, 2], [1, 3]):
        ea = EaConfig(selection, n_parents=4, n_children=5, n_generations=n_generations, n_flips=n_flips)
        model, x, packed = setting(n_latents, HIDDEN[depth], n_outputs, 30)
        observed = random_mask(*x.shape) if masked else None
        streams = [Stream(8, torch.arange(len(x))) for _ in range(2)]
        for _ in range(3):  # each visit continues the streams of the one before
            ours = native.e_step(model, ea, x, packed, streams[0], observed)
            theirs = torch_backend.e_step(model, ea, x, packed, streams[1], observed)
            assert_same(ours, theirs, n_latents, rtol=1e-9, atol=1e-9)
            assert streams[0].n_drawn == streams[1].n_drawn > 0
            assert not is_repeated(codes(ours.packed, n_latents)).any()
            packed = ours.packed


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_activation(activation, dtype):
    model, x, packed = setting(20, [33, 9], 17, 40, dtype=dtype, activation=activation)
    with torch.no_grad():
        model.decoder.weights[0].mul_(8)  # into the tails, beyond softplus's threshold too
    ours, theirs = (backend.e_step(model, EaConfig(), x, packed, None) for backend in (native, torch_backend))
    assert torch.equal(ours.packed, packed)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-8}
    assert_same(ours, theirs, 20, **tolerance)


def test_single_precision():
    model, x, packed = setting(64, [64], 64, 200, n_points=32, dtype=torch.float32)
    ea = EaConfig("best", n_parents=10, n_children=9, n_generations=2)
    ours, theirs = (
        backend.e_step(model, ea, x, packed, Stream(0, torch.arange(len(x)))) for backend in (native, torch_backend)
    )
    torch.testing.assert_close(ours.log_joint.sort(1).values, theirs.log_joint.sort(1).values, rtol=1e-4, atol=0)
    torch.testing.assert_close(ours.elbo, theirs.elbo, rtol=1e-5, atol=0)


@pytest.mark.parametrize("hidden", [[], [7]])
def test_a_set_of_all_states_is_evaluated_and_stays(hidden):
    model, x, _ = setting(5, hidden, 9, 4)
    packed = pack(all_states(5)).expand(len(x), -1, -1)
    rng = Stream(0, torch.arange(len(x)))
    ours = native.e_step(model, EaConfig(), x, packed, rng)
    assert_same(ours, torch_backend.e_step(model, EaConfig(), x, packed, None), 5, rtol=1e-9, atol=1e-9)
    assert torch.equal(ours.packed, packed)
    assert ours.n_accepted == rng.n_drawn == 0


def test_more_states_than_are_decoded_at_once():
    """Groups of two data points each; all start from the same states, so that most are decoded once."""
    model, x, packed = setting(14, [9], 7, 3000)
    packed[1:] = packed[0]
    ours, theirs = (
        backend.e_step(model, EaConfig(), x, packed, Stream(0, torch.arange(5))) for backend in (native, torch_backend)
    )
    assert_same(ours, theirs, 14, rtol=1e-9, atol=1e-9)


def test_inputs_stay_as_they_are_and_need_not_be_contiguous():
    model, x, packed = setting(20, [16], 9, 24)
    twice = (x.repeat_interleave(2, 1), packed.repeat_interleave(2, 1))
    copies = [tensor.clone() for tensor in twice]
    a, b = (
        native.e_step(model, EaConfig(), *inputs, Stream(0, torch.arange(len(x))))
        for inputs in ((x, packed), (twice[0][:, ::2], twice[1][:, ::2]))
    )
    assert all(torch.equal(*pair) for pair in zip(a, b, strict=True))
    assert all(torch.equal(*pair) for pair in zip(twice, copies, strict=True))


def test_a_data_point_is_searched_alike_in_any_batch():
    model, x, packed = setting(20, [16], 9, 24)
    index = torch.tensor([3, 14, 15, 92, 65])
    whole = native.e_step(model, EaConfig(), x, packed, Stream(0, index))
    for n in range(len(x)):
        alone = native.e_step(model, EaConfig(), x[n : n + 1], packed[n : n + 1], Stream(0, index[n : n + 1]))
        assert torch.equal(alone.packed[0], whole.packed[n])
        assert torch.equal(alone.log_joint[0], whole.log_joint[n])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_diverged_decoder_gives_no_finite_elbo(selection, value):
    """Training can notice NaN, and the search stays within its arrays whatever comes out."""
    model, x, packed = setting(20, [16], 9, 24)
    model.decoder.weights[0].data[:, 3] = value
    step = native.e_step(model, EaConfig(selection, n_generations=2), x, packed, Stream(0, torch.arange(len(x))))
    assert not step.elbo.isfinite().all()
