"""The bound of candidates, in the picture's own units."""

import numpy as np
import pytest
import torch

from tvae.model.covariance import Covariance
from tvae.noise.bound import bound_of
from tvae.noise.choice import Trial
from tvae.noise.stabilise import Anscombe, Scaling

NOISE = np.random.default_rng(0).standard_normal((64, 64, 1))
WHOLE = np.ones(NOISE.shape, dtype=bool)


def entropy(sigma):
    return 0.5 * np.log(2 * np.pi * np.e * sigma**2)


@pytest.mark.parametrize(
    "step",
    [
        Anscombe(2.0, -30.0),
        Anscombe(5.0, 40.0),
        Scaling(3.0),
    ],
)
def test_change_of_variables(step):
    """A density in the transformed value, times the slope, integrates to one and has the slope of the transform."""
    x = np.linspace(-60, 160, 2_000_001)
    f, slope = step.injective(x), np.exp(step.log_slope(x))
    np.testing.assert_allclose(np.gradient(f, x)[1:-1:1000], slope[1:-1:1000], rtol=1e-3)
    center = step.injective(np.array([50.0]))
    density = np.exp(-0.5 * (f - center) ** 2) / np.sqrt(2 * np.pi) * slope
    assert np.trapezoid(density, x) == pytest.approx(1, abs=1e-4)


def test_white_noise_has_its_entropy():
    found = Trial.of(100 + 7 * NOISE, WHOLE, 1).fit("white", "gaussian", 7.0)
    assert found.nats == pytest.approx(-entropy(7), abs=0.05)
    assert found.sigma == pytest.approx(7, rel=0.05)


def test_the_bound_does_not_depend_on_units():
    trial = Trial.of(100 + 7 * NOISE, WHOLE, 1)
    plain = trial.fit("white", "gaussian", 7.0)
    assert trial.fit("scaled", "gaussian", 0.7, Scaling(10.0)).nats == pytest.approx(plain.nats, abs=1e-3)


def test_missing_values_do_not_change_the_units():
    missing = np.random.default_rng(1).uniform(size=NOISE.shape) < 0.4
    pixels = np.where(missing, 0, 100 + 7 * NOISE)
    trial = Trial.of(pixels, ~missing, 1)
    assert trial.observed is not None
    assert trial.fit("white", "gaussian", 7.0).nats == pytest.approx(-entropy(7), abs=0.05)


def test_correlated_noise_has_the_density_of_its_covariance():
    """Gaussian patches with covariance R have the mean log-density -(D log 2 pi e + log |R|) / (2 D)."""
    lag = np.array([1.0, 0.6, 0.2])
    covariance = Covariance(np.outer(lag, lag)[None, None], detail=0.0)
    r = 9.0 * covariance.matrix(8)
    x = np.random.default_rng(2).multivariate_normal(np.zeros(64), r, 3000)
    whitening = covariance.whitening(8)
    found = bound_of(torch.from_numpy(x) @ whitening.inverse, (8, 8, 1), 3.0)
    expected = -entropy(1) - np.linalg.slogdet(r)[1] / 128
    assert found.nats - whitening.log_det / 128 == pytest.approx(expected, abs=0.05)
    assert found.sigma == pytest.approx(3, rel=0.05)
    assert bound_of(torch.from_numpy(x), (8, 8, 1), 3.0).nats < expected - 0.1
