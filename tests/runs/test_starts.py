"""The start of training: its threads, and several initialisations, of which the best is trained."""

import json

import numpy as np
import pytest
import torch

import tvae
from tests.conftest import load, small_config
from tvae.backends.native.threads import WORTH_THREADS, n_threads_for
from tvae.data.sets.bars import BarsConfig
from tvae.errors import TrainingFailed
from tvae.inference.streams import derive
from tvae.runs import setup
from tvae.runs.setup import make_fit, take_best_start

BARS = ["dataset=bars", "dataset.n_points=60", "states.n_states=16", "epochs=2", "start_epochs=3"]


def test_the_one_with_the_highest_elbo_is_taken():
    config = small_config(dataset=BarsConfig(n_points=60), n_starts=4, start_epochs=3, epochs=2)
    dataset = load(config)
    trials = []

    def make(trial):
        trials.append(make_fit(trial, dataset))
        return trials[-1]

    fit = make_fit(config, dataset)
    take_best_start(fit, config, make)
    elbos = [trial.search(trial.points, 0) for trial in trials]  # one more E-step, which changes little
    best = trials[max(range(4), key=lambda i: elbos[i])]
    assert [trial.config.seed for trial in trials] == [derive(config.seed, "start", i) for i in range(4)]
    assert all(trial.epoch == 3 for trial in trials)
    assert fit.epoch == 0
    for name, value in fit.model.parameters_by_name().items():
        assert torch.equal(value, best.model.parameters_by_name()[name]), name


def test_a_start_that_fails_is_left_out():
    config = small_config(dataset=BarsConfig(n_points=60), n_starts=2, start_epochs=3, epochs=2)
    dataset = load(config)
    trials = []

    def make(trial, n_failing):
        trials.append(make_fit(trial, dataset))
        if len(trials) <= n_failing:
            trials[-1].model.pi.fill_(torch.nan)
        return trials[-1]

    fit = make_fit(config, dataset)
    take_best_start(fit, config, lambda trial: make(trial, 1))
    for name, value in fit.model.parameters_by_name().items():
        assert torch.equal(value, trials[1].model.parameters_by_name()[name]), name
    with pytest.raises(TrainingFailed):
        take_best_start(fit, config, lambda trial: make(trial, 4))


def test_python_calls_try_starts_as_well(caplog):
    noisy = np.random.default_rng(0).random((12, 12))
    with caplog.at_level("INFO", "tvae"):
        tvae.fit(noisy, n_starts=2, start_epochs=1, epochs=1, overrides=["model.n_latents=8", "states.n_states=16"])
    assert "start 2/2" in caplog.text


def test_a_run_starts_higher_and_is_resumed_without_new_starts(command, tmp_path):
    for name, n_starts in (("one", 1), ("many", 3)):
        status, told = command("train", *BARS, f"n_starts={n_starts}", f"hydra.run.dir={name}")
        assert status == 0
        assert f"start {n_starts}/{n_starts}" in told or n_starts == 1
    elbo = {name: json.loads((tmp_path / name / "metrics.json").read_text())["elbo"] for name in ("one", "many")}
    assert elbo["many"] > elbo["one"]
    (tmp_path / "many" / "metrics.json").unlink()  # as if it had been killed before it wrote them
    status, told = command("train", *BARS, "n_starts=3", "hydra.run.dir=many")
    assert status == 0
    assert "resumed after epoch 2" in told
    assert "start 1/3" not in told


@pytest.mark.parametrize("other", ["states.memmap=true", "init_from=."])
def test_what_it_does_not_go_with(command, other):
    status, told = command("train", *BARS, "n_starts=2", other)
    assert status == 2
    assert "n_starts=2: goes neither with init_from nor with states.memmap=true" in told


@pytest.mark.parametrize(("threads", "for_kernel"), [(None, 2), (3, 3)])
def test_data_are_prepared_on_one_thread_of_torch(monkeypatch, threads, for_kernel):
    """The kernel has as many as were asked for, or else all."""
    before, used = torch.get_num_threads(), []
    monkeypatch.setattr(
        setup, "prepare", lambda *_: used.append((torch.get_num_threads(), n_threads_for(WORTH_THREADS + 1)))
    )
    torch.set_num_threads(2)
    try:
        setup.prepared(small_config(threads=threads))
        assert used == [(1, for_kernel)]
        assert torch.get_num_threads() == for_kernel
    finally:
        torch.set_num_threads(before)
