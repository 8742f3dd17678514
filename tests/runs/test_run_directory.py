"""The run directory: whose it is, what a run leaves there, and what `restart=true` removes."""

import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import small_config
from tests.processes import LONG, SMALL, metrics, start, wait_until
from tvae.config.checks import read_config
from tvae.data.sets.image import ImageConfig
from tvae.runs.run_directory import RunDirectory


@pytest.fixture
def call(command):
    return command.of("train")


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_run_leaves_what_the_contract_says(call, tmp_path):
    out = call.ok(*SMALL, "picture_every=2", "hydra.run.dir=run")
    assert "epoch 1/4" in out
    assert "epoch 4/4" in out
    assert "results in" in out
    found = metrics("run")
    assert found["status"] == "finished"
    assert found["epochs"] == 4
    assert found["seconds"] == pytest.approx(4 * found["seconds_per_epoch"])
    assert {found[name] for name in ("psnr", "psnr_input", "ssim")} == {None}
    assert (found["seed"], found["device"], found["version"]) == (0, "cpu", "0.1.0")
    assert found["elbo"] < found["log_likelihood_true"]
    assert 0 <= found["bars_found"] <= found["bars"] == 8
    assert f"{found['bars_found']} of 8 bars found" in out
    assert f"(log-likelihood of the truth {found['log_likelihood_true']:.4f})" in out
    rows = Path("run/history.csv").read_text().splitlines()
    assert rows[0] == "epoch,elbo,elbo_test,sigma,pi_sum,n_accepted,learning_rate,seconds"
    assert [row.split(",")[0] for row in rows[1:]] == ["1", "2", "3", "4"]
    assert float(rows[4].split(",")[1]) < found["elbo"], "of the final parameters, not the epoch's average"
    assert {p.name for p in Path("run").iterdir()} == {
        "config.yaml", "data.sha256", "metrics.json", "history.csv", "checkpoint.pt", "checkpoint.previous.pt",
        "run.log", "figures", "tensorboard",
    }  # fmt: skip
    assert {p.name for p in Path("run/figures").iterdir()} == {"decoder.png", "latents.png", "training.png"}
    events = EventAccumulator("run/tensorboard", {"images": 0, "histograms": 0}).Reload()
    tags = events.Tags()
    assert {"elbo", "sigma", "pi_sum", "n_accepted", "learning_rate", "seconds", "log_likelihood_true"} <= {
        *tags["scalars"]
    }
    assert [e.step for e in events.Scalars("elbo")] == [2, 3, 4], "the first would hide them"
    assert [e.step for e in events.Images("decoder")] == [1, 2, 4]
    assert [e.step for e in events.Histograms("pi")] == [1, 2, 3, 4]


@pytest.mark.usefixtures("_no_figures")
def test_the_same_command_again_leaves_a_finished_run_alone(call):
    call.ok(*SMALL)
    (run,) = Path("outputs/train").iterdir()
    assert run.name == "batch_size=16,dataset.n_points=60,dataset=bars,epochs=4,states.n_states=16"
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()}
    out = call.ok(*SMALL)
    assert "finished already" in out
    assert f"ELBO {metrics(run)['elbo']:.4f}" in out, "what has come of it"
    assert before == {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()}
    (run / "notes.txt").write_text("mine")
    assert "epoch 4/4" in call(*SMALL, "restart=true")[1]
    assert (run / "notes.txt").read_text() == "mine"
    assert [e.step for e in EventAccumulator(str(run / "tensorboard")).Reload().Scalars("elbo")] == [2, 3, 4]


@pytest.mark.usefixtures("_no_figures")
def test_a_directory_of_another_configuration_is_refused(call):
    call.ok(*SMALL, "hydra.run.dir=run")
    before = contents("run")
    out = call.refused(*SMALL, "seed=1", "lr.max=0.5", "hydra.run.dir=run")
    assert "belongs to another configuration (lr.max=0.01 there, 0.5 here, seed=0 there, 1 here)" in out
    assert contents("run") == before


def test_a_directory_with_files_of_someone_else_is_refused(call):
    Path("mine").mkdir()
    Path("mine/metrics.json").write_text("important")
    out = call.refused(*SMALL, "hydra.run.dir=mine")
    assert "holds a foreign metrics.json" in out
    assert Path("mine/metrics.json").read_text() == "important"
    assert [p.name for p in Path("mine").iterdir()] == ["metrics.json"]


@pytest.mark.usefixtures("_no_figures")
def test_restart_removes_only_what_a_run_wrote(call):
    Path("mine/figures").mkdir(parents=True)
    Path("mine/config.yaml").write_text("a: 1")
    Path("mine/figures/paper.txt").write_text("mine")
    out = call.refused(*SMALL, "hydra.run.dir=mine", "restart=true")
    assert "holds a foreign config.yaml" in out
    call.ok(*SMALL, "hydra.run.dir=run")
    Path("run/figures/paper.txt").write_text("mine")
    call.ok(*SMALL, "seed=1", "hydra.run.dir=run", "restart=true")
    assert Path("mine/figures/paper.txt").read_text() == Path("run/figures/paper.txt").read_text() == "mine"
    assert metrics("run")["seed"] == 1


def test_an_unusable_directory(call):
    Path("file").write_text("")
    out = call.refused(*SMALL, "hydra.run.dir=file/run")
    assert out.startswith("error: file")
    assert len(out.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission(call):
    Path("locked").mkdir(mode=0o500)
    code, out = call(*SMALL, "hydra.run.dir=locked/run")
    assert (code, len(out.splitlines())) == (2, 1)


def test_two_runs_cannot_share_a_directory(call):
    endless = [*LONG, "epochs=100000"]
    (process,), _ = start("run", *endless)
    try:
        wait_until(Path("run/checkpoint.pt").exists)
        out = call.refused(*endless, "hydra.run.dir=run")
        assert "another process is running in this directory" in out
    finally:
        process.kill()
        process.join()


def test_paths_in_a_configuration_are_read_as_they_were_written(tmp_path):
    config = small_config(image="${seed} (1).png", dataset=ImageConfig(name="file"), init_from="\\${x}")
    for _ in range(2):  # the second time it is its own directory
        RunDirectory(tmp_path, config, "0" * 64).release()
    assert read_config(tmp_path / "config.yaml") == config
