"""The choice of a backend, part by part."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch

from tests.conftest import draw_states, evaluated, random_data, random_model
from tvae.backends import choose_backend, native, torch_backend
from tvae.backends.native import visit
from tvae.inference import evolution
from tvae.inference.evolution import EaConfig
from tvae.inference.posterior import significant_states
from tvae.inference.streams import Stream
from tvae.model.decoder import Mlp
from tvae.model.likelihood import Gaussian, KnownVariance
from tvae.model.packed import UNPACKED
from tvae.model.vae import Model

needs_kernel = pytest.mark.skipif(not native.is_available(), reason="no C++ compiler, or TVAE_NATIVE=0")


class OtherDecoder(Mlp):
    kind = "other"


class OtherLikelihood(Gaussian):
    name = "other"


def parts(backend):
    """The backends that do the E-step, the gradient, the products and Adam, and if torch works on one thread.

    Where it does, the kernel does the visit as a whole.
    """
    is_whole = backend.at_work is native.torch_on_one_thread
    assert (_native_function(backend.visit) is native.visit_batch) == is_whole
    return (
        "native" if backend.e_step is native.e_step else "torch",
        "native" if _native_function(backend.gradient) is native.gradient else "torch",
        "native" if backend.products is native.PRODUCTS else "torch",
        "native" if backend.optimiser is native.Adam else "torch",
        is_whole,
    )


def _native_function(function):
    """The one of the kernel's that this is, apart from its options."""
    return function.func if isinstance(function, partial) else None


WHOLE = ("native", "native", "native", "native", True)
NOTHING = ("torch", "torch", "torch", "torch", False)


@needs_kernel
@pytest.mark.parametrize("hidden", [[], [5], [4, 3]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_papers_models_are_native(hidden, dtype):
    for selection in evolution.SELECTIONS:
        backend = choose_backend(random_model(hidden=hidden, dtype=dtype), EaConfig(selection, n_flips=2))
        assert parts(backend) == WHOLE
        assert backend.name == "native"


@needs_kernel
@pytest.mark.parametrize("options", [{"mutation": "sparse"}, {"crossover": True}, {"selection": "new"}])
def test_a_search_that_the_kernel_has_not_is_done_by_torch(options, monkeypatch):
    monkeypatch.setitem(evolution.SELECTIONS, "new", evolution.select_best)
    backend = choose_backend(random_model(), EaConfig(**options))
    assert parts(backend) == ("torch", "native", "native", "native", False)
    assert backend.name == "native and torch"


@needs_kernel
def test_the_kernel_differentiates_relu_alone():
    assert parts(choose_backend(random_model(activation="gelu"), EaConfig())) == (
        "native", "torch", "native", "native", False
    )  # fmt: skip
    linear = random_model(hidden=[], activation="gelu")  # which has no activation
    assert parts(choose_backend(linear, EaConfig())) == WHOLE


@needs_kernel
def test_missing_values_are_imputed_by_the_kernel_and_torch_adds_up_exact_m_steps():
    model = random_model(hidden=[])
    imputing = choose_backend(model, EaConfig(), imputes=True)
    assert parts(imputing) == WHOLE
    for function in (imputing.gradient, imputing.visit, imputing.stretch):
        assert function.keywords == {"imputes": True}
    exact = choose_backend(model, EaConfig(), is_exact_masked=True)
    assert parts(exact) == (*WHOLE[:4], False)
    assert exact.name == "native and torch"


@needs_kernel
@pytest.mark.parametrize(
    "likelihood", [KnownVariance(torch.ones(7).double()), OtherLikelihood(torch.ones(()).double())]
)
def test_of_another_likelihood_the_kernel_does_products_and_adam(likelihood):
    model = random_model()
    backend = choose_backend(Model(model.decoder, model.prior, likelihood), EaConfig())
    assert parts(backend) == ("torch", "torch", "native", "native", False)


def test_another_decoder_device_or_precision_is_all_torchs():
    model = random_model()
    decoder = OtherDecoder(6, [5], 7, "relu", torch.Generator()).double()
    others = (
        Model(decoder, model.prior, model.likelihood),
        random_model().to(torch.float16),
        random_model().to("meta"),
    )
    for other in others:
        backend = choose_backend(other, EaConfig())
        assert parts(backend) == NOTHING
        assert backend.name == "torch"
        assert backend.products is UNPACKED
        assert backend.at_work is nullcontext


def test_without_the_kernel_torch_does_everything(monkeypatch):
    monkeypatch.setattr(visit, "is_available", lambda: False)
    model, x = random_model(n_latents=12), random_data()
    backend = choose_backend(model, EaConfig())
    assert parts(backend) == NOTHING
    packed = draw_states(model.pi, 16, len(x), True, torch.Generator().manual_seed(0))
    step = backend.e_step(model, EaConfig(), x, packed, Stream(0, torch.arange(len(x))))
    assert step.elbo.isfinite().all()
    gradients = backend.gradient(model, x, significant_states(step, 0), None, len(x))
    optimiser = backend.optimiser(model.decoder.parameters(), 0.1)
    assert isinstance(optimiser, torch.optim.Adam)
    before = [parameter.detach().clone() for parameter in model.decoder.parameters()]
    for parameter, gradient in zip(model.decoder.parameters(), gradients, strict=True):
        parameter.grad = gradient
    with backend.at_work():
        optimiser.step()
    assert not any(map(torch.equal, before, model.decoder.parameters()))


@pytest.mark.parametrize("masked", [False, True])
def test_all_backends_compute_the_same(masked):
    """Parts of different backends that a choice mixes give the same results."""
    model, x, observed, step = evaluated(masked=masked)
    backend = choose_backend(model, EaConfig())
    again = backend.e_step(model, EaConfig(), x, step.packed, None, observed)
    torch.testing.assert_close(again.log_joint, step.log_joint)
    torch.testing.assert_close(again.error, step.error)
    rows = significant_states(step, 1e-3)
    expected = torch_backend.gradient_by(UNPACKED, impute=False)(model, x, rows, observed, len(x))
    torch.testing.assert_close(backend.gradient(model, x, rows, observed, len(x)), expected)
    mixed = torch_backend.gradient_by(backend.products, impute=False)(model, x, rows, observed, len(x))
    torch.testing.assert_close(mixed, expected)
