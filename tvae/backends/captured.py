"""The torch engine with its operations recorded as graphs, each of which is launched as one: for CUDA.

A visit is some hundred small operations, and a GPU takes longer to launch than to do most of them. Their shapes are
fixed and none waits for a value, so they can be recorded once and replayed. Parameters change in place: a replay works
with those of the moment. What a graph computes is compared once with what the same operations computed one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tvae.inference.evolution import EaConfig
from tvae.inference.posterior import EStep
from tvae.inference.streams import Stream
from tvae.model.vae import Model
from tvae.training.backend import EStepFunction, Minibatch, VisitFunction
from tvae.training.m_step import Totals

log = logging.getLogger(__name__)

Inputs = Sequence[Tensor | None]
Function = Callable[..., Sequence[Tensor]]
Record = Callable[[Function, Inputs], tuple[Sequence[Tensor], Callable[[], None]]]

N_WARM = 3  # calls before the recording, in which libraries are set up and tables made


class Graph(NamedTuple):
    inputs: Inputs  # where a replay reads
    outputs: Sequence[Tensor]  # where it writes
    replay: Callable[[], None]


def record_on_cuda(function: Function, inputs: Inputs) -> tuple[Sequence[Tensor], Callable[[], None]]:
    """The tensors that a replay fills, and the replay."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(N_WARM):
            function(*inputs)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function(*inputs)
    return outputs, graph.replay


class Graphs:
    """Functions of tensors, recorded at their first call with inputs of a kind."""

    def __init__(self, record: Record):
        self.record = record
        self.graphs: dict[Hashable, Graph | None] = {}
        self.is_trusted = True

    def call(self, name: Hashable, function: Function, *inputs: Tensor | None) -> Sequence[Tensor]:
        """What the function returns, until the next call; `name` stands for all it depends on besides its inputs."""
        key = (name, *(None if tensor is None else (tensor.shape, tensor.dtype) for tensor in inputs))
        if key not in self.graphs:
            self.graphs[key] = self._recorded(function, inputs) if self.is_trusted else None
        graph = self.graphs[key]
        if graph is None:
            return function(*inputs)
        for place, tensor in zip(graph.inputs, inputs, strict=True):
            if place is not None and tensor is not None:
                place.copy_(tensor)
        graph.replay()
        return graph.outputs

    def _recorded(self, function: Function, inputs: Inputs) -> Graph | None:
        try:
            places = [None if tensor is None else tensor.clone() for tensor in inputs]
            graph = Graph(places, *self.record(function, places))
            graph.replay()
            for ours, expected in zip(graph.outputs, function(*inputs), strict=True):
                torch.testing.assert_close(_in_order(ours), _in_order(expected), rtol=1e-4, atol=1e-6)
            return graph
        except (RuntimeError, AssertionError) as error:
            self.is_trusted = False
            reason = str(error).strip().splitlines()[0]
            log.warning("operations are launched one by one, for they could not be recorded as a graph (%s)", reason)
            return None


def _in_order(tensor: Tensor) -> Tensor:
    """The values in ascending order: the states of a set have none of their own."""
    return tensor.double().flatten().sort().values


def by_graphs(
    visit: VisitFunction, e_step: EStepFunction, record: Record = record_on_cuda
) -> tuple[VisitFunction, EStepFunction]:
    """The same functions by graphs. What the visit returns is overwritten by the next one."""
    graphs = Graphs(record)
    n_drawn: dict[Hashable, int] = {}

    def captured_visit(
        model: Model, ea: EaConfig, prune: float, batch: Minibatch, totals: Totals
    ) -> tuple[Tensor, list[Tensor]]:
        rng, n_before = batch.rng, batch.rng.n_drawn
        name = ("visit", id(model), repr(ea), prune, batch.n_points, totals.is_exact, n_before)

        def run(x: Tensor, packed: Tensor, observed: Tensor | None, seed: Tensor, index: Tensor) -> list[Tensor]:
            own, sums = Stream(seed, index, n_before), totals.zeros()
            part = Minibatch(x, observed, packed, own, batch.n_points)
            packed, gradients = visit(model, ea, prune, part, sums)
            n_drawn[name] = own.n_drawn
            return [packed, *gradients, *sums.sums.values()]

        packed, *rest = graphs.call(name, run, batch.x, batch.packed, batch.observed, _seed(rng), rng.index)
        rng.n_drawn = n_drawn[name]
        n_sums = len(totals.sums)
        torch._foreach_add_(list(totals.sums.values()), rest[-n_sums:])
        return packed, rest[:-n_sums]

    def captured_e_step(
        model: Model, ea: EaConfig, x: Tensor, packed: Tensor, rng: Stream | None, observed: Tensor | None = None
    ) -> EStep:
        n_before = 0 if rng is None else rng.n_drawn
        name = ("E-step", id(model), repr(ea), n_before)

        def run(x: Tensor, packed: Tensor, observed: Tensor | None, *stream: Tensor) -> EStep:
            own = Stream(stream[0], stream[1], n_before) if stream else None
            step = e_step(model, ea, x, packed, own, observed)
            n_drawn[name] = 0 if own is None else own.n_drawn
            return step

        stream = () if rng is None else (_seed(rng), rng.index)
        step = EStep(*(tensor.clone() for tensor in graphs.call(name, run, x, packed, observed, *stream)))
        if rng is not None:
            rng.n_drawn = n_drawn[name]
        return step

    return captured_visit, captured_e_step


def _seed(rng: Stream) -> Tensor:
    """As a tensor, which a replay can read."""
    assert isinstance(rng.seed, int)
    return torch.full((), rng.seed, dtype=torch.int64, device=rng.index.device)
