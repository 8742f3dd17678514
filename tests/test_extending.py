"""The examples of docs/extending.md run as they stand, train on the torch backend, and are refused by the kernel."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from composing import checked
from hydra.core.config_store import ConfigStore
from torch import nn
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Laplace as TorchLaplace

from tests.conftest import draw_states, load, random_data, random_model, same, small_config
from tvae.backends import choose_backend, native, torch_backend
from tvae.config.recipe import prepare
from tvae.data.patch_source import PatchSource
from tvae.data.picture import Picture
from tvae.data.sets.image import ImageConfig
from tvae.errors import UserError
from tvae.inference.evolution import MUTATIONS, SELECTIONS, EaConfig
from tvae.inference.posterior import significant_states
from tvae.inference.states import StatesConfig, all_states
from tvae.inference.streams import Stream
from tvae.io.formats import FORMATS
from tvae.io.image_file import from_array, read_image, write_image
from tvae.model.decoder import DECODERS
from tvae.model.likelihood import LIKELIHOODS
from tvae.model.packed import UNPACKED, pack, unpack
from tvae.model.parts import Start
from tvae.model.prior import PRIORS, Bernoulli, Prior
from tvae.model.units import Units
from tvae.model.vae import Model, ModelConfig, model_from, start_model
from tvae.restoration.cost import stages
from tvae.restoration.metrics import psnr
from tvae.restoration.pipeline import restore_picture
from tvae.restoration.posterior_mean import Plan, restore
from tvae.restoration.second_stage import SECOND_STAGES
from tvae.restoration.tiling import Bands
from tvae.runs.result import check_output
from tvae.runs.setup import make_fit
from tvae.training.points import Points, units_of
from tvae.training.team import ALONE
from tvae.training.trainer import Fit, FitConfig, LrConfig

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
TABLES = (DECODERS, PRIORS, LIKELIHOODS, SELECTIONS, MUTATIONS, FORMATS, SECOND_STAGES)
CHANGES = {
    "likelihood": ({"likelihood": "laplace"}, {}),
    "prior": ({"prior": "per_point"}, {}),
    "decoder": ({"decoder": "convolutional"}, {}),
    "selection": ({}, {"selection": "tournament"}),
    "mutation": ({}, {"mutation": "moving", "selection": "posterior"}),
}


@pytest.fixture(autouse=True)
def example():
    """All that the page defines, and its names in the tables while a test runs."""
    before = [dict(table) for table in TABLES]
    found = {"__name__": "extending"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, found)
    yield found
    for table, names in zip(TABLES, before, strict=True):
        table.clear()
        table.update(names)


def config_with(change):
    model, ea = CHANGES[change]
    config = small_config(epochs=12, precision="float64", lr=LrConfig("constant", max=0.02))
    config.model = ModelConfig(n_latents=8, hidden=[8], **model)
    config.ea = EaConfig(n_parents=3, n_children=3, **ea)
    return config


@pytest.mark.parametrize("change", CHANGES)
def test_it_trains_resumes_and_is_loaded_again(change):
    config = config_with(change)
    dataset = load(config)
    whole, first, second = (make_fit(config, dataset) for _ in range(3))
    elbos = [epoch.elbo for epoch in whole.epochs()]
    assert elbos[-1] > elbos[0] + 3
    assert whole.bound() > elbos[0]
    asked = iter(range(10**6))
    before = [epoch.elbo for epoch in first.epochs(lambda: next(asked) >= 18)]
    content = first.state_dict()
    assert same(model_from(content, content["model"]).parameters_by_name(), first.model.parameters_by_name())
    second.load_state_dict(content)
    second.points.sets.tensor.copy_(first.points.sets.tensor)
    assert before + [epoch.elbo for epoch in second.epochs()] == elbos
    assert same(second.state_dict()["model"], whole.state_dict()["model"])


@pytest.mark.parametrize("change", CHANGES)
def test_the_kernel_refuses_it_by_itself(change):
    config = config_with(change)
    fit = make_fit(config, load(config))
    assert not native.has_e_step(fit.model, config.ea)
    assert fit.backend.e_step is torch_backend.e_step
    assert fit.backend.stretch is None
    is_search = change in ("selection", "mutation")
    assert native.has_gradient(fit.model) == (is_search and native.is_usable(fit.model))


def test_laplace_is_that_of_torch(example):
    likelihood = example["Laplace"](torch.tensor(0.7, dtype=torch.float64))
    x, mu, z = random_data(5, 7), random_data(20, 7, seed=3).view(5, 4, 7), torch.zeros(5, 4, 6)
    observed = random_data(5, 7, seed=5) > 0
    noise = TorchLaplace(mu, 0.7).log_prob(x[:, None])
    for known in (None, observed):
        expected = (noise if known is None else noise * known[:, None]).sum(-1)
        torch.testing.assert_close(likelihood.log_prob(likelihood.error(x, mu, z, known), x, known), expected)
    rows, weight = mu[:, 0].clone().requires_grad_(), torch.rand(5, dtype=torch.float64)
    loss = -(weight * TorchLaplace(rows, 0.7).log_prob(x).sum(-1)).sum() / 17
    (expected,) = torch.autograd.grad(loss, rows)
    torch.testing.assert_close(likelihood.slope(x, rows.detach(), pack(z[:, 0]), weight, None, 17), expected)
    drawn = likelihood.sample(torch.zeros(100_000, dtype=torch.float64), torch.Generator().manual_seed(0))
    assert drawn.std().item() == pytest.approx(likelihood.sigma(Units()), rel=0.02)


def per_point_model(example, n_points=9):
    """A model whose prior differs between data points."""
    plain = random_model()
    each = torch.rand(n_points, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Model(plain.decoder, example["PerPoint"](0.05 + 0.9 * each), plain.likelihood)


def test_each_data_point_has_its_own_prior(example):
    """Priors differ in the log-joint and in the E-step with and without flips, whatever the minibatch."""
    model, x, index = per_point_model(example), random_data(), torch.tensor([7, 0, 3, 8, 1])
    z = all_states(6).double().expand(5, -1, -1)
    prior = TorchBernoulli(model.prior.each[index][:, None]).log_prob(z).sum(-1)
    torch.testing.assert_close(model.log_prior(z, index), prior)
    exact = model.log_joint(x, z, None, index).logsumexp(1).detach()
    assert (exact - model.log_joint(x, z).logsumexp(1)).abs().min() > 1e-3, "another prior, another likelihood"
    whole = torch_backend.e_step(model, EaConfig(), x, pack(z), None, None, index)
    torch.testing.assert_close(whole.elbo, exact)
    packed = draw_states(model.pi, 12, 5, False, torch.Generator().manual_seed(0))
    for ea in (EaConfig(n_generations=2), EaConfig(n_flips=2), EaConfig(crossover=True)):
        step = torch_backend.e_step(model, ea, x, packed, Stream(0, index), None, index)
        states = unpack(step.packed, 6, torch.float64)
        torch.testing.assert_close(step.log_joint, model.log_joint(x, states, None, index).detach())


def test_a_prior_per_data_point_restores_a_picture_from_the_states_of_the_nearest_trained_patch():
    """Restoration works with every second patch trained on: there are more patches than the prior has rows."""
    rng = np.random.default_rng(0)
    rows, columns = rng.random((2, 24)) < 0.3
    clean = np.maximum(100.0 * rows[:, None], 160.0 * columns)[..., None]
    noisy = clean + 30 * rng.normal(size=clean.shape)
    picture = Picture(from_array(noisy), noisy, clean, peak_of_clean=160.0)
    source = PatchSource(picture, 3, 2)
    units = units_of(source, standardise=True)
    lr, states = LrConfig("constant", max=0.03), StatesConfig(n_states=16)
    config = FitConfig(states=states, ea=EaConfig("posterior"), lr=lr, epochs=30)
    options = ModelConfig(n_latents=8, hidden=[], prior="per_point", sigma2=None)
    model = start_model(options, source.n_points, 9, units.std**2, units, torch.Generator().manual_seed(0)).float()
    points = Points(source, ALONE, units, torch.device("cpu"), torch.float32)
    points.draw_states(model.pi.double(), states, seed=0)
    fit = Fit(config, model, choose_backend(model, config.ea), points, units)
    list(fit.epochs())
    restored = restore(fit, picture, Plan(patch_size=3, train_stride=2))
    assert psnr(clean, restored.pixels, 160.0) > psnr(clean, noisy, 160.0) + 3


class Learned(Bernoulli):
    """A prior whose logits Adam learns."""

    name = "learned"

    def __init__(self, logit):
        nn.Module.__init__(self)
        self.logit = nn.Parameter(logit)

    @classmethod
    def start(cls, start):
        return cls(torch.full((start.options.n_latents,), -1.0, dtype=torch.float64))

    def mean(self):
        return self.logit.detach().sigmoid()

    def logits(self, index=None):
        return self.logit

    log_prob = Prior.log_prob

    def statistics_shapes(self):
        return {}

    def add_statistics(self, sums, batch):
        pass

    def update(self, sums):
        pass

    def spec(self):
        return {"prior": self.name}

    def problem(self, state):
        return None


def test_adam_gets_the_parameters_of_all_parts():
    PRIORS["learned"] = Learned
    config = small_config(precision="float64")
    config.model.prior = "learned"
    fit = make_fit(config, load(config))
    index = torch.arange(16)
    x, _ = fit.points.rows(index)
    step = fit.backend.e_step(fit.model, config.ea, x, fit.points.sets.take(index), None, None, index)
    z = unpack(step.packed, 8, torch.float64)
    loss = -(step.weights * fit.model.log_joint(x, z)).sum() / 20
    expected = torch.autograd.grad(loss, list(fit.model.parameters()))
    found = torch_backend.gradient_by(UNPACKED, False)(fit.model, x, significant_states(step, 0), None, 20, index)
    torch.testing.assert_close(found, list(expected))
    before = fit.model.prior.logit.detach().clone()
    list(fit.epochs())
    assert (fit.model.prior.logit != before).all()
    content = fit.state_dict()
    again = model_from(content, content["model"])
    assert torch.equal(again.prior.logit, fit.model.prior.logit)


def test_a_flip_of_the_convolutional_decoder_is_the_flipped_state(example):
    start = Start(ModelConfig(n_latents=6, hidden=[]), 1, 16, 1.0, Units(), torch.Generator().manual_seed(0))
    decoder = example["Convolutional"].start(start).double()
    z = all_states(6).double()
    for h in range(6):
        flipped = z.clone()
        flipped[:, h] = 1 - z[:, h]
        changed = decoder.flip(decoder.first(z), torch.full((64,), h), 1 - 2 * z[:, h])
        torch.testing.assert_close(decoder.rest(changed), decoder(flipped))
    maps = torch.relu(decoder.first(z[37])).view(4, 4, 4)
    padded = torch.nn.functional.pad(maps, (1, 1, 1, 1))
    by_hand = (decoder.kernel[0] * padded[:, 1:4, 2:5]).sum()  # the pixel in row 1, column 2
    torch.testing.assert_close(decoder(z)[37, 6], by_hand)


def test_the_better_of_two_is_selected(example):
    """The k-th best of C states wins with probability (2 (C - k) + 1) / C^2."""
    fitness, n = torch.tensor([[1.0, 4.0, 2.0, 3.0]]), 40_000
    found = example["select_by_tournament"](fitness, n, Stream(0, torch.zeros(1, dtype=torch.int64)))
    share = torch.bincount(found[0], minlength=4) / n
    expected = torch.tensor([1.0, 7.0, 3.0, 5.0]) / 16
    assert ((share - expected).abs() < 4 * (expected / n).sqrt()).all()


def test_a_moved_latent_leaves_as_many_on(example):
    z = (torch.rand(3, 4, 5, 9, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    moved = example["mutate_by_moving"](z, 1, torch.tensor(2.0), Stream(0, torch.arange(3)))
    assert torch.equal(moved.sum(-1), z.sum(-1))
    assert set((moved - z).abs().sum(-1).unique().tolist()) == {0.0, 2.0}


def test_the_data_set_composes_and_trains(example, tmp_path):
    kind = example["WavesConfig"]
    (content,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert yaml.safe_load(content)["standardise"] is True
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "waves.yaml").write_text(content)
    ConfigStore.instance().store(group="schema/dataset", name="waves", node=kind)
    given = checked("dataset=waves", f"hydra.searchpath=[file://{tmp_path}]", "dataset.n_points=50")
    assert (given.dataset.name, given.dataset.n_points, given.dataset.standardise) == ("waves", 50, True)
    config, dataset = prepare(given)
    assert (config.epochs, config.lr.max, config.model.n_latents) == (20, 0.01, 16)
    assert dataset.source.data.shape == (50, 64)
    elbos = [epoch.elbo for epoch in make_fit(config, dataset).epochs()]
    assert elbos[-1] > elbos[0]


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_a_format_is_written_and_read(tmp_path, dtype, channels):
    pixels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (9, 7, *channels), dtype=dtype)
    path = tmp_path / "a.jp2"
    write_image(path, pixels)
    image = read_image(path)
    assert image.dtype == dtype
    np.testing.assert_array_equal(image.pixels, pixels.reshape(9, 7, -1))
    check_output(small_config(output=str(tmp_path / "b.jp2")), tmp_path)
    with pytest.raises(UserError, match="cannot hold float64"):
        write_image(path, pixels.astype(float))
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UserError, match="damaged or truncated"):
        read_image(path)


def noisy_squares(n_pages=1):
    rng = np.random.default_rng(0)
    clean = np.kron(rng.integers(40, 215, (6 * n_pages, 7)), np.ones((8, 8)))[..., None]
    return clean, clean + 20 * rng.standard_normal(clean.shape)


def restored_by(method, picture, **options):
    """The picture by this method, the stages that it told of, and those that were foreseen."""
    dataset = ImageConfig(name="file", patch_size=4, train_stride=1, standardise=True)
    model, lr = ModelConfig(n_latents=16, hidden=[], sigma2=None, solver="exact"), LrConfig("constant", max=0.01)
    config = small_config(image="a.png", dataset=dataset, model=model, lr=lr, epochs=12, task="denoise", **options)
    config.restoration.method = method
    config, dataset = prepare(config, picture)
    fit, told = make_fit(config, dataset), []
    list(fit.epochs())
    bands = Bands(watch=lambda stage, share: told.append(stage))
    return restore_picture(fit, picture, config, bands), told, stages(config, fit, picture)


def test_a_second_stage_refines_the_picture():
    clean, noisy = noisy_squares()
    picture = Picture(from_array(noisy), noisy, clean, peak_of_clean=255.0, sigma=20.0)
    alone, told, foreseen = restored_by("posterior_mean", picture)
    assert set(told) == set(foreseen) == {"states"}
    refined, told, foreseen = restored_by("wiener", picture)
    assert list(dict.fromkeys(told)) == list(foreseen) == ["states", "wiener"]
    before = psnr(clean, noisy, 255.0)
    assert psnr(clean, alone.pixels, 255.0) > before + 2
    assert psnr(clean, refined.pixels, 255.0) > max(refined.psnr_model, before + 2) + 0.5


def test_a_second_stage_keeps_known_pixels():
    clean, _ = noisy_squares()
    missing = np.random.default_rng(1).random(clean.shape[:2]) < 0.3
    holed = np.where(missing[..., None], 0, clean)
    refined, _, _ = restored_by("wiener", Picture(from_array(clean), holed, missing=missing), keep_known=True)
    np.testing.assert_array_equal(refined.pixels[~missing], clean[~missing])
    assert np.isfinite(refined.pixels).all()
