"""`ea.selection=authors`, which looks at the whole minibatch: the E-step against a slow and obvious one."""

import pytest
import torch
from reference import PointStream, Theta, choose_distinct

from tests.conftest import draw_states, random_data, random_model
from tvae.backends import choose_backend, native, torch_backend
from tvae.inference.evolution import EaConfig
from tvae.inference.streams import Stream
from tvae.model.packed import unpack

needs_kernel = pytest.mark.skipif(not native.is_available(), reason="no C++ compiler, or TVAE_NATIVE=0")
EA = EaConfig("authors", n_parents=4, n_children=3, n_generations=3)


def setting(n_points, n_latents=9, n_states=12):
    model, x = random_model(n_latents=n_latents, hidden=[5]), random_data(n_points)
    return model, x, draw_states(model.pi, n_states, n_points, False, torch.Generator().manual_seed(4))


def published_choice(row, offset, total, draw):
    """Counts, from the end, the cumulative shares above the draw; -1 is the last place, as it is in Python."""
    cumulative, sums = 0.0, []
    for value in row:
        cumulative += (value - offset) / total
        sums.append(cumulative)
    return len(row) - 1 - sum(draw < value for value in sums)


def slow_e_step(theta, x, sets, seed):
    """[{state: log_joint}] of all data points, each in ascending order."""
    n_points, n_latents = len(x), len(theta.pi)
    streams = [PointStream(seed, n) for n in range(n_points)]
    pools = [list(states) for states in sets]
    known = [{z: theta.log_joint(x[n], z) for z in pools[n]} for n in range(n_points)]
    for _ in range(EA.n_generations):
        rows = [[known[n][z] for z in pools[n]] for n in range(n_points)]
        offset = 2 * min(0, *(value for row in rows for value in row))
        total = sum(value - offset for row in rows for value in row)
        for n, stream in enumerate(streams):
            draws = [stream.uniform() for _ in range(EA.n_parents)]
            parents = [pools[n][published_choice(rows[n], offset, total, draw)] for draw in draws]
            pools[n] = [
                tuple(1 - bit if h == latent else bit for h, bit in enumerate(parent))
                for parent in parents
                for latent in choose_distinct(n_latents, EA.n_children, stream)
            ]
            known[n] |= {z: theta.log_joint(x[n], z) for z in pools[n]}
    best = [sorted(found, key=found.get)[-len(sets[0]) :] for found in known]
    return [{z: found[z] for z in kept} for found, kept in zip(known, best, strict=True)]


@pytest.mark.parametrize("e_step", [torch_backend.e_step, pytest.param(native.e_step, marks=needs_kernel)])
@pytest.mark.parametrize("n_points", [1, 2, 32])
def test_equals_the_slow_visit_and_keeps_the_fittest_last(e_step, n_points):
    model, x, packed = setting(n_points)
    for seed in range(3):
        sets = [[tuple(z) for z in unpack(rows, 9, torch.int64).tolist()] for rows in packed]
        step = e_step(model, EA, x, packed, Stream(seed, torch.arange(n_points)))
        for n, expected in enumerate(slow_e_step(Theta(model), x.tolist(), sets, seed)):
            assert [tuple(z) for z in unpack(step.packed[n], 9, torch.int64).tolist()] == list(expected)
            assert step.log_joint[n].tolist() == pytest.approx(list(expected.values()), abs=1e-9)
        packed = step.packed


@needs_kernel
def test_neither_threads_nor_many_states_change_anything():
    """More states in the minibatch than the kernel decodes at once where data points are searched by themselves."""
    model, x, packed = setting(40, n_latents=12, n_states=400)
    found = []
    for n_threads in (1, 2, 5):
        torch.set_num_threads(n_threads)
        found.append(native.e_step(model, EA, x, packed, Stream(0, torch.arange(40))))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    by_torch = torch_backend.e_step(model, EA, x, packed, Stream(0, torch.arange(40)))
    torch.testing.assert_close(found[0].log_joint, by_torch.log_joint, rtol=1e-9, atol=1e-9)


@needs_kernel
def test_the_kernel_has_it():
    assert choose_backend(random_model(), EA).e_step is native.e_step
