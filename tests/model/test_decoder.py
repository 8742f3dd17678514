import pytest
import torch
from torch import nn

from tests.conftest import random_model
from tvae.inference.states import all_states
from tvae.model.decoder import ACTIVATIONS, Mlp, why_not_from_linear

MODULES = {
    "relu": nn.ReLU(), "leaky_relu": nn.LeakyReLU(), "elu": nn.ELU(), "gelu": nn.GELU(), "silu": nn.SiLU(),
    "softplus": nn.Softplus(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(),
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [[], [4], [5, 3, 6]])
def test_equals_a_stack_of_torch_layers(activation, hidden):
    decoder = random_model(hidden=hidden, activation=activation).decoder
    layers: list[nn.Module] = []
    for weight, bias in zip(decoder.weights, decoder.biases, strict=True):
        layer = nn.Linear(*weight.shape).double()
        layer.weight.data, layer.bias.data = weight.data.T, bias.data
        layers += [layer, MODULES[activation]]
    z = all_states(6).double()
    torch.testing.assert_close(decoder(z), nn.Sequential(*layers[:-1])(z))


def test_starts_with_glorot_weights_and_zero_biases():
    decoder = Mlp(200, [300], 400, "relu", torch.Generator().manual_seed(0))
    for weight, bias in zip(decoder.weights, decoder.biases, strict=True):
        assert weight.std().item() == pytest.approx((2 / sum(weight.shape)) ** 0.5, rel=0.02)
        assert not bias.any()


@pytest.mark.parametrize("hidden", [[6], [6, 6], [9, 7]])
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "elu"])
def test_a_deep_decoder_starts_as_the_linear_one(hidden, activation):
    linear = random_model(hidden=[]).decoder
    deep = random_model(hidden=hidden, activation=activation, seed=3).decoder
    deep.start_from_linear(linear)
    z = all_states(6).double()
    torch.testing.assert_close(deep(z), linear(z))
    assert torch.equal(deep.weights[-1][:6], linear.weights[0])
    assert torch.equal(deep.weights[0][:, :6], torch.eye(6).double())


def test_more_latents_than_outputs():
    linear = random_model(n_latents=12, hidden=[]).decoder
    deep = random_model(n_latents=12, hidden=[12], seed=3).decoder
    deep.start_from_linear(linear)
    torch.testing.assert_close(deep(all_states(12).double()), linear(all_states(12).double()))


def test_extra_hidden_units_can_learn():
    deep = random_model(hidden=[9], seed=3).decoder
    deep.start_from_linear(random_model(hidden=[]).decoder)
    deep(all_states(6).double()).square().sum().backward()
    assert deep.weights[-1].grad[6:].abs().sum() > 0


def test_says_why_a_linear_start_is_impossible():
    assert "not linear" in why_not_from_linear([6, 6, 7], "relu", [6, 5, 7])[0]
    assert "8 latents to 7" in why_not_from_linear([6, 6, 7], "relu", [8, 7])[0]
    assert "at least 6 units" in why_not_from_linear([6, 5, 7], "relu", [6, 7])[0]
    assert "tanh does not" in why_not_from_linear([6, 6, 7], "tanh", [6, 7])[0]
    assert why_not_from_linear([6, 6, 7], "relu", [6, 7]) == []
