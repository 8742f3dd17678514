"""The native visit at one go against that of torch by its parts."""

from functools import partial

import pytest
import torch
from native_samples import needs_kernel, setting

from tests.conftest import random_mask
from tvae.backends import native, torch_backend
from tvae.inference.evolution import EaConfig
from tvae.inference.states import codes
from tvae.inference.streams import Stream
from tvae.model.packed import UNPACKED
from tvae.training.backend import Minibatch, Stretch, visit_by
from tvae.training.m_step import Totals

pytestmark = needs_kernel

torch_visit, torch_visit_imputing = (
    visit_by(torch_backend.e_step, torch_backend.gradient_by(UNPACKED, impute), UNPACKED) for impute in (False, True)
)
EA = EaConfig(n_parents=4, n_children=5, n_generations=2)


def visits(visit, model, x, packed, observed, prune, is_exact=False, counts_imputed=False):
    """Two visits of the same states, with other random numbers: sorted codes, gradients, totals and numbers drawn."""
    totals = Totals(model, is_exact, observed is not None, counts_imputed)
    rng = Stream(8, torch.arange(len(x)))
    for _ in range(2):
        kept, gradients = visit(model, EA, prune, Minibatch(x, observed, packed, rng, 17), totals)
    return codes(kept, model.n_latents).sort(1).values, gradients, totals.sums, rng.n_drawn


@pytest.mark.parametrize("hidden", [[], [37], [9, 70, 12], [400]])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("prune", [0, 1e-3])
def test_states_gradients_and_sums_are_those_of_torch(hidden, masked, prune):
    """Half of the data points start from the same states."""
    model, x, packed = setting(23, hidden, 213, 30, n_points=9)
    model.likelihood.sigma2.mul_(100)  # so that many states matter
    packed[4:] = packed[0]
    observed = random_mask(*x.shape) if masked else None
    ours, theirs = (visits(visit, model, x, packed, observed, prune) for visit in (native.visit_batch, torch_visit))
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1:3], theirs[1:3], rtol=1e-9, atol=1e-11)
    assert ours[3] == theirs[3] > 0


@pytest.mark.parametrize("hidden", [[], [37], [9, 70, 12], [400]])
@pytest.mark.parametrize("prune", [0, 1e-3])
@pytest.mark.parametrize("counts", [False, True])
def test_imputed_values_are_those_of_torch(hidden, prune, counts):
    """More rows than a thread takes at a time, so that data points begin in one part and end in another."""
    model, x, packed = setting(23, hidden, 213, 30, n_points=9)
    model.likelihood.sigma2.mul_(1000)
    observed = random_mask(*x.shape)
    by_kernel = partial(native.visit_batch, imputes=True)
    ours, theirs = (
        visits(visit, model, x, packed, observed, prune, counts_imputed=counts)
        for visit in (by_kernel, torch_visit_imputing)
    )
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1:3], theirs[1:3], rtol=1e-9, atol=1e-11)
    assert ("imputed_error" in ours[2]) == counts
    left_out = visits(native.visit_batch, model, x, packed, observed, prune)[1]
    assert not torch.allclose(ours[1][0], left_out[0], rtol=1e-3)


def test_an_exact_m_step_has_sums_and_no_gradients():
    model, x, packed = setting(23, [], 13, 30)
    ours, theirs = (visits(visit, model, x, packed, None, 1e-3, True) for visit in (native.visit_batch, torch_visit))
    assert torch.equal(ours[0], theirs[0])
    assert ours[1] == theirs[1] == []
    torch.testing.assert_close(ours[2], theirs[2])


def test_a_diverged_decoder_gives_no_finite_elbo():
    model, x, packed = setting(20, [16], 9, 24)
    model.decoder.weights[0].data[:, 3] = torch.nan
    assert not visits(native.visit_batch, model, x, packed, None, 1e-3)[2]["elbo"].isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("imputes", [False, True])
def test_the_number_of_threads_changes_nothing(dtype, imputes):
    model, x, packed = setting(100, [130], 150, 64, n_points=16, dtype=dtype)
    observed = random_mask(*x.shape) if imputes else None
    by_kernel = partial(native.visit_batch, imputes=imputes)
    found = []
    for n_threads in (1, 2, 5, 2):
        torch.set_num_threads(n_threads)
        order, gradients, sums, _ = visits(by_kernel, model, x, packed, observed, 1e-3, counts_imputed=imputes)
        found.append([order, *gradients, *sums.values()])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize(("masked", "imputes"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("hidden", [[], [37], [9, 70]])
def test_a_stretch_is_its_visits_and_steps_by_turns(hidden, masked, imputes):
    """Minibatches of 4, 4 and 3 data points, at other rates: the same to the last bit."""
    found = []
    for is_stretch in (False, True):
        model, x, packed = setting(23, hidden, 13, 30, n_points=11)
        observed = random_mask(*x.shape) if masked else None
        optimiser, totals = native.Adam(model.decoder.parameters(), 0.1), Totals(model, False, masked, imputes)
        whole = Minibatch(x, observed, packed, Stream(8, torch.arange(11)), 11)
        if is_stretch:
            stretch = Stretch(whole, 4, optimiser, [0.01, 0.02, 0.03])
            kept = native.visit_stretch(model, EA, 1e-3, stretch, totals, imputes)
        else:
            parts = []
            for rate, index in zip((0.01, 0.02, 0.03), torch.arange(11).split(4), strict=True):
                mask = None if observed is None else observed[index]
                batch = Minibatch(x[index], mask, packed[index], Stream(8, index), len(index))
                states, gradients = native.visit_batch(model, EA, 1e-3, batch, totals, imputes)
                parts.append(states)
                for parameter, gradient in zip(model.decoder.parameters(), gradients, strict=True):
                    parameter.grad = gradient
                optimiser.param_groups[0]["lr"] = rate
                optimiser.step()
            kept = torch.cat(parts)
        moments = [value for state in optimiser.state.values() for value in state.values()]
        found.append([kept, *model.decoder.parameters(), *moments, *totals.sums.values()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
