"""The native backend's own account of what it can do."""

import pytest
import torch
from native_samples import needs_kernel

from tests.conftest import random_model
from tvae.backends import native
from tvae.backends.native import bindings, visit
from tvae.inference import evolution
from tvae.inference.evolution import SELECTIONS, EaConfig
from tvae.model import decoder as decoders
from tvae.model.decoder import ACTIVATIONS, Mlp
from tvae.model.likelihood import KnownVariance
from tvae.model.vae import Model

pytestmark = needs_kernel


class OtherDecoder(Mlp):
    kind = "other"


def other_decoder(model):
    decoder = OtherDecoder(6, [5], 7, "relu", torch.Generator()).double()
    return Model(decoder, model.prior, model.likelihood)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_papers_models(activation):
    model = random_model(activation=activation)
    assert native.is_usable(model)
    assert all(native.has_e_step(model, EaConfig(selection)) for selection in SELECTIONS)
    assert native.has_gradient(model) == (activation == "relu")
    assert native.has_gradient(random_model(hidden=[], activation=activation))


def test_nothing_for_other_tensors_and_decoders():
    model = random_model()
    for other in (random_model().to(torch.float16), random_model().to("meta"), other_decoder(model)):
        assert not native.is_usable(other)
        assert not native.has_e_step(other, EaConfig())
        assert not native.has_gradient(other)


def test_products_and_adam_for_other_likelihoods():
    model = random_model()
    other = Model(model.decoder, model.prior, KnownVariance(torch.ones(7, dtype=torch.float64)))
    assert native.is_usable(other)
    assert not native.has_e_step(other, EaConfig())
    assert not native.has_gradient(other)


@pytest.mark.parametrize("ea", [EaConfig(mutation="sparse"), EaConfig(crossover=True)])
def test_no_search_other_than_by_flips(ea):
    assert not native.has_e_step(random_model(), ea)


def test_no_selection_or_activation_that_only_torch_has(monkeypatch):
    monkeypatch.setitem(evolution.SELECTIONS, "new", SELECTIONS["best"])
    monkeypatch.setitem(decoders.ACTIVATIONS, "new", torch.relu)
    assert not native.has_e_step(random_model(), EaConfig("new"))
    assert not native.has_e_step(random_model(activation="new"), EaConfig())
    assert native.has_e_step(random_model(hidden=[], activation="new"), EaConfig())


def test_names_are_those_of_the_core():
    assert bindings.SELECTIONS.keys() <= SELECTIONS.keys()
    assert bindings.ACTIVATIONS.keys() <= ACTIVATIONS.keys()


def test_nothing_without_the_library(monkeypatch):
    monkeypatch.setattr(visit, "is_available", lambda: False)
    assert not native.is_usable(random_model())
