"""The native kernel against the torch code: the same random numbers, so the same states."""

import os
import subprocess
import sys
from itertools import product

import pytest
import torch
from conftest import draw_states, random_data, random_mask, random_model

from tvae import native
from tvae.adam import Adam
from tvae.config import EaConfig
from tvae.decoder import ACTIVATIONS
from tvae.evolution import SELECTIONS
from tvae.inference import EStep, e_step
from tvae.learning import decoder_loss, set_gradient, weighty_states
from tvae.native import FirstLayer, add_moments, multiply, multiply_transposed
from tvae.states import codes, is_repeated, pack
from tvae.streams import Stream

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler, or TVAE_NATIVE=0")

HIDDEN = {0: [], 1: [37], 3: [9, 70, 12]}


def torch_e_step(monkeypatch, *arguments):
    with monkeypatch.context() as patch:
        patch.setattr(native, "supports", lambda *_: False)
        return e_step(*arguments)


def setting(n_latents, hidden, n_outputs, n_states, n_points=5, dtype=torch.float64, activation="relu"):
    model = random_model(n_latents, hidden, n_outputs, activation=activation).to(dtype)
    x = random_data(n_points, n_outputs).to(dtype)
    packed = draw_states(model.pi.double(), n_states, n_points, False, torch.Generator().manual_seed(3))
    return model, x, packed


def assert_same(ours: EStep, theirs: EStep, n_latents, **tolerance):
    """The same sets, in whatever order, with the same values."""
    places = [codes(step.packed, n_latents).argsort(1) for step in (ours, theirs)]
    for field in ("error", "log_joint"):
        a, b = (getattr(s, field).gather(1, p) for s, p in zip((ours, theirs), places, strict=True))
        torch.testing.assert_close(a, b, **tolerance)
    a, b = (codes(s.packed, n_latents).gather(1, p) for s, p in zip((ours, theirs), places, strict=True))
    assert torch.equal(a, b)
    assert ours.n_accepted == theirs.n_accepted


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_native_keeps_the_same_states(monkeypatch, selection, masked, depth):
    for (n_latents, n_outputs), n_flips, n_generations in product([(11, 13), (70, 101)], [1, 2], [1, 3]):
        ea = EaConfig(selection, n_parents=4, n_children=5, n_generations=n_generations, n_flips=n_flips)
        model, x, packed = setting(n_latents, HIDDEN[depth], n_outputs, 30)
        observed = random_mask(*x.shape) if masked else None
        for visit in range(3):
            streams = [Stream(visit, torch.arange(len(x))) for _ in range(2)]
            ours = e_step(model, ea, x, packed, streams[0], observed)
            theirs = torch_e_step(monkeypatch, model, ea, x, packed, streams[1], observed)
            assert_same(ours, theirs, n_latents, rtol=1e-9, atol=1e-9)
            assert streams[0].n_drawn == streams[1].n_drawn
            assert not is_repeated(codes(ours.packed, n_latents)).any()
            packed = ours.packed


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_activation(monkeypatch, activation, dtype):
    model, x, packed = setting(20, [33, 9], 17, 40, dtype=dtype, activation=activation)
    with torch.no_grad():
        model.decoder.weights[0].mul_(8)  # into the tails, beyond softplus's threshold too
    ours, theirs = (
        e_step(model, EaConfig(), x, packed, None),
        torch_e_step(monkeypatch, model, EaConfig(), x, packed, None),
    )
    assert torch.equal(ours.packed, packed)
    assert_same(
        ours, theirs, 20, **({"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-8})
    )


def test_single_precision(monkeypatch):
    model, x, packed = setting(64, [64], 64, 200, n_points=32, dtype=torch.float32)
    streams = [Stream(0, torch.arange(len(x))) for _ in range(2)]
    ea = EaConfig("best", n_parents=10, n_children=9, n_generations=2)
    ours = e_step(model, ea, x, packed, streams[0])
    theirs = torch_e_step(monkeypatch, model, ea, x, packed, streams[1])
    torch.testing.assert_close(ours.log_joint.sort(1).values, theirs.log_joint.sort(1).values, rtol=1e-4, atol=0)
    torch.testing.assert_close(ours.elbo, theirs.elbo, rtol=1e-5, atol=0)


def test_the_number_of_threads_changes_nothing():
    model, x, packed = setting(100, [130], 150, 64, n_points=16, dtype=torch.float32)
    weight = torch.rand(16 * 64, generator=torch.Generator().manual_seed(0))
    point, rows = torch.arange(16).repeat_interleave(64), packed.flatten(0, 1)
    n_threads = torch.get_num_threads()
    found = []
    try:
        for n in (1, 2, 2):
            torch.set_num_threads(n)
            step = e_step(model, EaConfig(n_generations=3), x, packed, Stream(0, torch.arange(16)))
            found.append([*step, *native.gradient(model.decoder, x, point, rows, weight, 1.0)])
    finally:
        torch.set_num_threads(n_threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_diverged_decoder_gives_no_finite_elbo():
    """So that training notices; and whatever comes out, the search stays within its arrays."""
    for value in (torch.nan, torch.inf):
        for selection in SELECTIONS:
            model, x, packed = setting(20, [16], 9, 24)
            model.decoder.weights[0].data[:, 3] = value
            step = e_step(model, EaConfig(selection, n_generations=2), x, packed, Stream(0, torch.arange(len(x))))
            assert not step.elbo.isfinite().all()


@pytest.mark.parametrize(("n_latents", "n_columns"), [(3, 1), (70, 37), (64, 128)])
def test_products_with_packed_states(n_latents, n_columns):
    rng = torch.Generator().manual_seed(0)
    z = (torch.rand(50, n_latents, generator=rng) < 0.2).double()
    weight = torch.randn(n_latents, n_columns, generator=rng, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(n_columns, generator=rng, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(50, n_columns, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(multiply(pack(z), weight, bias), z @ weight + bias)
    torch.testing.assert_close(multiply_transposed(pack(z), grad, n_latents), z.T @ grad)
    expected = torch.autograd.grad(z @ weight + bias, (weight, bias), grad)
    found = torch.autograd.grad(FirstLayer.apply(pack(z), weight, bias), (weight, bias), grad)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("n_latents", [3, 64, 70])
@pytest.mark.parametrize("by_kernel", [False, True])
def test_moments_add_up_over_states_and_data_points(n_latents, by_kernel, monkeypatch):
    if not by_kernel:
        monkeypatch.setattr(native, "usable", lambda tensor: False)
    rng = torch.Generator().manual_seed(0)
    z = (torch.rand(50, n_latents, generator=rng) < 0.2).double()
    weight = torch.rand(50, generator=rng, dtype=torch.float64)
    point = torch.randint(7, (50,), generator=rng)
    y = torch.cat([z, torch.ones(50, 1, dtype=torch.float64)], 1)
    gram = torch.full((n_latents + 1, n_latents + 1), 3.0, dtype=torch.float64)
    mean = add_moments(gram, pack(z), weight, point, 7)
    torch.testing.assert_close(gram, 3 + y.T @ torch.diag(weight) @ y)
    torch.testing.assert_close(mean, torch.nn.functional.one_hot(point, 7).T.double() @ (weight[:, None] * y))


@pytest.mark.parametrize("hidden", [[], [37], [9, 70, 12]])
@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_that_of_autograd(hidden, masked):
    model, x, packed = setting(23, hidden, 13, 30)
    observed = random_mask(*x.shape) if masked else None
    rows = weighty_states(e_step(model, EaConfig(), x, packed, None, observed), 1e-3)
    parameters = [*model.decoder.weights, *model.decoder.biases]
    assert native.has_gradient(model.decoder, x)
    set_gradient(model, x, rows, observed)
    expected = torch.autograd.grad(decoder_loss(model, x, rows, observed), parameters)
    torch.testing.assert_close([p.grad for p in parameters], list(expected), rtol=1e-9, atol=1e-12)


def test_adam_is_that_of_torch():
    rng = torch.Generator().manual_seed(0)
    start = [torch.randn(40, 1000, generator=rng), torch.randn(3, generator=rng)]
    ours, theirs = ([torch.nn.Parameter(p.clone()) for p in start] for _ in range(2))
    optimisers = [Adam(ours, lr=0.01), torch.optim.Adam(theirs, lr=0.01)]
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = b.grad = torch.randn(a.shape, generator=rng)
        for optimiser in optimisers:
            optimiser.step()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(optimiser.state_dict()["state"] for optimiser in optimisers))


STEP = """
import sys, torch
from tvae.adam import Adam
parameter = torch.nn.Parameter(torch.zeros(3))
parameter.grad = torch.ones(3)
optimiser = Adam([parameter])
optimiser.step()
optimiser.zero_grad()
optimiser.load_state_dict(optimiser.state_dict())
assert parameter[0] < 0
assert "torch._dynamo" not in sys.modules
"""


def test_adam_does_not_import_the_compiler():
    subprocess.run([sys.executable, "-c", STEP], check=True)


CHILD = """
import logging, torch
logging.basicConfig(level="INFO")
from tvae import native
from tvae.config import EaConfig
from tvae.decoder import Decoder
from tvae.inference import e_step
from tvae.model import Model
from tvae.states import init_states
from tvae.streams import Stream, generator
model = Model(Decoder(12, [5], 7, "relu", generator(0)), torch.full((12,), 0.2), 1.0)
packed = torch.empty(3, 16, (model.n_latents + 7) // 8, dtype=torch.uint8)
init_states(packed, model.pi, True, lambda first: generator(0))
step = e_step(model, EaConfig(), torch.zeros(3, 7), packed, Stream(0, torch.arange(3)))
assert step.elbo.isfinite().all()
native.FirstLayer.apply(packed[0], model.decoder.weights[0], model.decoder.biases[0]).sum().backward()
print(native.available())
"""


@pytest.mark.parametrize(
    ("environment", "is_available"),
    [({"TVAE_NATIVE": "0"}, False), ({"CXX": "/bin/false"}, False), ({"TVAE_CACHE_DIR": "/dev/null/nowhere"}, True)],
)
def test_what_the_environment_says(tmp_path, environment, is_available):
    """Switched off, a broken compiler, a folder that cannot be written: it runs all the same, and says once why."""
    environment = {**os.environ, "TVAE_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path), **environment}
    done = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(is_available)
    assert done.stderr.count("native kernel") == (not is_available)
