"""Natural image patches by commands: a start from another run, the experiment from end to end, mistakes."""

import json
from pathlib import Path

import pytest
import torch

from scripts.paper import natural as script
from tvae.errors import TrainingFailed
from tvae.runs.initialise import load_model
from tvae.training.trainer import Fit

pytestmark = pytest.mark.usefixtures("own_cache")


def metrics_of(directory):
    return json.loads(Path(directory, "metrics.json").read_text())


def train(command, *options):
    """Train without a mistake, and return the metrics and what was printed."""
    out = command.ok("train", *options)
    (directory,) = (word.partition("=")[2] for word in options if word.startswith("hydra.run.dir="))
    return metrics_of(directory), out


@pytest.fixture
def linear(command, folder):
    """A linear run of some epochs, in the folder `linear`, and its options."""
    shared = ["dataset=vanhateren", "dataset.patch_size=6", "model.n_latents=20", "n_patches=400", f"data_dir={folder}"]
    train(command, *shared, "model=linear", "epochs=8", "hydra.run.dir=linear")
    return shared


STILL = ["lr=constant", "lr.max=1e-12"]  # a decoder that does not move


def test_a_deep_run_starts_where_the_linear_one_ended(command, linear):
    """Parameters, pi, sigma2 and both sets of states are carried over: the first epoch has the last one's ELBO."""
    before = metrics_of("linear")
    after, _ = train(command, *linear, *STILL, "epochs=1", "init_from=linear", "hydra.run.dir=deep")
    assert after["elbo"] > before["elbo"] - 0.01
    assert after["elbo_test"] > before["elbo_test"] - 0.3  # pi and sigma2 have moved with the training data
    anew, _ = train(command, *linear, *STILL, "epochs=1", "hydra.run.dir=anew")
    assert anew["elbo"] < before["elbo"] - 1  # without a start: far below


def test_held_out_data_and_a_start_survive_an_interruption(command, linear, monkeypatch):
    """A run that starts from another and is stopped ends as if it had not been."""
    options = [*linear, "epochs=4", "init_from=linear", "checkpoint_seconds=0"]
    whole, _ = train(command, *options, "hydra.run.dir=whole")
    real = Fit.finish_epoch

    def fail_in_the_third(fit):
        if fit.epoch == 2:
            raise TrainingFailed("made to fail")
        return real(fit)

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "finish_epoch", fail_in_the_third)
        code, out = command("train", *options, "hydra.run.dir=stopped")
        assert code == 1, out
    stopped, out = train(command, *options, "hydra.run.dir=stopped")
    assert "resumed after epoch 2" in out
    assert (whole["elbo"], whole["elbo_test"]) == (stopped["elbo"], stopped["elbo_test"])
    parts = [load_model(Path(name))[2] for name in ("whole", "stopped")]
    states = [next(part.load() for part in found if part.name == "test_states") for found in parts]
    assert torch.equal(*states)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["model.n_latents=30"], "maps 20 latents to 36 values, this one 30 to 36"),
        (["model.hidden=[4]"], "every hidden layer needs at least 20 units"),
    ],
)
def test_a_start_that_does_not_fit_costs_nothing(command, linear, options, message):
    """A run is not thrown away for one that cannot begin, even with restart=true."""
    train(command, *linear, "epochs=1", "hydra.run.dir=mine")
    before = Path("mine/checkpoint.pt").read_bytes()
    out = command.refused("train", *linear, *options, "init_from=linear", "restart=true", "hydra.run.dir=mine")
    assert message in out
    assert Path("mine/checkpoint.pt").read_bytes() == before
    command.refused("train", *linear, *options, "init_from=linear", "hydra.run.dir=new")
    assert not Path("new").exists()
    out = command.refused("train", *linear, "init_from=mine", "restart=true", "hydra.run.dir=mine")
    assert "init_from=mine: is the directory of this run itself" in out


TRAIN = ["experiment=natural_linear", "dataset.patch_size=6", "model.n_latents=20", "n_patches=400", "epochs=3"]


def test_experiment_end_to_end(command, folder, capfd):
    """Linear, then deep and continued linear from the same point, and the figures of the script."""
    shared = [*TRAIN, f"data_dir={folder}"]
    out = folder.parent / "natural"
    start, _ = train(command, *shared, f"hydra.run.dir={out}/linear_0")
    assert start["elbo_test"] is not None
    assert (out / "linear_0" / "figures" / "latents.png").is_file()
    init = f"init_from={out}/linear_0"
    still = ["model.hidden=[20]", "lr.min=1e-9", "lr.max=1e-9"]
    deep, _ = train(command, "experiment=natural_deep", *shared[1:], *still, init, f"hydra.run.dir={out}/deep_0")
    continued, _ = train(command, *shared, init, f"hydra.run.dir={out}/continued_0")
    small = ["experiment=natural_h1000", *shared[1:], "model.hidden=[5]", "ea.n_children=4", "states.n_states=16"]
    for h, seed in ((8, 0), (16, 0), (16, 1)):
        train(command, *small, f"model.n_latents={h}", f"seed={seed}", f"hydra.run.dir={out}/h_{h}_{seed}")
    script.main(str(out))
    printed = capfd.readouterr().out
    assert "held-out patches: deep is above linear by" in printed
    assert "H=16" in printed
    found = json.loads((out / "natural.json").read_text())
    assert found["gain"]["elbo_test"]["gain"]["mean"] == pytest.approx(deep["elbo_test"] - continued["elbo_test"])
    assert (out / "natural_elbo.png").is_file()
    assert (out / "natural_h.png").is_file()
    rows = found["sweep"]["rows"]
    assert [(row["n_latents"], len(row["elbo_test"]["values"])) for row in rows] == [(8, 1), (16, 2)]
    assert rows[0]["elbo"]["std"] is None
    assert rows[1]["elbo"]["std"] > 0
    assert "| 16 |" in (out / "natural.md").read_text()


def test_no_finished_runs(tmp_path):
    with pytest.raises(SystemExit, match="no finished runs"):
        script.main(str(tmp_path))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data_dir={empty}"], "vanhateren: no images there; put .iml, .imc, TIFF or PNG files into it"),
        (["dataset.images=[imk00001.iml]"], "imk00001.iml: not in data_dir; only imk00152.iml, imk00377.iml"),
        (["dataset.images=[imk00377.iml]"], "imk00377.iml: cannot be downloaded from http://127.0.0.1:9/vanhateren"),
        (["dataset=natural", "dataset.images=[house]"], "dataset=natural has astronaut, camera"),
        (["dataset=natural", "dataset.patch_size=999"], "do not hold a patch of 999x999"),
        (["dataset=natural", "noise=3"], "noise=3.0: dataset=natural is not an image"),
        (["dataset=natural", "dataset.retained=0"], "dataset.retained=0.0: must be above 0"),
        (["dataset=bars", "n_patches=3"], "n_patches=3: is for patches of natural images, not for dataset=bars"),
    ],
)
def test_mistakes(command, tmp_path, overrides, message):
    (tmp_path / "empty" / "vanhateren").mkdir(parents=True)
    overrides = [o.format(empty=tmp_path / "empty") for o in overrides]
    out = command.refused("train", "dataset=vanhateren", "epochs=1", *overrides)
    assert message in out
    assert "Traceback" not in out
    assert len(out.strip().splitlines()) <= 2  # a line before it may say that a download is tried


def test_fewer_patches_than_latents_is_said(command, folder):
    _, out = train(command, *TRAIN, f"data_dir={folder}", "n_patches=15", "epochs=1", "hydra.run.dir=few")
    assert "n_patches=15: too few to learn model.n_latents=20" in out


def test_init_from_other_data_takes_only_parameters(command, folder):
    shared = [*TRAIN, f"data_dir={folder}", "epochs=1"]
    train(command, *shared, "hydra.run.dir=a")
    _, out = train(command, *shared, "dataset.seed=1", "init_from=a", "hydra.run.dir=b")
    assert "other data, so only its parameters are taken over" in out
