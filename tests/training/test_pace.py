"""The number of minibatches in one call of the backend."""

import time

import pytest

from tests.conftest import load, same, small_config
from tvae.backends import native
from tvae.runs.setup import make_fit
from tvae.training import trainer
from tvae.training.trainer import Pace


def after_visits(paces, seconds):
    with paces.kept():
        time.sleep(seconds)
    return paces.n_at_once


def test_as_many_as_take_a_moment(monkeypatch):
    monkeypatch.setattr(trainer, "MOMENT", 10)
    paces = Pace(is_free=True)
    assert [after_visits(paces, 0) for _ in range(8)] == [2, 4, 8, 16, 32, 64, 64, 64]
    monkeypatch.setattr(trainer, "MOMENT", 0.001)
    assert [after_visits(paces, 0.003) for _ in range(7)] == [32, 16, 8, 4, 2, 1, 1]
    assert after_visits(Pace(is_free=False), 0) == 1


@pytest.mark.skipif(not native.is_available(), reason="no C++ compiler, or TVAE_NATIVE=0")
def test_training_does_not_depend_on_it(monkeypatch):
    config = small_config()
    dataset, found = load(config), []
    for moment in (10, 0):
        monkeypatch.setattr(trainer, "MOMENT", moment)
        fit = make_fit(config, dataset)
        elbos = [report.elbo for report in fit.epochs()]
        assert (fit.pace.n_at_once > 1) == (moment > 0)
        found.append([elbos, fit.state_dict(), fit.points.sets.tensor])
    assert same(*found)
