"""Foreign files: configurations and checkpoints that are whole and wrong, pipes and devices."""

import copy
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import tvae
from tests.tiny import TINY, tiny_picture
from tvae.config.checks import BYTES_MAX, read_config
from tvae.errors import UserError
from tvae.io.image_file import write_image
from tvae.io.sealed import read, write
from tvae.runs.run_directory import read_metrics

pytestmark = pytest.mark.usefixtures("_no_figures")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run that is copied, not repeated."""
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def run(command, finished):
    """A copy of the run in the working directory, with its picture."""
    write_image(Path("a.png"), tiny_picture())
    if not finished.exists():
        command.ok("denoise", "image=a.png", "model=deep", *TINY, "hydra.run.dir=run")
        shutil.copytree("run", finished)
    else:
        shutil.copytree(finished, "run")
    return Path("run")


@pytest.mark.parametrize(
    ("there", "instead", "told"),
    [
        ("epochs: 1", "epochs: -3", "epochs=-3: must be at least 1"),
        ("batch_size: 32", "batch_size: 0", "batch_size=0: must be at least 1"),
        ("n_latents: 8", "n_latents: -1", "model.n_latents=-1: must be at least 1"),
        ("n_states: 8", "n_states: 100000", "states.n_states=100000: model.n_latents=8 has fewer states"),
        ("stride: 1", "stride: 99", "dataset.stride=99: must be at most dataset.patch_size=8"),
        ("seed: 0", "seed: -1", "seed=-1: must be at least 0"),
        ("precision: float32", "precision: float99", "precision=float99: must be one of"),
        ("kind: cyclic", "kind: cubic", "lr.kind=cubic: must be one of"),
        ("average: uniform", "average: odd", "dataset.average=odd: must be one of"),
        ("effort: fast", "effort: huge", "effort=huge: must be one of"),
        ("prune: 0.001", "prune: .nan", "prune=nan: must be a finite number"),
        ("n_parents: 2", "n_parents: 900", "ea.n_parents=900: must be at most states.n_states=8"),
        ("hidden:\n  - 8", "hidden:\n  - 0", "model.hidden=[0]: must be at least 1"),
        ("image: a.png", "image: null", "image: no value was given"),
        ("batch_size: 32", "batch_size: many", "not readable as the configuration of a run"),
        ("name: file", "name: cats", "not readable as the configuration of a run"),
        ("name: file", "name: bars", "not readable as the configuration of a run"),
        ("image: a.png", "image: ${nowhere}", "not readable as the configuration of a run"),
    ],
)
def test_a_configuration_that_was_edited(run, there, instead, told):
    text = (run / "config.yaml").read_text()
    assert there in text
    (run / "config.yaml").write_text(text.replace(there, instead, 1))
    with pytest.raises(UserError) as caught:
        read_config(run / "config.yaml")
    (line,) = caught.value.problems
    assert line.startswith(f"run/config.yaml: {told}")


def test_an_edited_configuration_is_told_in_a_line(command, run):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("epochs: 1", "epochs: -3"))
    for options, told in {
        ("run=run", "hydra.run.dir=again"): "run/config.yaml: epochs=-3: must be at least 1",
        ("image=a.png", *TINY, "hydra.run.dir=run"): "holds a foreign config.yaml; name another hydra.run.dir",
    }.items():
        code, out = command("denoise", *options)
        assert (code, out.count("\n")) == (2, 1)
        assert told in out


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("text", [BOMB, "[" * 100_000, "a: " * 50, "#" * (BYTES_MAX + 1), "\0", "\tx: 1"])
def test_yaml_that_would_take_for_ever_is_not_read(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match="not readable as the configuration of a run"):
        read_config(tmp_path / "config.yaml")


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", '{"elbo": NaN}', "\xff", ""])
def test_metrics_that_are_none(tmp_path, text):
    (tmp_path / "metrics.json").write_text(text, "latin-1")
    assert read_metrics(tmp_path) is None
    (tmp_path / "metrics.json").unlink()
    os.mkfifo(tmp_path / "metrics.json")
    assert read_metrics(tmp_path) is None


def test_only_files_are_read(command, run):
    """A pipe would keep the command waiting, a device would fill the memory."""
    os.mkfifo("pipe")
    Path("folder").mkdir()
    for name, kind in {"pipe": "a pipe or device", "/dev/zero": "a pipe or device", "folder": "a folder"}.items():
        for words in (["image="], ["image=a.png", "mask="], ["image=a.png", "clean="]):
            if (name, words) == ("folder", ["image="]):  # means the pictures in it
                continue
            code, out = command(
                "inpaint" if "mask=" in words else "denoise",
                *words[:-1],
                f"{words[-1]}{name}",
                *TINY,
                "hydra.run.dir=other",
            )
            assert (code, out) == (2, f"error: {name}: {kind}; must be a file\n")
        code, out = command("train", "dataset=array", f"dataset.file={name}", "hydra.run.dir=other")
        assert (code, out) == (2, f"error: {name}: {kind}; must be a file\n")
    for name in ("checkpoint.pt", "config.yaml"):
        (run / name).unlink()
        os.mkfifo(run / name)
        out = command.refused("denoise", "run=run", "hydra.run.dir=other")
        assert "not readable as the configuration" in out or "no checkpoint there is readable" in out
        out = command.refused("denoise", "image=a.png", *TINY, "hydra.run.dir=run")
        assert "is no file; name another hydra.run.dir" in out


def nan(tensor):
    return torch.full_like(tensor, float("nan"))


CRAFTED = {
    "NaN in the weights": lambda c: c["fit"]["model"].update(
        {"decoder.weights.0": nan(c["fit"]["model"]["decoder.weights.0"])}
    ),
    "pi of NaN": lambda c: c["fit"]["model"].update(pi=nan(c["fit"]["model"]["pi"])),
    "pi above 1": lambda c: c["fit"]["model"].update(pi=2 * torch.ones_like(c["fit"]["model"]["pi"])),
    "negative sigma2": lambda c: c["fit"]["model"].update(sigma2=-c["fit"]["model"]["sigma2"]),
    "sigma2 as a number": lambda c: c["fit"]["model"].update(sigma2=1.0),
    "other weights": lambda c: c["fit"]["model"].update({"decoder.weights.0": torch.zeros(3, 3)}),
    "negative epoch": lambda c: c["fit"].update(epoch=-1),
    "epoch to come": lambda c: c["fit"].update(epoch=7),
    "half an epoch": lambda c: c["fit"].update(epoch=0.5),
    "epoch as a word": lambda c: c["fit"].update(epoch="1"),
    "batch to come": lambda c: c["fit"].update(batch=10**9),
    "endless seconds": lambda c: c["fit"].update(seconds=float("inf")),
    "other units": lambda c: c["fit"].update(units=[0.0, 1e9]),
    "units of NaN": lambda c: c["fit"].update(units=[float("nan"), 1.0]),
    "no units": lambda c: c["fit"].pop("units"),
    "totals of NaN": lambda c: c["fit"]["totals"][0].update(elbo=nan(c["fit"]["totals"][0]["elbo"])),
    "other totals": lambda c: c["fit"].update(totals=[{}]),
    "history as a word": lambda c: c.update(history="none"),
    "history of numbers": lambda c: c.update(history=[1.0]),
    "history without ELBO": lambda c: c["history"][0].pop("elbo"),
    "history of NaN": lambda c: c["history"][0].update(elbo=float("nan")),
    "history of words": lambda c: c["history"][0].update(seconds="long"),
    "history too long": lambda c: c["history"].append(dict(c["history"][0])),
    "optimiser of NaN": lambda c: c["fit"]["optimiser"]["state"][0].update(
        exp_avg=nan(c["fit"]["optimiser"]["state"][0]["exp_avg"])
    ),
    "optimiser of another shape": lambda c: c["fit"]["optimiser"]["state"][0].update(exp_avg=torch.zeros(2)),
    "endless rate": lambda c: c["fit"]["optimiser"]["param_groups"][0].update(lr=float("inf")),
    "betas above 1": lambda c: c["fit"]["optimiser"]["param_groups"][0].update(betas=(5.0, 5.0)),
    "schedule elsewhere": lambda c: c["fit"]["schedule"].update(last_epoch=-4),
    "rate of NaN": lambda c: c["fit"]["schedule"].update(_last_lr=[float("nan")]),
    "states of another type": lambda c: c["parts"][0]["content"].update(
        states=c["parts"][0]["content"]["states"].float()
    ),
    "fewer states": lambda c: c["parts"][0]["content"].update(states=c["parts"][0]["content"]["states"][:2]),
}


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED)
def test_a_checkpoint_that_is_signed_and_wrong_inside(command, run, change):
    content = copy.deepcopy(read(run / "checkpoint.pt"))
    change(content)
    write(run / "checkpoint.pt", content)
    code, out = command("denoise", "run=run", "hydra.run.dir=again")
    assert code in (1, 2), out
    assert "Traceback" not in out
    assert "checkpoint" in out.splitlines()[-1]
    assert not Path("again/restored.png").exists()


def test_states_beyond_the_last_latent_are_refused(command):
    """Bits packed behind the last latent would be read as latents that do not exist."""
    write_image(Path("a.png"), tiny_picture())
    options = ["image=a.png", *TINY, "model.n_latents=9", "epochs=2", "checkpoint_seconds=0", "hydra.run.dir=run"]
    command.ok("denoise", *options)
    content = copy.deepcopy(read(Path("run/checkpoint.pt")))
    content["parts"][0]["content"]["states"][..., -1] |= 0x80
    write(Path("run/checkpoint.pt"), content)
    Path("run/metrics.json").unlink()
    code, out = command("denoise", *options)
    assert code == 1
    assert "states beyond the last latent" in out.splitlines()[-1]


@pytest.mark.parametrize("scale", [1e27, 1e-20, 1e-28])
def test_a_picture_in_any_units_is_restored_as_in_its_own(scale):
    picture = tiny_picture().astype(np.float64)
    restored, scaled = (tvae.denoise(picture * by, overrides=TINY) for by in (1.0, scale))
    np.testing.assert_allclose(scaled / scale, restored, atol=0.1)


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_values_that_cannot_be_computed_with(command, scale):
    picture = tiny_picture() * scale
    with pytest.raises(UserError, match="cannot be computed with; scale them to an ordinary range"):
        tvae.denoise(picture, overrides=TINY)
    np.save("a.npy", picture)
    out = command.refused("train", "dataset=array", "dataset.file=a.npy", "epochs=1", "hydra.run.dir=run")
    assert out.startswith("error: dataset=array: values from ")
