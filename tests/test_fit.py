import itertools
import math

import pytest
import torch
from conftest import small_config

from tvae import datasets
from tvae.checkpoint import Part
from tvae.config import BarsConfig, LrConfig, ModelConfig, StatesConfig
from tvae.datasets import Dataset, Units, bars, units_of
from tvae.fit import Fit, TrainingFailed
from tvae.model import log_likelihood
from tvae.points import STATES
from tvae.states import all_states
from tvae.train import known_facts

CPU = torch.device("cpu")


def same(a, b):
    """Equal to the last bit, through dictionaries and lists."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a if k != "seconds")
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def parts_of(fit):
    """As a checkpoint would have them."""
    return [Part(name, tuple(rows.shape), None, "", part) for part in fit.parts() for name, rows in part.items()]


def test_training_raises_the_elbo():
    config = small_config(epochs=60, model=ModelConfig(n_latents=8, hidden=[], solver="exact", sigma2=None))
    dataset = datasets.load(config)
    reports = list(Fit(config, dataset, CPU).epochs())
    assert [r.epoch for r in reports] == list(range(1, 61))
    assert reports[-1].elbo > reports[0].elbo + 10
    assert all(b.elbo > a.elbo - 1e-3 for a, b in itertools.pairwise(reports)), "EM with exact M-steps"


@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_stopping_anywhere_and_going_on_changes_nothing(solver):
    config = small_config(model=ModelConfig(n_latents=8, hidden=[] if solver == "exact" else [8], solver=solver))
    dataset = datasets.load(config)
    whole = Fit(config, dataset, CPU)
    expected = [r.elbo for r in whole.epochs()]
    for stop_after in (0, 1, 4, 7):
        asked = iter(range(10**6))
        first = Fit(config, dataset, CPU)
        elbos = [r.elbo for r in first.epochs(lambda after=stop_after, asked=asked: next(asked) >= after)]
        second = Fit(config, dataset, CPU)
        second.load_state_dict(first.state_dict(), parts_of(first))
        elbos += [r.elbo for r in second.epochs()]
        assert elbos == expected
        assert same(second.state_dict(), whole.state_dict())
        assert torch.equal(second.points.states, whole.points.states)


def test_states_in_a_file_are_the_same_states(tmp_path):
    config = small_config()
    dataset = datasets.load(config)
    in_memory = Fit(config, dataset, CPU)
    expected = [r.elbo for r in in_memory.epochs()]
    config.states.memmap = True
    in_file = Fit(config, dataset, CPU, tmp_path)
    assert [r.elbo for r in in_file.epochs()] == expected
    stored = torch.frombuffer(bytearray((tmp_path / STATES.format(0)).read_bytes()), dtype=torch.uint8)
    assert torch.equal(stored.view(in_memory.points.states.shape), in_memory.points.states)


def test_same_seed_same_result_other_seed_another():
    config = small_config()
    dataset = datasets.load(config)
    elbos = []
    for seed in (0, 0, 1):
        config.seed = seed
        elbos.append([r.elbo for r in Fit(config, dataset, CPU).epochs()])
    assert elbos[0] == elbos[1] != elbos[2]


def test_standardising_changes_units_and_nothing_else():
    """Data in other units, standardised: the same training; ELBO and sigma differ by the change of units alone."""
    config = small_config(epochs=3, precision="float64")
    config.model.sigma2 = None
    config.dataset.standardise = True
    dataset = datasets.load(config)
    scaled = Dataset(1000 + 50 * dataset.data, dataset.shape)
    plain, other = (list(Fit(config, d, CPU).epochs()) for d in (dataset, scaled))
    n_values = dataset.data.shape[1]
    for a, b in zip(plain, other, strict=True):
        assert b.sigma == pytest.approx(50 * a.sigma, rel=1e-6)
        assert b.elbo == pytest.approx(a.elbo - n_values * math.log(50), abs=1e-5)


def test_the_reported_elbo_is_that_of_the_data_in_their_own_units():
    """Exact posterior, fixed parameters: the ELBO is the log-likelihood of a model in the data's units."""
    config = small_config(epochs=1, precision="float64", states=StatesConfig(n_states=256), batch_size=60)
    config.dataset.standardise = True
    dataset = datasets.load(config)
    fit = Fit(config, dataset, CPU)
    units, model = fit.units, fit.model
    data = dataset.data.double()
    z = all_states(8).double()
    mu = units.to_data(model.decoder(z))
    variance = model.sigma2 * units.std**2
    noise = torch.distributions.Normal(mu, variance.sqrt()).log_prob(data[:, None]).sum(-1)
    expected = (noise + model.log_prior(z)).logsumexp(1).mean().item()
    assert next(iter(fit.epochs())).elbo == pytest.approx(expected, abs=1e-9)


def test_missing_values_change_nothing_but_their_own():
    """What stands in place of unobserved values does not matter, and sigma2 counts the observed ones alone."""
    config = small_config(epochs=3, dataset=BarsConfig(n_points=60, standardise=True))
    dataset = datasets.load(config)
    observed = torch.rand(dataset.data.shape, generator=torch.Generator().manual_seed(0)) < 0.7
    results = []
    for filler in (0.0, float("nan"), 1e6):
        data = dataset.data.where(observed, filler)
        results.append([(r.elbo, r.sigma) for r in Fit(config, Dataset(data, (4, 4), observed), CPU).epochs()])
    assert results[0] == results[1] == results[2]


def test_units_of_the_observed_values():
    data = torch.tensor([[1.0, 3.0], [5.0, 100.0]])
    observed = torch.tensor([[True, True], [True, False]])
    assert units_of(Dataset(data, (2,), observed), True) == Units(3.0, pytest.approx((8 / 3) ** 0.5))
    assert units_of(Dataset(data, (2,)), False) == Units(0.0, 1.0)


@pytest.mark.parametrize("sigma2", [0.04, None])
def test_initial_parameters(sigma2):
    config = small_config(model=ModelConfig(n_latents=8, hidden=[8], sigma2=sigma2))
    config.dataset.standardise = True
    dataset = datasets.load(config)
    model = Fit(config, dataset, CPU).model
    variance = dataset.data.var(correction=0).item()
    assert model.sigma2.item() == pytest.approx(1.0 if sigma2 is None else sigma2 / variance, rel=1e-5)
    assert torch.equal(model.pi, torch.full((8,), 1 / 8))
    assert not any(bias.any() for bias in model.decoder.biases)


def test_a_diverging_run_says_so():
    config = small_config(lr=LrConfig("constant", max=1e30), epochs=20)
    with pytest.raises(TrainingFailed, match="ELBO became"):
        list(Fit(config, datasets.load(config), CPU).epochs())


def test_double_precision():
    config = small_config(precision="float64")
    fit = Fit(config, datasets.load(config), CPU)
    list(fit.epochs())
    assert {p.dtype for p in (*fit.model.parameters(), *fit.model.buffers())} == {torch.float64}


def test_bars_are_what_they_should_be():
    dataset = bars.make(BarsConfig(n_points=20000))
    truth = dataset.truth
    mean = truth.pi @ truth.decoder.weights[0]
    torch.testing.assert_close(dataset.data.mean(0), mean.detach(), atol=0.02, rtol=0)
    entropy_bound = known_facts(small_config(), dataset)["log_likelihood_true"]
    other = bars.make(BarsConfig(n_points=2000, seed=1))
    wrong = bars.make(BarsConfig(sigma2=0.02)).truth
    z = all_states(8).double()
    assert log_likelihood(truth, other.data, z).mean().item() == pytest.approx(entropy_bound, abs=0.3)
    assert log_likelihood(wrong, other.data, z).mean().item() < entropy_bound - 1


def test_correlated_bars_exclude_each_other():
    truth = bars.make(BarsConfig(correlated=True)).truth
    z = torch.zeros(4, 8, dtype=torch.float64)
    z[0, [0, 1]] = z[1, [7, 6]] = z[2, [0, 2]] = 1
    z[3, 0] = 1
    both, last, apart, alone = truth.decoder(z)
    assert torch.equal(both, alone)
    assert last.sum() == 4
    assert apart.sum() == 8


def test_no_images_that_differ_between_seeds_of_the_run():
    assert torch.equal(bars.make(BarsConfig()).data, bars.make(BarsConfig()).data)
