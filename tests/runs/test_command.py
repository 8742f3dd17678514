"""The commands as a user runs them: exit codes, and a line for each mistake."""

from pathlib import Path

import pytest
import torch

import tvae
from scripts.fuzz import chaos
from tests.processes import BARS, LONG, SMALL, metrics, statuses, wait_until
from tvae.data.dataset import Dataset
from tvae.data.sets.bars import BarsConfig
from tvae.runs.distributed import connection
from tvae.runs.sweeps import NAME_MAX, run_name
from tvae.training.points import InMemory

pytestmark = pytest.mark.usefixtures("_no_figures")


@pytest.fixture
def call(command):
    return command.of("train")


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
        (["model=cubic"], ["model=cubic: "]),
        (["-m", "seed=0,x"], ["seed=x: "]),
        (["-m", "seed=range(0,0)"], ["seed=range(0,0): has no value, so that there is nothing to run"]),
        (["--resolve"], ["The --resolve flag can only be used"]),
        (
            ["--epochs=3", "--hlep", "-s", "7"],
            [
                "--epochs=3: options have no dashes, as in epochs=3",
                "--hlep: no such flag; did you mean --help?",
                "-s: no such flag",
            ],
        ),
        (["--cfg", "foo", "epochs=3"], ["argument --cfg/-c: invalid choice: 'foo'"]),
        (["epohcs=3"], ["epohcs=3: "]),
        (["ea.n_parents=[1"], ["ea.n_parents=[1: "]),
        (["device=cuda"], ["device=cuda: this machine has 0 CUDA devices"]),
    ],
)
def test_a_mistake_gets_a_line_and_code_2_and_writes_nothing(call, overrides, lines, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    out = call.refused(*overrides)
    assert len(out.splitlines()) == len(lines), out
    for line, start in zip(out.splitlines(), lines, strict=True):
        assert line.startswith(f"error: {start}"), out
    written = {p.name for p in Path("outputs").rglob("*") if p.is_file()}
    assert written <= {"multirun.yaml"}, "Hydra notes a sweep; nothing else is written"


def test_flags_stand_anywhere(call):
    out = call.ok("epochs=3", "--cfg", "job", "seed=7")
    assert "\nepochs: 3\n" in out
    assert "\nseed: 7\n" in out


def test_the_version_is_this_program_s(call):
    assert call("--version") == (0, f"tvae {tvae.__version__}\n")


def test_nan_in_the_data_and_nan_in_training(call, monkeypatch):
    code, out = call(*SMALL, "lr=constant", "lr.max=1e30", "epochs=30", "hydra.run.dir=diverged")
    assert code == 1
    assert out.splitlines()[-1].startswith("the ELBO became")
    assert "Traceback" not in out
    assert metrics("diverged")["status"] == "failed"
    empty = Dataset(InMemory(torch.full((60, 16), float("nan"), dtype=torch.float64)), (4, 4))
    monkeypatch.setattr(BarsConfig, "make", lambda *_: empty)
    out = call.refused(*SMALL, "hydra.run.dir=nan")
    assert out == "error: dataset=bars: the data hold NaN or infinite values\n"
    assert not Path("nan/metrics.json").exists()


def test_a_sweep_continues_after_a_failed_job_and_skips_finished_ones(call):
    out = call.refused("-m", *SMALL, "ea.n_parents=3,99,4")
    assert "ea.n_parents=99: must be at most states.n_states=16" in out
    finished = [p.parent.name for p in Path("outputs/train").glob("sweep*/*/metrics.json")]
    assert len(finished) == 2
    out = call.ok("-m", *SMALL, "ea.n_parents=3,4")
    assert out.count("finished already") == 2


def test_a_sweep_in_an_environment_that_torchrun_does_not_make(call, monkeypatch):
    """Each job is named as failed; none waits for others."""
    monkeypatch.setattr(connection, "_joined", None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    out = call.refused("-m", *BARS, "seed=0,1")
    assert out.count("in the environment are not as torchrun sets them") == 3, out  # in the list, and at the end


def test_a_stopped_sweep_stops(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (process,) = chaos.start("train", ["-m", *LONG, "threads=1", "epochs=100000", "seed=0,1,2"], tmp_path / "log")
    wait_until(lambda: any(tmp_path.glob("outputs/train/*/*/checkpoint.pt")))
    process.terminate()
    assert chaos.wait([process], 60) == [1]
    assert "the same command resumes" in (tmp_path / "log").read_text()
    (sweep,) = Path("outputs/train").iterdir()
    assert list(statuses(sweep).values()) == ["interrupted"]
    assert len(list(tmp_path.glob("outputs/train/*/*/config.yaml"))) == 1


@pytest.mark.parametrize("overrides", ["", "epochs=4,seed=1", "dataset.n_points=60,lr=cyclic"])
def test_a_run_is_named_by_its_overrides(overrides):
    assert run_name(overrides) == (overrides or "default")


@pytest.mark.parametrize("overrides", ["image=/home/a b.png", "x=" + "1" * 400, "..", "a=$HOME"])
def test_any_overrides_make_one_component_of_a_path(overrides):
    name = run_name(overrides)
    assert len(Path(name).parts) == 1
    assert len(name) <= NAME_MAX + 9
    assert name not in (".", "..")
    assert name != run_name(overrides + "0")
