"""The search for options: its space, its study, stopping and going on, and the experiment it writes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

optuna = pytest.importorskip("optuna", reason="the search's extra is not installed: pip install '.[search]'")

from tvae.check import read_config  # noqa: E402
from tvae.config import UserError  # noqa: E402
from tvae.search import take_options  # noqa: E402
from tvae.space import distribution  # noqa: E402
from tvae.study import Search  # noqa: E402

SMALL = ["dataset=bars", "dataset.n_points=60", "states.n_states=16", "batch_size=16", "epochs=3", "restore_every=1"]


@pytest.fixture
def space(tmp_path):
    (tmp_path / "space.yaml").write_text(
        "lr.max: {low: 0.001, high: 0.1, log: true}\n"
        "ea.n_parents: {low: 2, high: 6}\n"
        "ea.selection: {choices: [fitness, best]}\n"
    )
    return "space=space.yaml"


def study_of(path):
    return optuna.load_study(study_name="tvae", storage=f"sqlite:///{path}/study.db")


# ---- options and space


def test_own_options_are_taken_out():
    options, others = take_options(["experiment=bars", "space=a.yaml", "n_trials=3", "lr.max=0.1", "-x"])
    assert (options.space, options.n_trials, options.objective) == ("a.yaml", 3, "elbo")
    assert others == ["experiment=bars", "lr.max=0.1", "-x"]


def test_all_mistakes_in_own_options_are_named():
    with pytest.raises(UserError) as caught:
        take_options(["n_trials=none", "objective=beauty"])
    assert [line.split(":")[0] for line in caught.value.problems] == ["space", "n_trials=none", "objective=beauty"]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"low": 1, "high": 5}, optuna.distributions.IntDistribution(1, 5)),
        ({"low": 64, "high": 512, "step": 64}, optuna.distributions.IntDistribution(64, 512, step=64)),
        ({"low": 0.1, "high": 5}, optuna.distributions.FloatDistribution(0.1, 5)),
        ({"low": 1e-3, "high": 0.1, "log": True}, optuna.distributions.FloatDistribution(1e-3, 0.1, log=True)),
        ({"choices": ["a", None, [1, 2]]}, optuna.distributions.CategoricalDistribution(["a", "null", "[1,2]"])),
    ],
)
def test_distributions(given, kind):
    assert distribution(given) == kind


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must map options to ranges or choices"),
        ("[1, 2]", "must map options to ranges or choices"),
        ("a: [", "not readable as YAML"),
        ("lr.mxa: {low: 1, high: 2}", "lr.mxa: no such option; did you mean lr.max?"),
        ("lr.max: 3", "lr.max: must be {low: ..., high: ...} or {choices: [...]}"),
        ("lr.max: {low: 2, high: 1}", "lr.max: low must be below high"),
        ("lr.max: {low: 0, high: 1, log: true}", "lr.max: low must be below high, above 0 with log"),
        ("lr.max: {low: a, high: 1}", "lr.max: low, high and step must be numbers"),
        ("lr.max: {low: 1}", "lr.max: must have low and high"),
        ("lr.max: {low: 1, high: 2, lgo: true}", "lr.max: must have low and high, and may have log, step; got"),
        ("lr.max: {choices: []}", "lr.max: choices must be a list"),
        ("lr.max: {low: -1.0, high: 1.0}", "lr.max: lr.max=-1.0: must be above 0"),
        ("ea.selection: {choices: [luck]}", "ea.selection: ea.selection=luck: must be one of"),
        ("dataset.size: {low: 3, high: 5}", "dataset.size: changes the data"),
        ("lr.max: {low: 0.1, high: 0.2, step: 0.5}", "lr.max: high=0.2 cannot be reached from low=0.1 in steps of 0.5"),
        ("ea.n_parents: {low: 2, high: 7, step: 2}", "ea.n_parents: high=7 cannot be reached from low=2 in steps of 2"),
        ("restart: {choices: [true]}", "restart: is not for a space"),
        ("init_from: {choices: [here]}", "init_from: is not for a space"),
        ("model: {choices: [deep, linear]}", "model: is a group of options; name one of them"),
        ("ea.n_parents: {low: 2.5, high: 6.5}", "ea.n_parents: Value '2.5' of type 'float'"),
    ],
)
def test_mistakes_in_a_space(command, tmp_path, content, message):
    (tmp_path / "space.yaml").write_text(content)
    code, out = command("search", *SMALL, "space=space.yaml")
    assert code == 2, out
    assert message in out
    assert len(out.strip().splitlines()) == 1
    assert not list(tmp_path.glob("outputs/**/study.db"))


def test_no_such_space(command):
    code, out = command("search", *SMALL, "space=nowhere")
    assert code == 2
    assert "space=nowhere: no such file, and not one of denoise" in out


# ---- a search


def test_search_and_what_it_leaves(command, space):
    code, out = command("search", *SMALL, space, "n_trials=6", "hydra.run.dir=found")
    assert code == 0, out
    study = study_of("found")
    assert len(study.trials) == 6
    finished = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    for trial in finished:
        metrics = json.loads(Path(f"found/trials/{trial.number:04d}/metrics.json").read_text())
        assert metrics["elbo"] == trial.value
    assert study.best_value == max(t.value for t in finished)
    assert {p.name for p in Path("found/figures").iterdir()} == {"history.png", "options.png"}

    code, out = command("train", "--config-dir", "found", "experiment=best", "hydra.run.dir=again")
    assert code == 0, out
    assert json.loads(Path("again/metrics.json").read_text())["elbo"] == study.best_value

    for n_trials in (6, 7):  # also with an option of Hydra's own
        code, out = command("search", "--config-dir", ".", *SMALL, space, f"n_trials={n_trials}", "hydra.run.dir=found")
        assert code == 0
        assert len(study_of("found").trials) == n_trials
    code, out = command("search", *SMALL, space, "seed=1", "hydra.run.dir=found")
    assert code == 2
    assert "holds another search (other shared)" in out


def test_the_best_of_a_search_that_starts_from_the_best_of_another(command, space, tmp_path):
    """What is written needs neither the experiments nor the folders that it comes from."""
    (tmp_path / "second.yaml").write_text("batch_size: {choices: [20, 30]}\n")
    small = [*SMALL, "seed=${corruption_seed}", "corruption_seed=3", f"data_dir={tmp_path}", "threads=1"]
    assert command("search", *small, space, "n_trials=2", "hydra.run.dir=a?b")[0] == 0
    assert Path("a?b/study.db").is_file()
    assert not Path("a").exists()
    words = ["--config-dir", "a?b", "experiment=best", "space=second.yaml", "n_trials=2", "hydra.run.dir=second"]
    assert command("search", *words)[0] == 0
    best = OmegaConf.load("second/experiment/best.yaml")
    assert (best.seed, best.data_dir, "threads" in best) == (3, str(tmp_path), False)
    for again in ("a?b", "second"):
        code, out = command("train", "--config-dir", again, "experiment=best", f"hydra.run.dir={again}/again")
        assert code == 0, out
    assert json.loads(Path("second/again/metrics.json").read_text())["elbo"] == study_of("second").best_value
    code, out = command("train", "--config-dir", "second", "experiment=best", "epoch=3")
    assert code == 2
    assert out.strip() == "error: epoch=3: Could not override 'epoch'.; did you mean epochs?"


def test_a_damaged_study(command, space, tmp_path):
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "study.db").write_bytes(bytes(range(256)) * 40)
    code, out = command("search", *SMALL, space, "hydra.run.dir=found")
    assert code == 2
    assert "study.db: not readable as the study of a search" in out
    assert len(out.strip().splitlines()) == 1


def test_help_tells_of_own_options(command):
    code, out = command("search", "--help")
    assert code in (0, None)
    assert "n_trials=20" in out


def test_hopeless_trials_are_given_up(command, tmp_path):
    """A rate so small that nothing is learned is below the median of those that learn."""
    (tmp_path / "space.yaml").write_text("lr.max: {choices: [0.1, 0.1001, 0.1002, 0.1003, 0.00010001]}\n")
    overrides = [o for o in SMALL if not o.startswith("epochs")]
    options = [*overrides, "epochs=10", "space=space.yaml", "hydra.run.dir=found"]
    assert command("search", *options, "n_trials=6")[0] == 0
    study_of("found").enqueue_trial({"lr.max": 0.00010001})
    code, out = command("search", *options, "n_trials=7")
    assert code == 0, out
    given_up = [t for t in study_of("found").trials if t.user_attrs.get("ended") == "given up"]
    assert any(t.params["lr.max"] == 0.00010001 for t in given_up)
    for trial in given_up:
        metrics = json.loads(Path(f"found/trials/{trial.number:04d}/metrics.json").read_text())
        assert metrics["status"] == "interrupted"
        assert metrics["epochs"] < 10
        assert metrics["elbo"] == trial.value
    assert "lr.max=0.00010001" not in out.splitlines()[-2]  # the best one


def test_a_trial_that_fails_does_not_stop_the_search(command, tmp_path):
    (tmp_path / "space.yaml").write_text("ea.n_parents: {choices: [99, 3, 4]}\n")  # 99 are more than there are states
    code, out = command("search", *SMALL, "space=space.yaml", "n_trials=8", "hydra.run.dir=found")
    assert code == 2  # the space's own values do not compose, which is known beforehand
    assert "ea.n_parents=99: must be at most states.n_states=16" in out
    (tmp_path / "space.yaml").write_text("lr.max: {choices: [1.0e+30, 0.01]}\n")
    code, out = command("search", *SMALL, "lr=constant", "space=space.yaml", "n_trials=8", "hydra.run.dir=found")
    assert code == 0, out
    assert "the ELBO became" in out
    best = OmegaConf.load("found/experiment/best.yaml")
    assert best.lr.max == 0.01


def test_an_objective_that_the_data_do_not_have(command, space):
    code, out = command("search", *SMALL, space, "objective=psnr", "n_trials=2", "hydra.run.dir=found")
    assert code == 2
    assert "objective=psnr: there is none for these data" in out


def test_a_mistake_that_all_trials_share_is_one_mistake(command, space):
    code, out = command("search", "image=nowhere.png", space, "hydra.run.dir=found")
    assert code == 2
    assert "nowhere.png: No such file" in out
    assert not Path("found/study.db").exists()
    code, out = command("search", *SMALL, space, "restart=true", "hydra.run.dir=found")
    assert code == 2
    assert "restart=true: a search does not start over" in out


def test_a_trial_that_was_asked_for_and_never_chosen_is_not_run(command, space):
    """As a process leaves it that is killed while the Gaussian process thinks."""
    assert command("search", *SMALL, space, "n_trials=1", "hydra.run.dir=found")[0] == 0
    study_of("found").ask()
    code, out = command("search", *SMALL, space, "n_trials=2", "hydra.run.dir=found")
    assert code == 0, out
    assert [trial.state.name for trial in study_of("found").trials] == ["COMPLETE", "FAIL", "COMPLETE"]


def test_a_run_directory_is_not_a_search_directory(command, space):
    assert command("train", *SMALL, "hydra.run.dir=run")[0] == 0
    code, out = command("search", *SMALL, space, "hydra.run.dir=run")
    assert code == 2
    assert "run: is the directory of a run" in out


# ---- stopping, going on, working together


def start(tmp_path, *overrides):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "tvae.search", *SMALL, "space=space.yaml", "hydra.run.dir=found", *overrides]
    return subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_search_goes_on_with_the_trial_under_way(tmp_path, space, number, command):
    long = ["epochs=60", "n_trials=2", "checkpoint_seconds=0"]
    process = start(tmp_path, *long)
    checkpoint = tmp_path / "found" / "trials" / "0000" / "checkpoint.pt"
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    (before,) = study_of(tmp_path / "found").trials
    assert before.state.name == "RUNNING"
    code, out = command("search", *SMALL, space, *long, "hydra.run.dir=found")
    assert code == 0, out
    assert "going on after epoch" in out
    after = study_of("found").trials
    assert len(after) == 2
    assert after[0].params == before.params
    assert after[0].state.name == "COMPLETE"


def test_two_processes_share_a_search(tmp_path, space):
    processes = [start(tmp_path, "n_trials=4") for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    trials = study_of(tmp_path / "found").trials
    assert len(trials) == 4
    assert all(trial.state.is_finished() for trial in trials)
    assert all(re.search("^trial [0-9]+: lr.max", out, re.MULTILINE) for out in outputs)
    for trial in trials:
        config = read_config(tmp_path / "found" / "trials" / f"{trial.number:04d}" / "config.yaml")
        assert (config.lr.max, config.ea.n_parents) == (trial.params["lr.max"], trial.params["ea.n_parents"])


def test_without_optuna(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("search", "study", "space"):
        monkeypatch.delitem(sys.modules, f"tvae.{name}", raising=False)
    with pytest.raises(SystemExit, match="2"):
        import tvae.search  # noqa: F401
    assert "pip install '.[search]'" in capfd.readouterr().err


def test_what_is_tried_follows_from_the_seed(tmp_path):
    space = {"lr.max": optuna.distributions.FloatDistribution(0.001, 0.1)}

    def tried(name, seed):
        search = Search(tmp_path / name, "elbo", [], space, seed)
        return [search._new(3).params["lr.max"] for _ in range(3)]

    first = tried("a", 0)
    assert len(set(first)) == 3
    assert tried("b", 0) == first
    assert tried("c", 1) != first
