"""The search for options: its study, stopping and resuming, and the experiment it writes."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

optuna = pytest.importorskip("optuna", reason="the search's extra is not installed: pip install '.[search]'")

from scripts.fuzz import chaos  # noqa: E402
from tests.processes import metrics, start, wait_until  # noqa: E402
from tvae.config.checks import read_config  # noqa: E402
from tvae.search.trials import Search  # noqa: E402

SMALL = ["dataset=bars", "dataset.n_points=60", "states.n_states=16", "batch_size=16", "epochs=3", "restore_every=1"]

pytestmark = pytest.mark.usefixtures("_no_figures")  # of trials


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


def test_search_and_what_it_leaves(command, space):
    command.ok("search", *SMALL, space, "n_trials=6", "hydra.run.dir=found")
    study = study_of("found")
    assert len(study.trials) == 6
    finished = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    for trial in finished:
        assert metrics(f"found/trials/{trial.number:04d}")["elbo"] == trial.value
    assert study.best_value == max(t.value for t in finished)
    assert {p.name for p in Path("found/figures").iterdir()} == {"history.png", "options.png"}

    command.ok("train", "--config-dir", "found", "experiment=best", "hydra.run.dir=again")
    assert metrics("again")["elbo"] == study.best_value

    for n_trials in (6, 7):  # also with an option of Hydra's own
        command.ok("search", "--config-dir", ".", *SMALL, space, f"n_trials={n_trials}", "hydra.run.dir=found")
        assert len(study_of("found").trials) == n_trials
    out = command.refused("search", *SMALL, space, "seed=1", "hydra.run.dir=found")
    assert "holds another search (different shared)" in out


def test_the_best_of_a_search_that_starts_from_the_best_of_another(command, space, tmp_path):
    """The written file needs neither the experiments nor the folders that it comes from."""
    (tmp_path / "second.yaml").write_text("batch_size: {choices: [20, 30]}\n")
    small = [*SMALL, "seed=${restore_every}", "restore_every=3", f"data_dir={tmp_path}", "threads=1"]
    command.ok("search", *small, space, "n_trials=2", "hydra.run.dir=a?b")
    assert Path("a?b/study.db").is_file()
    assert not Path("a").exists()
    words = ["--config-dir", "a?b", "experiment=best", "space=second.yaml", "n_trials=2", "hydra.run.dir=second"]
    command.ok("search", *words)
    best = OmegaConf.load("second/experiment/best.yaml")
    assert (best.seed, best.data_dir, "threads" in best) == (3, str(tmp_path), False)
    for again in ("a?b", "second"):
        command.ok("train", "--config-dir", again, "experiment=best", f"hydra.run.dir={again}/again")
    assert metrics("second/again")["elbo"] == study_of("second").best_value
    out = command.refused("train", "--config-dir", "second", "experiment=best", "epoch=3")
    assert out.strip() == "error: epoch=3: Could not override 'epoch'.; did you mean epochs?"


def test_a_damaged_study(command, space, tmp_path):
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "study.db").write_bytes(bytes(range(256)) * 40)
    out = command.refused("search", *SMALL, space, "hydra.run.dir=found")
    assert "study.db: not readable as the study of a search" in out
    assert len(out.strip().splitlines()) == 1


def test_help_tells_of_own_options(command):
    code, out = command("search", "--help")
    assert code in (0, None)
    assert "n_trials=20" in out


def test_hopeless_trials_are_stopped_early(command, tmp_path):
    """A rate so small that nothing is learned is below the median of those that learn."""
    (tmp_path / "space.yaml").write_text("lr.max: {choices: [0.1, 0.1001, 0.1002, 0.1003, 0.00010001]}\n")
    overrides = [o for o in SMALL if not o.startswith("epochs")]
    options = [*overrides, "epochs=10", "space=space.yaml", "hydra.run.dir=found"]
    command.ok("search", *options, "n_trials=6")
    study_of("found").enqueue_trial({"lr.max": 0.00010001})
    out = command.ok("search", *options, "n_trials=7")
    stopped_early = [t for t in study_of("found").trials if t.user_attrs.get("ended") == "stopped early"]
    assert any(t.params["lr.max"] == 0.00010001 for t in stopped_early)
    for trial in stopped_early:
        found = metrics(f"found/trials/{trial.number:04d}")
        assert found["status"] == "interrupted"
        assert found["epochs"] < 10
        assert found["elbo"] == trial.value
    assert "lr.max=0.00010001" not in out.splitlines()[-2]  # the best one


def test_a_trial_that_fails_does_not_stop_the_search(command, tmp_path):
    (tmp_path / "space.yaml").write_text("ea.n_parents: {choices: [99, 3, 4]}\n")  # 99 are more than there are states
    code, out = command("search", *SMALL, "space=space.yaml", "n_trials=8", "hydra.run.dir=found")
    assert code == 2  # the space's own values do not compose, which is known beforehand
    assert "ea.n_parents=99: must be at most states.n_states=16" in out
    (tmp_path / "space.yaml").write_text("lr.max: {choices: [1.0e+30, 0.01]}\n")
    out = command.ok("search", *SMALL, "lr=constant", "space=space.yaml", "n_trials=8", "hydra.run.dir=found")
    assert "the ELBO became" in out
    best = OmegaConf.load("found/experiment/best.yaml")
    assert best.lr.max == 0.01


def test_an_objective_that_the_data_do_not_have(command, space):
    out = command.refused("search", *SMALL, space, "objective=psnr", "n_trials=2", "hydra.run.dir=found")
    assert "objective=psnr: there is none for these data" in out


def test_a_mistake_that_all_trials_share_is_one_mistake(command, space):
    out = command.refused("search", "image=nowhere.png", space, "hydra.run.dir=found")
    assert "nowhere.png: No such file" in out
    assert not Path("found/study.db").exists()
    out = command.refused("search", *SMALL, space, "restart=true", "hydra.run.dir=found")
    assert "restart=true: a search does not start over" in out


def test_a_trial_that_was_asked_for_and_never_chosen_is_not_run(command, space):
    """A study whose process was killed while the Gaussian process was fitted."""
    command.ok("search", *SMALL, space, "n_trials=1", "hydra.run.dir=found")
    study_of("found").ask()
    command.ok("search", *SMALL, space, "n_trials=2", "hydra.run.dir=found")
    assert [trial.state.name for trial in study_of("found").trials] == ["COMPLETE", "FAIL", "COMPLETE"]


def test_a_run_directory_is_not_a_search_directory(command, space):
    command.ok("train", *SMALL, "hydra.run.dir=run")
    out = command.refused("search", *SMALL, space, "hydra.run.dir=run")
    assert "run: is the directory of a run" in out


# ---- stopping, resuming, working together


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_search_resumes_the_trial_under_way(space, number, command):
    long = [*SMALL, space, "epochs=60", "n_trials=2", "checkpoint_seconds=0"]
    (process,), _ = start("found", *long, command="search")
    wait_until(Path("found/trials/0000/checkpoint.pt").exists)
    os.kill(process.pid, number)
    assert chaos.wait([process], 60) != [0]
    (before,) = study_of("found").trials
    assert before.state.name == "RUNNING"
    out = command.ok("search", *long, "hydra.run.dir=found")
    assert "resumed after epoch" in out
    after = study_of("found").trials
    assert len(after) == 2
    assert after[0].params == before.params
    assert after[0].state.name == "COMPLETE"


def test_two_processes_share_a_search(tmp_path, space, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [*SMALL, space, "n_trials=4", f"hydra.run.dir={tmp_path / 'found'}"]
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    processes = [process for log in logs for process in chaos.start("search", options, log)]
    codes = chaos.wait(processes, 120)
    outputs = [log.read_text() for log in logs]
    assert codes == [0, 0], outputs
    trials = study_of("found").trials
    assert len(trials) == 4
    assert all(trial.state.is_finished() for trial in trials)
    assert all(re.search("^trial [0-9]+: lr.max", out, re.MULTILINE) for out in outputs)
    for trial in trials:
        config = read_config(Path(f"found/trials/{trial.number:04d}/config.yaml"))
        assert (config.lr.max, config.ea.n_parents) == (trial.params["lr.max"], trial.params["ea.n_parents"])


def test_without_optuna(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("__main__", "experiment", "space", "trials", "figures"):
        monkeypatch.delitem(sys.modules, f"tvae.search.{name}", raising=False)
    with pytest.raises(SystemExit, match="2"):
        import tvae.search.__main__  # noqa: F401
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
