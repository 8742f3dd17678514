"""The commands as a user runs them. What ends a process is run in one; the rest calls the same entry point directly."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tvae import checkpoint, train

SMALL = ["dataset=bars", "dataset.n_points=60", "epochs=4", "states.n_states=16", "batch_size=16"]
SMALL += ["checkpoint_seconds=0"]
COMMAND = [sys.executable, "-m", "tvae.train"]


@pytest.fixture
def call(command):
    return partial(command, "train")


def metrics(directory):
    return json.loads((Path(directory) / "metrics.json").read_text())


def test_a_checkpoint_after_every_minibatch_changes_nothing(call):
    """And there is progress, however soon the next one is due."""
    for name, seconds in (("each", "1e-9"), ("none", "1000")):
        code, out = call(*SMALL, f"checkpoint_seconds={seconds}", f"hydra.run.dir={name}")
        assert code == 0, out
    assert metrics("each")["elbo"] == metrics("none")["elbo"]


def test_a_run_leaves_what_the_contract_says(call, tmp_path):
    code, out = call(*SMALL, "picture_every=2", "hydra.run.dir=run")
    assert code == 0
    assert out.count("epoch ") == 4
    assert "results in" in out
    found = metrics("run")
    assert found["status"] == "finished"
    assert found["epochs"] == 4
    assert found["seconds"] == pytest.approx(4 * found["seconds_per_epoch"])
    assert {found[name] for name in ("psnr", "psnr_input", "ssim")} == {None}
    assert (found["seed"], found["device"], found["version"]) == (0, "cpu", "0.1.0")
    assert found["elbo"] < found["log_likelihood_true"]
    rows = Path("run/history.csv").read_text().splitlines()
    assert rows[0] == "epoch,elbo,elbo_test,sigma,pi_sum,n_accepted,learning_rate,seconds"
    assert [row.split(",")[0] for row in rows[1:]] == ["1", "2", "3", "4"]
    assert float(rows[4].split(",")[1]) == found["elbo"]
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
    assert [e.step for e in events.Scalars("elbo")] == [1, 2, 3, 4]
    assert [e.step for e in events.Images("decoder")] == [1, 2, 4]
    assert [e.step for e in events.Histograms("pi")] == [1, 2, 3, 4]


def test_the_same_command_again_leaves_a_finished_run_alone(call):
    assert call(*SMALL)[0] == 0
    (run,) = Path("outputs/train").iterdir()
    assert run.name == "batch_size=16,dataset.n_points=60,dataset=bars,epochs=4,states.n_states=16"
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()}
    code, out = call(*SMALL)
    assert code == 0
    assert "finished already" in out
    assert before == {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in run.rglob("*") if p.is_file()}
    (run / "notes.txt").write_text("mine")
    assert "epoch 4/4" in call(*SMALL, "restart=true")[1]
    assert (run / "notes.txt").read_text() == "mine"
    assert [e.step for e in EventAccumulator(str(run / "tensorboard")).Reload().Scalars("elbo")] == [1, 2, 3, 4]


def test_a_directory_of_another_configuration_is_refused(call):
    assert call(*SMALL, "hydra.run.dir=run")[0] == 0
    before = {p: p.read_bytes() for p in Path("run").rglob("*") if p.is_file()}
    code, out = call(*SMALL, "seed=1", "lr.max=0.5", "hydra.run.dir=run")
    assert code == 2
    assert "belongs to another configuration (lr.max=0.01 there, 0.5 here, seed=0 there, 1 here)" in out
    assert before == {p: p.read_bytes() for p in Path("run").rglob("*") if p.is_file()}


def test_a_directory_with_files_of_someone_else_is_refused(call):
    Path("mine").mkdir()
    Path("mine/metrics.json").write_text("important")
    code, out = call(*SMALL, "hydra.run.dir=mine")
    assert code == 2
    assert "holds a metrics.json that is no run's" in out
    assert Path("mine/metrics.json").read_text() == "important"
    assert [p.name for p in Path("mine").iterdir()] == ["metrics.json"]


def test_restart_removes_only_what_a_run_wrote(call):
    Path("mine/figures").mkdir(parents=True)
    Path("mine/config.yaml").write_text("a: 1")
    Path("mine/figures/paper.txt").write_text("mine")
    code, out = call(*SMALL, "hydra.run.dir=mine", "restart=true")
    assert code == 2
    assert "holds a config.yaml that is no run's" in out
    assert call(*SMALL, "hydra.run.dir=run")[0] == 0
    Path("run/figures/paper.txt").write_text("mine")
    assert call(*SMALL, "seed=1", "hydra.run.dir=run", "restart=true")[0] == 0
    assert Path("mine/figures/paper.txt").read_text() == Path("run/figures/paper.txt").read_text() == "mine"
    assert metrics("run")["seed"] == 1


def test_an_unusable_directory(call):
    Path("file").write_text("")
    code, out = call(*SMALL, "hydra.run.dir=file/run")
    assert code == 2
    assert out.startswith("error: file")
    assert len(out.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_write_permission(call):
    Path("locked").mkdir(mode=0o500)
    code, out = call(*SMALL, "hydra.run.dir=locked/run")
    assert (code, len(out.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (["epochs=0", "prune=2"], ["epochs=0: must be at least 1", "prune=2.0: must be below 1"]),
        (["epoch=3"], ["epoch=3: "]),
        (["+epoch=3"], ["epoch: no such option; did you mean epochs?"]),
        (
            ["epochs=many", "batch_size=x", "seed=-1"],
            ["epochs=many: ", "batch_size=x: ", "seed=-1: must be at least 0"],
        ),
        (["dataset=cats"], ["dataset=cats: "]),
        (["model=null"], ["model=null: "]),
        (["-m", "seed=0,x"], ["seed=x: "]),
        (["epohcs=3"], ["epohcs=3: "]),
        (["ea.n_parents=[1"], ["ea.n_parents=[1: "]),
        (["device=cuda"], ["device=cuda: this machine has 0 CUDA devices"]),
    ],
)
def test_a_mistake_gets_a_line_and_code_2_and_writes_nothing(call, overrides, lines, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    code, out = call(*overrides)
    assert code == 2, out
    assert len(out.splitlines()) == len(lines), out
    for line, start in zip(out.splitlines(), lines, strict=True):
        assert line.startswith(f"error: {start}"), out
    written = {p.name for p in Path("outputs").rglob("*") if p.is_file()}
    assert written <= {"multirun.yaml"}, "Hydra notes a sweep; nothing else is written"


def test_nan_in_the_data_and_nan_in_training(call, monkeypatch):
    code, out = call(*SMALL, "lr=constant", "lr.max=1e30", "epochs=30", "hydra.run.dir=diverged")
    assert code == 1
    assert out.splitlines()[-1].startswith("the ELBO became")
    assert "Traceback" not in out
    assert metrics("diverged")["status"] == "failed"
    load = train.datasets.bars.make
    monkeypatch.setattr(
        train.datasets.bars, "make", lambda c: train.datasets.Dataset(load(c).data * float("nan"), (4, 4))
    )
    code, out = call(*SMALL, "hydra.run.dir=nan")
    assert code == 2
    assert out == "error: dataset=bars: the data hold NaN or infinite values\n"
    assert not Path("nan/metrics.json").exists()


def test_a_sweep_goes_on_after_a_failed_job_and_skips_finished_ones(call):
    code, out = call("-m", *SMALL, "ea.n_parents=3,99,4")
    assert code == 2
    assert "ea.n_parents=99: must be at most states.n_states=16" in out
    finished = [p.parent.name for p in Path("outputs/train").glob("*/metrics.json")]
    assert len(finished) == 2
    code, out = call("-m", *SMALL, "ea.n_parents=3,4")
    assert code == 0
    assert out.count("finished already") == 2


def test_a_deep_run_starts_from_a_linear_one(call):
    linear = [*SMALL, "model=linear", "states.n_states=16"]
    assert call(*linear, "hydra.run.dir=linear")[0] == 0
    code, out = call(*SMALL, "model=deep", "init_from=linear", "lr.min=1e-9", "lr.max=1e-9", "hydra.run.dir=deep")
    assert code == 0
    assert metrics("deep")["elbo"] > metrics("linear")["elbo"] - 0.5
    code, out = call(*SMALL, "model.hidden=[4]", "init_from=linear", "hydra.run.dir=narrow")
    assert code == 2
    assert "init_from=linear: every hidden layer needs at least 8 units" in out


def compare(run, other):
    """Everything but the times is the same to the last bit."""
    saved = [checkpoint.load_newest(Path(d)) for d in (run, other)]
    assert all(map(torch.equal, *([part.load() for part in s.parts] for s in saved)))
    one, two = (s.content for s in saved)
    for name, value in one["fit"]["model"].items():
        assert torch.equal(value, two["fit"]["model"][name]), name
    rows = [[{**row, "seconds": 0} for row in content["history"]] for content in (one, two)]
    assert rows[0] == rows[1]
    timeless = [{k: v for k, v in metrics(d).items() if not k.startswith("seconds")} for d in (run, other)]
    assert timeless[0] == timeless[1]


LONG = ["dataset=bars", "dataset.n_points=500", "epochs=60", "checkpoint_seconds=0", "threads=1"]


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(sent, tmp_path, call):
    assert call(*LONG, "hydra.run.dir=whole")[0] == 0
    command = [*COMMAND, *LONG, "hydra.run.dir=stopped"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (tmp_path / "stopped/checkpoint.previous.pt").exists())
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if sent == signal.SIGKILL else 1)
    assert metrics("stopped")["status"] == "interrupted"
    assert "Traceback" not in err
    if sent != signal.SIGKILL:
        assert "the same command goes on" in err
    code, out = call(*LONG, "hydra.run.dir=stopped")
    assert code == 0
    assert "going on after epoch" in out
    compare("whole", "stopped")


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(call):
    assert call(*SMALL, "hydra.run.dir=whole")[0] == 0
    assert call(*SMALL, "hydra.run.dir=damaged")[0] == 0
    path = Path("damaged/checkpoint.pt")
    path.write_bytes(path.read_bytes()[:-10])
    Path("damaged/metrics.json").unlink()
    code, out = call(*SMALL, "hydra.run.dir=damaged")
    assert code == 0
    assert "damaged/checkpoint.pt: damaged, its checksum is wrong; it is not used" in out
    compare("whole", "damaged")


def test_a_stopped_sweep_stops(tmp_path, call):
    options = [*LONG, "epochs=100000", "seed=0,1,2"]
    process = subprocess.Popen([*COMMAND, "-m", *options], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(tmp_path.glob("outputs/train/*/checkpoint.pt")))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the same command goes on" in err
    assert len(list(tmp_path.glob("outputs/train/*/config.yaml"))) == 1


def test_two_runs_cannot_share_a_directory(tmp_path, call):
    process = subprocess.Popen([*COMMAND, *LONG, "epochs=100000", "hydra.run.dir=run"], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (tmp_path / "run/checkpoint.pt").exists())
        code, out = call(*LONG, "epochs=100000", "hydra.run.dir=run")
        assert code == 2
        assert "another process is running in this directory" in out
    finally:
        process.kill()
        process.wait()
