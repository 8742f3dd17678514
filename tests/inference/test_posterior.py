"""q over a set of states: which of them matter, and moments under it."""

import pytest
import torch

from tests.conftest import evaluated
from tvae.inference.posterior import clean_moments, outputs, significant_states
from tvae.model.packed import UNPACKED, unpack


def test_pruning_leaves_out_no_more_than_it_may():
    _, x, _, step = evaluated()
    for prune in (1e-3, 0.05, 0.5):
        rows = significant_states(step, prune)
        kept = torch.zeros(len(x), dtype=torch.float64)
        for point, packed in zip(rows.point.tolist(), rows.packed, strict=True):
            kept[point] += step.weights[point][(step.packed[point] == packed).all(-1)].sum()
        assert (kept >= 1 - prune).all()
        assert 0 < len(rows.weight) < step.weights.numel()
        sums = torch.zeros(len(x), dtype=torch.float64).index_add_(0, rows.point, rows.weight)
        torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("hidden", [[], [5], [4, 3]])
def test_outputs_of_packed_states_are_those_of_the_decoder(hidden):
    model, _, _, step = evaluated(hidden)
    mu = outputs(model, significant_states(step, 0), UNPACKED)
    torch.testing.assert_close(mu, model.decoder(unpack(step.packed, 6, torch.float64)).flatten(0, 1))


@pytest.mark.parametrize("masked", [False, True])
def test_moments_of_the_clean_values_are_those_of_mu_under_q(masked):
    model, x, observed, step = evaluated(masked=masked)
    mean, variance = clean_moments(model, x, significant_states(step, 0), observed, UNPACKED)
    mu, weights = model.decoder(unpack(step.packed, 6, torch.float64)), step.weights[..., None]
    expected = (weights * mu).sum(1)
    torch.testing.assert_close(mean, expected)
    torch.testing.assert_close(variance, (weights * (mu - expected[:, None]).square()).sum(1))


def test_the_likelihoods_own_uncertainty_counts(monkeypatch):
    """Law of total variance, for a likelihood with E[clean | x, z] = (x + mu) / 2 and variance 0.7."""
    model, x, _, step = evaluated()
    rows = significant_states(step, 0)
    _, without = clean_moments(model, x, rows, None, UNPACKED)
    expected = (outputs(model, rows, UNPACKED) * rows.weight[:, None]).view(len(x), -1, x.shape[1]).sum(1)

    def clean(x, mu, z, observed):
        return (x + mu) / 2, torch.full_like(mu, 0.7)

    monkeypatch.setattr(model.likelihood, "clean", clean)
    mean, variance = clean_moments(model, x, rows, None, UNPACKED)
    torch.testing.assert_close(mean, (x + expected) / 2)
    torch.testing.assert_close(variance, without / 4 + 0.7)
