"""Arrays in files: the same rows as in memory, and little of them in memory."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import load, small_config
from tvae.data import mapped
from tvae.data.mapped import MappedSets
from tvae.data.sets.array import ArrayConfig
from tvae.inference.states import StatesConfig
from tvae.io.atomic import DiskFull
from tvae.model.vae import ModelConfig
from tvae.runs import checkpoint
from tvae.runs.distributed.ranks import Ranks
from tvae.runs.initialise import resume
from tvae.runs.setup import make_fit
from tvae.training import points
from tvae.training.points import StateSets


def resident(kind):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_what_is_released_is_not_resident_and_not_lost(tmp_path):
    states = mapped.create(tmp_path / "states.bin", (1 << 17, 8, 64))  # 64 MB
    before = resident("RssFile")
    states.tensor.fill_(7)
    assert resident("RssFile") > before + 50
    states.release()
    assert resident("RssFile") < before + 10
    assert (states.tensor == 7).all()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_little_is_resident_at_any_time(tmp_path, monkeypatch):
    """Making states, looking at the data, training, saving and loading: each would touch all of the files."""
    monkeypatch.setattr(mapped, "ROWS_BETWEEN", 64)
    monkeypatch.setattr(points, "PART_BYTES", 1 << 22)
    monkeypatch.setattr(checkpoint, "HELD_BYTES", 0)
    n_points, most = 200_000, 0.0
    np.save(tmp_path / "data.npy", np.random.default_rng(0).random((n_points, 256), dtype=np.float32))  # 195 MB
    release = mapped.Mapped.release

    def watched(self):
        nonlocal most
        most = max(most, resident("RssFile"))
        release(self)

    monkeypatch.setattr(mapped.Mapped, "release", watched)
    config = small_config(
        dataset=ArrayConfig(file=str(tmp_path / "data.npy"), standardise=True),
        model=ModelConfig(n_latents=120, hidden=[], sigma2=None),
        states=StatesConfig(n_states=64, memmap=True),  # 183 MB
        batch_size=64,
        epochs=1,
    )
    np.load(tmp_path / "data.npy", mmap_mode="r").sum()  # whatever numpy loads on first use
    before = resident("RssFile")
    fit = make_fit(config, load(config), tmp_path)
    assert not list(fit.epochs(lambda: fit.batch > 200))
    parts = ({"states": states} for states in fit.points.parts())
    checkpoint.save(tmp_path, {"fit": fit.state_dict(), "history": []}, parts, Ranks())
    resume(fit, checkpoint.load_newest(tmp_path, Ranks()))
    assert before < most < before + 170  # less than either file has, with what torch maps of itself
    assert resident("RssFile") < before + 100


def test_no_room_for_the_states(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(DiskFull, match=r"no room for 0\.1 GB of states"):
            mapped.create(tmp_path / "states.bin", (1 << 17, 8, 64))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("rows_between", [1, 3, 256])
def test_sets_in_a_file_are_those_in_memory(tmp_path, monkeypatch, rows_between):
    """Whatever is taken and put, and however often pages are dropped in between."""
    monkeypatch.setattr(mapped, "ROWS_BETWEEN", rows_between)
    shape, rng = (40, 4, 3), torch.Generator().manual_seed(0)
    sets = StateSets(shape), MappedSets(tmp_path / "states.bin", shape)
    start = torch.randint(256, shape, generator=rng, dtype=torch.uint8)
    for each in sets:
        each.tensor.copy_(start)
    for n_rows in (0, 1, 7, 40):
        index = torch.randperm(40, generator=rng)[:n_rows]
        packed = torch.randint(256, (n_rows, *shape[1:]), generator=rng, dtype=torch.uint8)
        before = packed.clone()
        taken = [each.take(index) for each in sets]
        assert torch.equal(*taken)
        assert taken[0].shape == packed.shape
        for each in sets:
            each.put(index, packed)
            each.release()
        assert torch.equal(packed, before)
        assert torch.equal(sets[0].tensor, sets[1].tensor)
        assert torch.equal(sets[1].take(index), packed)
    assert not torch.equal(sets[0].tensor, start)


def test_what_was_taken_does_not_change_with_the_sets(tmp_path):
    for sets in (StateSets((5, 2, 1)), MappedSets(tmp_path / "states.bin", (5, 2, 1))):
        sets.tensor.fill_(1)
        taken = sets.take(torch.tensor([3]))
        sets.put(torch.tensor([3]), torch.full((1, 2, 1), 9, dtype=torch.uint8))
        assert (taken == 1).all()


def test_sets_take_the_place_of_a_file_that_is_there(tmp_path):
    (tmp_path / "states.bin").write_bytes(b"of a run before" * 99)
    sets = MappedSets(tmp_path / "states.bin", (5, 2, 1))
    assert not sets.tensor.any()
    assert (tmp_path / "states.bin").stat().st_size == 10
