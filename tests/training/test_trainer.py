"""Training by minibatches: what it reports, how it stops and resumes, units, missing values."""

import itertools
import math

import pytest
import torch

from tests.conftest import load, same, small_config
from tvae.data.dataset import Dataset
from tvae.data.sets.bars import BarsConfig
from tvae.errors import TrainingFailed
from tvae.inference.evolution import EaConfig
from tvae.inference.states import StatesConfig, all_states
from tvae.model.units import Units
from tvae.model.vae import ModelConfig
from tvae.runs.files import STATES
from tvae.runs.setup import make_fit
from tvae.training.points import InMemory, units_of
from tvae.training.trainer import THINNED, LrConfig


def test_training_raises_the_elbo():
    config = small_config(epochs=60, model=ModelConfig(n_latents=8, hidden=[], solver="exact", sigma2=None))
    dataset = load(config)
    reports = list(make_fit(config, dataset).epochs())
    assert [r.epoch for r in reports] == list(range(1, 61))
    assert reports[-1].elbo > reports[0].elbo + 10
    assert all(b.elbo > a.elbo - 1e-3 for a, b in itertools.pairwise(reports)), "EM with exact M-steps"


def test_the_bound_leaves_the_states_as_they_are():
    """The order stays too: `authors` sorts by fitness and draws parents by place, which would change the picture."""
    config = small_config(ea=EaConfig("authors", n_parents=3, n_children=3))
    fit = make_fit(config, load(config))
    list(fit.epochs())
    before = fit.points.sets.tensor.clone()
    assert fit.bound() == fit.bound()
    assert torch.equal(fit.points.sets.tensor, before)


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_stopping_anywhere_and_resuming_changes_nothing(solver):
    config = small_config(model=ModelConfig(n_latents=8, hidden=[] if solver == "exact" else [8], solver=solver))
    dataset = load(config)
    whole = make_fit(config, dataset)
    expected = [r.elbo for r in whole.epochs()]
    for stop_after in (0, 1, 4, 7):
        asked = iter(range(10**6))
        first = make_fit(config, dataset)
        elbos = [r.elbo for r in first.epochs(lambda after=stop_after, asked=asked: next(asked) >= after)]
        second = make_fit(config, dataset)
        second.load_state_dict(first.state_dict())
        second.points.sets.tensor.copy_(first.points.sets.tensor)
        elbos += [r.elbo for r in second.epochs()]
        assert elbos == expected
        assert same(second.state_dict(), whole.state_dict())
        assert torch.equal(second.points.sets.tensor, whole.points.sets.tensor)


def test_imputed_values_count_in_sigma2_if_that_is_wanted():
    """The same with an interruption in the middle of an epoch."""
    config = small_config(model=ModelConfig(n_latents=8, hidden=[8], counts_imputed=True))
    data = InMemory(load(config).source.data, torch.rand(60, 16, generator=torch.Generator().manual_seed(0)) < 0.5)
    dataset = Dataset(data, (4, 4))
    sigmas = {}
    for counts in (True, False):
        config.model.counts_imputed = counts
        sigmas[counts] = [r.sigma for r in make_fit(config, dataset).epochs()]
    assert sigmas[True][0] < 0.9 * sigmas[False][0]
    config.model.counts_imputed = True
    asked = iter(range(10**6))
    first, second = make_fit(config, dataset), make_fit(config, dataset)
    interrupted = [r.sigma for r in first.epochs(lambda: next(asked) >= 1)]
    second.load_state_dict(first.state_dict())
    second.points.sets.tensor.copy_(first.points.sets.tensor)
    assert 0 < second.batch < second.n_batches(second.epoch)
    assert interrupted + [r.sigma for r in second.epochs()] == sigmas[True]


def test_n_thinned_visit_a_quarter_of_the_data_points_and_are_resumed():
    """The last epoch visits all; an interruption in the middle of a thinned epoch changes nothing."""
    config = small_config(epochs=4, batch_size=5, model=ModelConfig(n_latents=8, hidden=[], solver="exact"))
    config.n_thinned = 3
    dataset = load(config)

    fit, visited = make_fit(config, dataset), []
    visit = fit.visit

    def counted(index, *others):
        visited[-1].append(index)
        visit(index, *others)

    fit.visit = counted
    visited.append([])
    expected = []
    for report in fit.epochs():
        expected.append(report.elbo)
        visited.append([])
    per_epoch = [torch.cat(each).tolist() for each in visited[:4]]
    n = dataset.source.n_points
    assert [len(each) for each in per_epoch] == [math.ceil(n / THINNED)] * 3 + [n]
    assert all(len(set(each)) == len(each) for each in per_epoch)
    assert sorted(per_epoch[3]) == list(range(n))
    assert per_epoch[0] != per_epoch[1]

    asked = iter(range(10**6))
    first, second = make_fit(config, dataset), make_fit(config, dataset)
    interrupted = [report.elbo for report in first.epochs(lambda: next(asked) >= 4)]
    second.load_state_dict(first.state_dict())
    second.points.sets.tensor.copy_(first.points.sets.tensor)
    assert second.batch > 0
    assert second.epoch < 3
    assert interrupted + [report.elbo for report in second.epochs()] == expected


def test_states_in_a_file_are_the_same_states(tmp_path):
    config = small_config()
    dataset = load(config)
    in_memory = make_fit(config, dataset)
    expected = [r.elbo for r in in_memory.epochs()]
    config.states.memmap = True
    in_file = make_fit(config, dataset, tmp_path)
    assert [r.elbo for r in in_file.epochs()] == expected
    stored = torch.frombuffer(bytearray((tmp_path / STATES.format(0)).read_bytes()), dtype=torch.uint8)
    assert torch.equal(stored.view(in_memory.points.sets.tensor.shape), in_memory.points.sets.tensor)


def test_same_seed_same_result_other_seed_another():
    config = small_config()
    dataset = load(config)
    elbos = []
    for seed in (0, 0, 1):
        config.seed = seed
        elbos.append([r.elbo for r in make_fit(config, dataset).epochs()])
    assert elbos[0] == elbos[1] != elbos[2]


def test_standardising_changes_units_and_nothing_else():
    """Data in other units, standardised: the same training; ELBO and sigma differ by the change of units alone."""
    config = small_config(epochs=3, precision="float64")
    config.model.sigma2 = None
    config.dataset.standardise = True
    dataset = load(config)
    scaled = Dataset(InMemory(1000 + 50 * dataset.source.data), dataset.shape)
    plain, other = (list(make_fit(config, d).epochs()) for d in (dataset, scaled))
    n_values = dataset.source.data.shape[1]
    for a, b in zip(plain, other, strict=True):
        assert b.sigma == pytest.approx(50 * a.sigma, rel=1e-6)
        assert b.elbo == pytest.approx(a.elbo - n_values * math.log(50), abs=1e-5)


def test_the_reported_elbo_is_that_of_the_data_in_their_own_units():
    """Exact posterior, fixed parameters: the ELBO is the log-likelihood of a model in the data's units."""
    config = small_config(epochs=1, precision="float64", states=StatesConfig(n_states=256), batch_size=60)
    config.dataset.standardise = True
    dataset = load(config)
    fit = make_fit(config, dataset)
    units, model = fit.units, fit.model
    data = dataset.source.data.double()
    z = all_states(8).double()
    mu = units.to_data(model.decoder(z))
    variance = model.likelihood.sigma2 * units.std**2
    noise = torch.distributions.Normal(mu, variance.sqrt()).log_prob(data[:, None]).sum(-1)
    expected = (noise + model.log_prior(z)).logsumexp(1).mean().item()
    assert next(iter(fit.epochs())).elbo == pytest.approx(expected, abs=1e-9)


def test_missing_values_change_nothing_but_their_own():
    """Unobserved values do not matter, and sigma2 counts the observed ones alone."""
    config = small_config(epochs=3, dataset=BarsConfig(n_points=60, standardise=True))
    dataset = load(config)
    observed = torch.rand(dataset.source.data.shape, generator=torch.Generator().manual_seed(0)) < 0.7
    results = []
    for filler in (0.0, float("nan"), 1e6):
        data = dataset.source.data.where(observed, filler)
        fit = make_fit(config, Dataset(InMemory(data, observed), (4, 4)))
        results.append([(r.elbo, r.sigma) for r in fit.epochs()])
    assert results[0] == results[1] == results[2]


def test_units_of_the_observed_values():
    data = torch.tensor([[1.0, 3.0], [5.0, 100.0]])
    observed = torch.tensor([[True, True], [True, False]])
    assert units_of(InMemory(data, observed), True) == Units(3.0, pytest.approx((8 / 3) ** 0.5))
    assert units_of(InMemory(data), False) == Units(0.0, 1.0)


@pytest.mark.parametrize("sigma2", [0.04, None])
def test_initial_parameters(sigma2):
    config = small_config(model=ModelConfig(n_latents=8, hidden=[8], sigma2=sigma2))
    config.dataset.standardise = True
    dataset = load(config)
    model = make_fit(config, dataset).model
    variance = dataset.source.data.var(correction=0).item()
    assert model.likelihood.sigma2.item() == pytest.approx(1.0 if sigma2 is None else sigma2 / variance, rel=1e-5)
    assert torch.equal(model.pi, torch.full((8,), 1 / 8))
    assert not any(bias.any() for bias in model.decoder.biases)


def test_a_diverging_run_says_so():
    config = small_config(lr=LrConfig("constant", max=1e30), epochs=20)
    with pytest.raises(TrainingFailed, match="ELBO became"):
        list(make_fit(config, load(config)).epochs())


def test_double_precision():
    config = small_config(precision="float64")
    fit = make_fit(config, load(config))
    list(fit.epochs())
    assert {p.dtype for p in (*fit.model.parameters(), *fit.model.buffers())} == {torch.float64}
