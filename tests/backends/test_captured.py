"""The engine by recorded graphs against torch's own, with a stand-in for the graphs: no GPU is needed, none is tested.

The stand-in does at a replay what a graph does: the same operations, from and to the memory of the recording.
"""

import logging

import pytest
import torch
from tvae.backends.captured import by_graphs

from tests.conftest import draw_states, random_data, random_mask, random_model
from tvae.backends import choose_engine, torch_backend
from tvae.inference.evolution import EaConfig
from tvae.inference.streams import Stream
from tvae.model.packed import UNPACKED
from tvae.training.backend import Minibatch, visit_by
from tvae.training.m_step import Totals

VISIT = visit_by(torch_backend.e_step, torch_backend.gradient_by(UNPACKED, impute=False), UNPACKED)


@pytest.fixture
def recorder():
    """A stand-in for graphs, and how often it has recorded."""

    def record(function, inputs):
        outputs = [torch.empty_like(tensor) for tensor in function(*inputs)]
        record.count += 1

        def replay():
            for place, value in zip(outputs, function(*inputs), strict=True):
                place.copy_(value)

        return outputs, replay

    record.count = 0
    return record


def states_of(model, n_points, n_states=8):
    return draw_states(model.pi, n_states, n_points, False, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("selection", ["fitness", "best"])  # `best` draws other numbers
def test_a_replay_is_the_visit_with_the_parameters_of_the_moment(recorder, masked, is_exact, selection):
    visit, _ = by_graphs(VISIT, torch_backend.e_step, recorder)
    model, ea = random_model(n_latents=12, hidden=[] if is_exact else [5]), EaConfig(selection, n_generations=2)
    packed = states_of(model, 9)
    totals = [Totals(model, is_exact, masked, counts_imputed=not is_exact) for _ in range(2)]
    for seed, points in enumerate([range(0, 4), range(4, 8), range(8, 9), range(2, 6)]):
        index = torch.tensor(points)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1)
            model.pi.mul_(0.9)
        found = []
        for by, sums in zip((visit, VISIT), totals, strict=True):
            observed = random_mask(9, seed=seed)[index] if masked else None
            batch = Minibatch(random_data(9, seed=seed)[index], observed, packed[index], Stream(seed, index), 40)
            states, gradients = by(model, ea, 0, batch, sums)
            found.append([states, *gradients, torch.tensor(batch.rng.n_drawn)])
        assert len(found[0]) == len(found[1]) == (2 if is_exact else 6)
        assert all(map(torch.equal, *found))
    assert totals[0].sums.keys() == totals[1].sums.keys()
    for name, total in totals[0].sums.items():
        torch.testing.assert_close(total, totals[1].sums[name])
        assert total.abs().sum() > 0
    assert recorder.count == 2, "for four data points and for one"


def test_what_was_returned_stays_when_the_graph_is_replayed(recorder):
    _, e_step = by_graphs(VISIT, torch_backend.e_step, recorder)
    model, x = random_model(n_latents=12), random_data()
    packed = states_of(model, 5)
    first = e_step(model, EaConfig(), x, packed, Stream(0, torch.arange(5)))
    copies = [tensor.clone() for tensor in first]
    e_step(model, EaConfig(), x + 1, packed, Stream(1, torch.arange(5)))
    assert all(map(torch.equal, first, copies))


def test_a_stream_that_goes_on_and_no_stream_are_recorded_apart(recorder):
    _, e_step = by_graphs(VISIT, torch_backend.e_step, recorder)
    model, x = random_model(n_latents=12), random_data()
    packed = states_of(model, 5)
    ours, theirs = (Stream(3, torch.arange(5)) for _ in range(2))
    for rng, other in ((ours, theirs), (ours, theirs), (None, None)):
        step = e_step(model, EaConfig(), x, packed, rng)
        assert torch.equal(step.packed, torch_backend.e_step(model, EaConfig(), x, packed, other).packed)
    assert recorder.count == 3


@pytest.mark.parametrize("fault", ["cannot record", "computes something else"])
def test_graphs_that_fail_or_are_wrong_are_given_up_with_one_warning(recorder, caplog, fault):
    def faulty(function, inputs):
        if fault == "cannot record":
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        outputs, replay = recorder(function, inputs)
        return outputs, lambda: (replay(), outputs[-1].add_(1))

    visit, e_step = by_graphs(VISIT, torch_backend.e_step, faulty)
    model, x = random_model(n_latents=12), random_data()
    packed = states_of(model, 5)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            step = e_step(model, EaConfig(), x, packed, Stream(0, torch.arange(5)))
            batch = Minibatch(x, None, packed, Stream(0, torch.arange(5)), 5)
            states, _ = visit(model, EaConfig(), 0, batch, Totals(model, False, False))
    expected = torch_backend.e_step(model, EaConfig(), x, packed, Stream(0, torch.arange(5)))
    assert all(map(torch.equal, [*step, states], [*expected, expected.packed]))
    (warning,) = caplog.records
    assert "launched one by one" in warning.message
    assert "more" not in warning.message.replace("more than", "")


def test_the_cpu_records_nothing(monkeypatch):
    monkeypatch.setenv("TVAE_NATIVE", "0")
    model = random_model().to(torch.float16)  # which the kernel cannot do
    assert choose_engine(model, EaConfig()).e_step is torch_backend.e_step
