"""A restoration that is stopped is resumed, with the result of one that was not."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.conftest import random_model
from tvae.backends.native import local_groups as native
from tvae.errors import Failure
from tvae.io.image_file import read_image, write_image
from tvae.restoration import pipeline
from tvae.restoration import tiling as bands_module
from tvae.restoration.non_local import stage
from tvae.restoration.non_local.effort import Refinement
from tvae.restoration.non_local.stage import by_local_groups
from tvae.runs.distributed.ranks import Ranks
from tvae.runs.kept_bands import KeptBands
from tvae.runs.signals import Interrupted, Stop

OPTIONS = [
    "image=noisy.png", "dataset.patch_size=4", "model.n_latents=8", "states.n_states=16", "epochs=1", "effort=fast",
]  # fmt: skip


class Model:
    """The part of a fit that `KeptBands` looks at."""

    def __init__(self, seed=0):
        self.model = random_model(seed=seed)


def filled(kept, computed):
    """(1, 200, 2, 1): the numbers of the rows; `computed`: the bands that were not there."""
    out = torch.zeros(1, 200, 2, 1)

    def rows_of(band):
        computed.append(band.place.start)
        return torch.arange(band.place.start, band.place.stop).float().view(1, -1, 1, 1).expand(1, -1, 2, 1)

    kept.fill("rows", out, 1, rows_of)
    return out


def kept_in(path, seed=0, stop=None):
    return KeptBands(path, Model(seed), stop or Stop(), Ranks())


@pytest.fixture
def _low_bands(monkeypatch):
    monkeypatch.setattr(bands_module, "ROWS_MAX", 64)


@pytest.mark.usefixtures("_low_bands")
def test_what_is_kept_is_not_computed_again(tmp_path):
    first, again, other = [], [], []
    whole = filled(kept_in(tmp_path), first)
    assert first == [0, 50, 100, 150]
    (tmp_path / "restored.band-rows-50-100.pt").unlink()
    damaged = tmp_path / "restored.band-rows-100-150.pt"
    damaged.write_bytes(damaged.read_bytes()[:-90] + b"x" * 90)
    assert torch.equal(filled(kept_in(tmp_path), again), whole)
    assert again == [50, 100], "what is not there, or damaged, is"
    assert torch.equal(filled(kept_in(tmp_path, seed=1), other), whole)
    assert other == first, "and what is of another model"
    kept_in(tmp_path).clear()
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("_low_bands")
def test_it_stops_between_bands(tmp_path):
    stop, computed = Stop(), []
    kept = kept_in(tmp_path, stop=stop)
    compute_one = kept.one

    def one(name, compute, is_joint):
        stop.received.append(0.0)
        return compute_one(name, compute, is_joint)

    kept.one = one
    with pytest.raises(Interrupted, match="while restoring"):
        filled(kept, computed)
    assert computed == [0]


def test_one_process_stops_within_a_band_and_several_do_not(tmp_path):
    stop = Stop()
    kept = kept_in(tmp_path, stop=stop)
    kept.within(0.5)
    stop.received.append(0.0)
    with pytest.raises(Interrupted, match="while restoring"):
        kept.within(0.5)
    kept.ranks = SimpleNamespace(is_alone=False)
    kept.within(0.5)


def test_local_groups_tell_before_each_part_of_a_patch_size(monkeypatch):
    monkeypatch.setattr(native, "VALUES_AT_ONCE", 1)
    y, told = torch.rand(150, 24, 1), []
    plan = Refinement(local=((5, 10), (6, 10)))
    whole = by_local_groups(y, y, 0.01, 1.0, plan, range(150))
    assert torch.equal(by_local_groups(y, y, 0.01, 1.0, plan, range(150), told.append), whole)
    assert set(told) == {0.0, 0.5}
    assert len(told) > 2


@pytest.mark.usefixtures("_no_figures")
def test_a_stopped_restoration_is_resumed(tmp_path, command, monkeypatch):
    """A signal stops it between two stages; the picture is that of an undisturbed run."""
    noisy = np.random.default_rng(0).integers(0, 255, (40, 24), dtype=np.uint8)
    write_image(tmp_path / "noisy.png", noisy)
    command.ok("denoise", *OPTIONS, "hydra.run.dir=whole")
    refine = stage.refine_pilot

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return refine(*args)

    monkeypatch.setattr(stage, "refine_pilot", interrupted)
    code, out = command("denoise", *OPTIONS, "hydra.run.dir=part")
    assert code == 1
    assert "interrupted while restoring; the same command resumes" in out
    assert json.loads(Path("part/metrics.json").read_text())["status"] == "interrupted"
    assert len(list(Path("part").glob("restored.band-states-*"))) == 1
    monkeypatch.setattr(stage, "refine_pilot", refine)
    monkeypatch.setattr(pipeline, "restore_by_model", _from_kept(pipeline.restore_by_model))
    command.ok("denoise", *OPTIONS, "hydra.run.dir=part")
    assert not list(Path("part").glob("restored.band-*"))
    pictures = [read_image(tmp_path / name / "restored.png").pixels for name in ("whole", "part")]
    np.testing.assert_array_equal(*pictures)


def _from_kept(restore):
    """Fails if a band has to be computed."""

    def restore_from_kept(fit, picture, config, n_rounds, bands):
        one = bands.one

        def only_read(name, compute, is_joint):
            def fail():
                raise Failure("computed again")

            return one(name, fail, is_joint)

        bands.one = only_read
        found = restore(fit, picture, config, n_rounds, bands)
        bands.one = one
        return found

    return restore_from_kept
