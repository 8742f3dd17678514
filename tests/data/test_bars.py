"""Bars: the data set whose truth is known."""

import pytest
import torch

from tests.conftest import small_config
from tvae.config.schema import Config
from tvae.data.sets.bars import BarsConfig
from tvae.inference.states import all_states
from tvae.model.vae import log_likelihood


def test_bars_are_what_they_should_be():
    dataset = BarsConfig(n_points=20000).make(Config(), None)
    truth = dataset.truth
    mean = truth.pi @ truth.decoder.weights[0]
    torch.testing.assert_close(dataset.source.data.mean(0), mean.detach(), atol=0.02, rtol=0)
    entropy_bound = dataset.facts(small_config())["log_likelihood_true"]
    other = BarsConfig(n_points=2000, seed=1).make(Config(), None)
    wrong = BarsConfig(sigma2=0.02).make(Config(), None).truth
    z = all_states(8).double()
    assert log_likelihood(truth, other.source.data, z).mean().item() == pytest.approx(entropy_bound, abs=0.3)
    assert log_likelihood(wrong, other.source.data, z).mean().item() < entropy_bound - 1


def test_correlated_bars_exclude_each_other():
    truth = BarsConfig(correlated=True).make(Config(), None).truth
    z = torch.zeros(4, 8, dtype=torch.float64)
    z[0, [0, 1]] = z[1, [7, 6]] = z[2, [0, 2]] = 1
    z[3, 0] = 1
    both, last, apart, alone = truth.decoder(z)
    assert torch.equal(both, alone)
    assert last.sum() == 4
    assert apart.sum() == 8


def test_no_images_that_differ_between_seeds_of_the_run():
    a, b = (BarsConfig().make(Config(seed=seed), None).source.data for seed in (0, 1))
    assert torch.equal(a, b)
