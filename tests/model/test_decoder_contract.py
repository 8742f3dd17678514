"""The contract of a decoder, for perceptrons and for two kinds that are defined here: those run through training and
restoration on the torch backend, and no other file knows of them."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import random_model, same
from tvae.backends import choose_backend
from tvae.data.patch_source import PatchSource
from tvae.data.picture import Picture
from tvae.inference.evolution import EaConfig
from tvae.inference.states import StatesConfig, all_states
from tvae.io.image_file import from_array
from tvae.model import decoder as decoders
from tvae.model.decoder import Decoder, Mlp, decoder_from
from tvae.model.likelihood import Gaussian
from tvae.model.packed import pack
from tvae.model.prior import Bernoulli
from tvae.model.vae import Model, model_from
from tvae.restoration.metrics import psnr
from tvae.restoration.posterior_mean import Plan, restore
from tvae.training.points import Points, units_of
from tvae.training.team import ALONE
from tvae.training.trainer import Fit, FitConfig, LrConfig


class Shaped(Decoder):
    """The base of both kinds: weights (H, D), a bias (D,), and a spec of two numbers."""

    def __init__(self, n_latents, n_outputs, rng):
        super().__init__()
        self.n_latents, self.n_outputs = n_latents, n_outputs
        self.weight = nn.Parameter(torch.randn(n_latents, n_outputs, generator=rng))
        self.bias = nn.Parameter(torch.zeros(n_outputs))

    def spec(self):
        return {"decoder": self.kind, "shape": [self.n_latents, self.n_outputs]}

    @classmethod
    def start(cls, start):
        return cls(start.options.n_latents, start.n_outputs, start.rng)

    @classmethod
    def from_spec(cls, spec):
        return cls(*spec["shape"], torch.Generator())

    @property
    def cost(self):
        return self.weight.numel()


class Switched(Shaped):
    """mu(z) = (1 + g z_0) (W^T z + b): the first latent switches the gain of all others."""

    kind = "switched"

    def __init__(self, n_latents, n_outputs, rng):
        super().__init__(n_latents, n_outputs, rng)
        self.gain = nn.Parameter(torch.tensor(0.5))

    def first(self, z):
        return torch.cat([z @ self.weight + self.bias, z[..., :1]], -1)

    def flip(self, pre, latent, sign):
        change = torch.cat([self.weight[latent], (latent == 0)[..., None]], -1)
        return pre + sign[..., None] * change

    def rest(self, pre):
        return (1 + self.gain * pre[..., -1:]) * pre[..., :-1]


class Covering(Shaped):
    """mu_d(z) = max(b_d, max_h z_h W_hd): causes cover each other instead of adding up."""

    kind = "covering"

    def first(self, z):
        return z

    def flip(self, pre, latent, sign):
        return pre.scatter_add_(-1, latent[..., None], sign[..., None].to(pre.dtype))

    def rest(self, pre):
        return torch.where(pre[..., None] > 0, self.weight, -torch.inf).amax(-2).maximum(self.bias)


KINDS = {kind.kind: kind for kind in (Switched, Covering)}


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    monkeypatch.setattr(decoders, "DECODERS", {**decoders.DECODERS, **KINDS})


@pytest.fixture(params=["linear", "deep", *KINDS])
def decoder(request):
    if request.param in KINDS:
        decoder = KINDS[request.param](6, 7, torch.Generator().manual_seed(0)).double()
        nn.init.uniform_(decoder.bias, generator=torch.Generator().manual_seed(1))
        return decoder
    return random_model(hidden=[] if request.param == "linear" else [5, 4]).decoder


def test_flipping_a_latent_gives_the_first_part_of_the_flipped_state(decoder):
    z = all_states(6).double()
    for latents in (range(6), (5, 0, 5)):  # each by itself, and one after the other
        before, pre = z, decoder.first(z)
        for h in latents:
            after = before.clone()
            after[:, h] = 1 - after[:, h]
            latent, sign = torch.full((len(z),), h), (after - before)[:, h].long()
            pre = decoder.flip(pre.detach().clone(), latent, sign)
            torch.testing.assert_close(pre, decoder.first(after))
            before = after


def test_a_batch_of_flips_is_that_of_its_rows(decoder):
    z = all_states(6)[:40].double().view(5, 8, 6)
    latent = torch.arange(40).view(5, 8) % 6
    sign = 1 - 2 * z.gather(-1, latent[..., None])[..., 0].long()
    flipped = z.scatter(-1, latent[..., None], 1 - z.gather(-1, latent[..., None]))
    torch.testing.assert_close(decoder.flip(decoder.first(z).detach().clone(), latent, sign), decoder.first(flipped))


def test_both_parts_together_are_the_decoder(decoder):
    z = all_states(6).double()
    mu = decoder.rest(decoder.first(z))
    assert mu.shape == (64, decoder.n_outputs)
    assert torch.equal(decoder(z), mu)
    torch.testing.assert_close(decoder(z.view(4, 16, 6)), mu.view(4, 16, -1))


def test_packed_states_give_the_same_with_gradients(decoder):
    z, parameters = all_states(6).double(), list(decoder.parameters())
    both = [decoder.rest(first) for first in (decoder.first_of_packed(pack(z)), decoder.first(z))]
    torch.testing.assert_close(*both)
    torch.testing.assert_close(*(torch.autograd.grad(mu.square().sum(), parameters) for mu in both))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spec_and_parameters_say_all(decoder, dtype):
    decoder = decoder.to(dtype)
    again = decoder_from(decoder.spec(), decoder.state_dict())
    assert type(again) is type(decoder)
    assert again.spec() == decoder.spec()
    assert same(dict(again.state_dict()), dict(decoder.state_dict()))
    assert torch.equal(again(all_states(6).to(dtype)), decoder(all_states(6).to(dtype)))
    assert again.cost == decoder.cost > 0


def test_only_a_perceptron_without_hidden_layers_is_linear(decoder):
    assert decoder.is_linear == (type(decoder) is Mlp and len(decoder.sizes) == 2)


def noisy_picture():
    """Rows and columns that cover each other, with noise."""
    rng = np.random.default_rng(0)
    rows, columns = rng.random((2, 24)) < 0.3
    clean = np.maximum(100.0 * rows[:, None], 160.0 * columns)[..., None]
    noisy = clean + 30 * rng.normal(size=clean.shape)
    return Picture(from_array(noisy), noisy, clean, peak_of_clean=160.0)


def fit_of(picture, kind):
    """Training on all patches of a picture, put together as `runs.setup` does, with a decoder it does not know."""
    source = PatchSource(picture, 3, 1)
    units = units_of(source, standardise=True)
    lr = LrConfig("constant", max=0.03)
    config = FitConfig(states=StatesConfig(n_states=16), ea=EaConfig("posterior"), lr=lr, epochs=15)
    decoder = kind(8, source.n_values, torch.Generator().manual_seed(0))
    model = Model(decoder, Bernoulli(torch.full((8,), 0.25)), Gaussian(torch.tensor(1.0)))
    points = Points(source, ALONE, units, torch.device("cpu"), torch.float32)
    points.draw_states(model.pi.double(), config.states, seed=0)
    return Fit(config, model, choose_backend(model, config.ea), points, units)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_another_decoder_trains_resumes_and_restores(kind):
    picture = noisy_picture()
    fit, first, second = (fit_of(picture, kind) for _ in range(3))
    assert fit.backend.name == "torch"
    elbos = [epoch.elbo for epoch in fit.epochs()]
    assert elbos[-1] > elbos[0] + 3
    restored = restore(fit, picture, Plan(patch_size=3, train_stride=1))
    assert psnr(picture.clean, restored.pixels, 160.0) > psnr(picture.clean, picture.noisy, 160.0) + 5
    assert (restored.uncertainty > 0).any()

    asked = iter(range(10**6))
    before = [epoch.elbo for epoch in first.epochs(lambda: next(asked) >= 40)]
    content = first.state_dict()
    second.model.load(model_from(content, content["model"]).parameters_by_name())
    second.load_state_dict(content)
    second.points.sets.tensor.copy_(first.points.sets.tensor)
    assert before + [epoch.elbo for epoch in second.epochs()] == elbos
    assert same(second.state_dict(), fit.state_dict())
