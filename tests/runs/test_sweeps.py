"""Multiruns: deterministic directories, repetition, failures, and launchers that run jobs side by side."""

import csv
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.composing import composed
from tests.processes import metrics, statuses, wait_until

SMALL = ["dataset=bars", "dataset.n_points=60", "states.n_states=16", "batch_size=16", "epochs=2"]

pytestmark = pytest.mark.usefixtures("_no_figures", "in_folder")


def sweep(*overrides):
    words = [sys.executable, "-m", "tvae.train", "-m", *SMALL, *overrides]
    return subprocess.run(words, capture_output=True, text=True, timeout=200, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("launcher", ["basic", "joblib", "submitit_local"])
def test_a_failed_job_does_not_stop_the_others_and_is_named_at_the_end(launcher, command):
    options = ["lr=constant", "lr.max=0.01,1e30,0.02", "epochs=3", "hydra.sweep.dir=out"]
    options += ["hydra.sweep.subdir=rate_${lr.max}", f"hydra/launcher={launcher}"]
    if launcher == "basic":
        code, printed = command("train", "-m", *SMALL, *options)
    else:
        pytest.importorskip(f"hydra_plugins.hydra_{launcher.partition('_')[0]}_launcher")
        found = sweep(*options)
        code, printed = found.returncode, found.stderr
    assert code == 1, printed
    assert "Traceback" not in printed
    assert statuses("out") == {"rate_0.01": "finished", "rate_1e+30": "failed", "rate_0.02": "finished"}
    end = printed.strip().splitlines()[-3:]
    assert end[0] == "jobs that failed:"
    assert "out/rate_1e+30: the ELBO became" in end[1]


def test_repetition_finishes_only_what_is_missing(command):
    options = ["-m", *SMALL, "seed=0,1", "hydra.sweep.dir=out", "hydra.sweep.subdir=seed_${seed}"]
    command.ok("train", *options)
    before = {p: p.stat().st_mtime_ns for p in Path("out").glob("*/metrics.json")}
    Path("out/seed_1/metrics.json").unlink()
    printed = command.ok("train", *options)
    assert printed.count("is finished already") == 1
    after = {p: p.stat().st_mtime_ns for p in Path("out").glob("*/metrics.json")}
    assert [p.parent.name for p in before if before[p] != after[p]] == ["seed_1"]


def test_a_sweep_is_named_by_what_varies_and_ends_with_a_table(command):
    options = ["lr=constant", "lr.max=0.0001,1e30,0.02", "epochs=3", "threads=1"]
    code, printed = command("train", "-m", *SMALL[:-1], *options)
    assert code == 1
    (folder,) = Path("outputs/train").iterdir()
    assert folder.name == "sweep,batch_size=16,dataset.n_points=60,dataset=bars,epochs=3,lr=constant,states.n_states=16"
    assert statuses(folder) == {"lr.max=0.0001": "finished", "lr.max=1e+30": "failed", "lr.max=0.02": "finished"}
    for place, name in enumerate(("lr.max=0.0001", "lr.max=1e+30", "lr.max=0.02"), 1):
        assert f"[{place}/3] {name}" in printed
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [row["lr.max"] for row in rows] == ["0.02", "0.0001", "1e+30"], "the highest ELBO first, failed ones last"
    assert [row["status"] for row in rows] == ["finished", "finished", "failed"]
    assert next(iter(rows[0])) == "lr.max"
    assert not {"epochs=3", "lr", "dataset"} & set(rows[0]), "what is the same for all"
    assert float(rows[0]["elbo"]) == metrics(folder / "lr.max=0.02")["elbo"]
    assert rows[0]["bars_found"] == str(metrics(folder / "lr.max=0.02")["bars_found"])
    table = printed[printed.index("lr.max  status") :].splitlines()
    assert [line.split()[0] for line in table[1:4]] == ["0.02", "0.0001", "1e+30"]


def test_a_sweep_that_grows_resumes_what_is_there(command):
    command.ok("train", "-m", *SMALL, "seed=0,1")
    printed = command.ok("train", "-m", *SMALL, "seed=0,1,2")
    assert printed.count("is finished already") == 2
    (folder,) = Path("outputs/train").iterdir()
    assert sorted(path.name for path in folder.glob("seed=*")) == ["seed=0", "seed=1", "seed=2"]
    assert printed.count("ELBO") >= 3, "finished ones say what has come of them"


def test_one_combination_is_named_as_a_single_run_is(command):
    command.ok("train", "-m", *SMALL)
    (run,) = Path("outputs/train").glob("*/metrics.json")
    assert run.parent.name == "batch_size=16,dataset.n_points=60,dataset=bars,epochs=2,states.n_states=16"


@pytest.fixture
def sweeping():
    """Two jobs that would take for ever, side by side."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="pip install '.[joblib]'")
    options = ["seed=0,1", "epochs=100000", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=out"]
    words = [sys.executable, "-m", "tvae.train", "-m", *SMALL, *options, "hydra.sweep.subdir=seed_${seed}"]
    with open("log", "w") as log:
        process = subprocess.Popen(words, stderr=log)
    try:
        wait_until(lambda: {"seed_0: epoch 1/100000", "seed_1: epoch 1/100000"} <= starts_of("log"))
        yield process
    finally:
        process.kill()


def test_jobs_of_joblib_share_the_cores_and_end_with_the_sweep(sweeping):
    """A sweep that is killed leaves no processes behind; its jobs save what they have."""
    sweeping.kill()
    wait_until(lambda: statuses("out") == {"seed_0": "interrupted", "seed_1": "interrupted"})
    wait_until(lambda: not jobs_in(Path.cwd()))
    threads = max(1, (os.cpu_count() or 1) // 2)
    assert f"threads: {threads}" in Path("out/seed_0/config.yaml").read_text()


def test_a_job_that_is_killed_with_joblib_is_told(sweeping):
    children = Path(f"/proc/{sweeping.pid}/task/{sweeping.pid}/children").read_text().split()
    job = next(pid for pid in children if b"LokyProcess" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(int(job), signal.SIGKILL)
    assert sweeping.wait(60) == 1
    assert "a job was killed, perhaps because memory ran out" in Path("log").read_text()
    assert "Traceback" not in Path("log").read_text()
    wait_until(lambda: not jobs_in(Path.cwd()))


def jobs_in(folder):
    """Processes that work in a folder, this one aside."""
    numbers = {int(path.name) for path in Path("/proc").glob("[0-9]*")} - {os.getpid()}
    return [number for number in numbers if folder_of(number) == str(folder)]


def folder_of(number):
    with suppress(OSError):
        return os.readlink(f"/proc/{number}/cwd")


def starts_of(log):
    return {line.partition("  ")[0] for line in Path(log).read_text().splitlines()}


@pytest.mark.parametrize("launcher", ["submitit_slurm", "slurm"])
def test_no_cluster_here(launcher, command):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install '.[slurm]'")
    if shutil.which("srun"):
        pytest.skip("this machine is part of a SLURM cluster")
    printed = command.refused("train", "-m", *SMALL, "seed=0,1", f"hydra/launcher={launcher}", "hydra.sweep.dir=out")
    assert printed.strip().splitlines()[-1].startswith("error: hydra/launcher: this machine is not part of a SLURM")
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("experiment", "folder", "levels"),
    [
        ("table1", "outputs/table1/paper", "15,25,50"),
        ("table1_quick", "outputs/table1/quick", "15,25,50"),
        ("table2", "outputs/table2/paper", "50"),
        ("table2_quick", "outputs/table2/quick", "15,25,50"),
    ],
)
def test_tables_sweep_noise_and_seeds_into_their_own_folder(experiment, folder, levels):
    cfg = composed(f"experiment={experiment}", "noise=25", "corruption_seed=2", return_hydra_config=True)
    assert str(cfg.hydra.sweeper.params.noise) == levels
    assert cfg.hydra.sweeper.params.corruption_seed == "0,1,2"
    assert (cfg.hydra.sweep.dir, cfg.hydra.sweep.subdir) == (folder, "noise=25.0,seed=2")
    assert cfg.seed == 2
    assert cfg.epochs == {"table1_quick": 60, "table2_quick": None}.get(experiment, 500)
    assert cfg.dataset.standardise == experiment.endswith("quick")  # the paper's rates are for grey values
