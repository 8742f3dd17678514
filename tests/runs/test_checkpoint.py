import logging
import os
import pickle
import resource
import zipfile
from contextlib import contextmanager

import pytest
import torch

from tvae.io.atomic import DiskFull
from tvae.io.sealed import DamagedCheckpoint, read, write
from tvae.runs import checkpoint
from tvae.runs.checkpoint import copy_rows, reinstate, shape_of
from tvae.runs.distributed.ranks import Ranks
from tvae.runs.files import CHECKPOINT, DAMAGED, PARTS, PREVIOUS


def save(directory, content, parts=()):
    checkpoint.save(directory, content, parts, Ranks())


def load_newest(directory):
    return checkpoint.load_newest(directory, Ranks())


def content(value=1.0):
    return {"fit": {"weights": torch.full((50,), value), "epoch": 3, "units": [0.0, 1.0]}, "history": [{"elbo": -1.5}]}


def equal(a, b):
    return torch.equal(a["fit"]["weights"], b["fit"]["weights"]) and a["history"] == b["history"]


def test_there_and_back(tmp_path):
    save(tmp_path, content())
    assert equal(load_newest(tmp_path).content, content())
    assert load_newest(tmp_path / "elsewhere") is None


def test_other_programs_can_read_it(tmp_path):
    save(tmp_path, content())
    assert equal(torch.load(tmp_path / CHECKPOINT, weights_only=True), content())
    assert zipfile.ZipFile(tmp_path / CHECKPOINT).testzip() is None


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path):
    save(tmp_path, content())
    path = tmp_path / CHECKPOINT
    good = path.read_bytes()
    unnoticed = []
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        try:
            loaded = read(path)
        except DamagedCheckpoint:
            continue
        if not equal(loaded, content()):
            unnoticed.append(place)
    assert unnoticed == []


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_cut_file_is_refused(tmp_path, length):
    save(tmp_path, content())
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedCheckpoint, match=str(path)):
        read(path)


def test_the_previous_one_stands_in_for_a_damaged_one(tmp_path, caplog):
    save(tmp_path, content(1))
    save(tmp_path, content(2))
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-200])
    logging.getLogger("tvae").propagate = True
    with caplog.at_level("WARNING"):
        assert equal(load_newest(tmp_path).content, content(1))
    assert str(path) in caplog.text
    (tmp_path / PREVIOUS).write_bytes(b"")
    with pytest.raises(DamagedCheckpoint, match="restart=true"):
        load_newest(tmp_path)


def test_pickled_code_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    save(tmp_path, {"fit": Trap()})  # with a checksum that is right
    (tmp_path / PREVIOUS).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DamagedCheckpoint):
        load_newest(tmp_path)
    assert not (tmp_path / "sprung").exists()


EMPTY = {"name": "states", "shape": [4], "file": None, "checksum": "", "content": {}}


@pytest.mark.parametrize("crafted", [{}, {"parts": 3}, {"parts": [{"name": "states"}]}, {"parts": [EMPTY]}], ids=str)
def test_what_is_no_checkpoint_though_its_checksum_is_right(tmp_path, crafted):
    write(tmp_path / CHECKPOINT, crafted)
    with pytest.raises(DamagedCheckpoint, match="restart=true"):
        load_newest(tmp_path)


def test_what_cannot_be_read_at_the_moment_is_not_damaged(tmp_path, monkeypatch):
    save(tmp_path, content(1))
    save(tmp_path, content(2))
    with monkeypatch.context() as patched:
        patched.setattr(torch, "load", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            load_newest(tmp_path)
    assert equal(load_newest(tmp_path).content, content(2))


def test_too_few_rows_are_an_error():
    part = checkpoint.Part("states", (4, 3), None, "", {"states": rows(0, 4)})
    with pytest.raises(ValueError, match="states: 4 rows, not the 5"):
        copy_rows([part], "states", torch.zeros(3, 3, dtype=torch.uint8), 2)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    save(tmp_path, content(1))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(DiskFull, match="No space"):
        save(tmp_path, content(2))
    assert equal(load_newest(tmp_path).content, content(1))
    assert [p.name for p in tmp_path.iterdir()] == [CHECKPOINT]


def test_a_damaged_one_does_not_become_the_previous_one(tmp_path):
    save(tmp_path, content(1))
    save(tmp_path, content(2))
    (tmp_path / CHECKPOINT).write_bytes(b"damaged")
    saved = load_newest(tmp_path)
    reinstate(saved)
    save(tmp_path, content(3))
    (tmp_path / CHECKPOINT).write_bytes(b"damaged")
    assert equal(load_newest(tmp_path).content, content(1))
    assert (tmp_path / DAMAGED).read_bytes() == b"damaged"


def rows(first, n):
    return torch.arange(first, first + n)[:, None].expand(n, 3).to(torch.uint8).contiguous()


def test_rows_of_many_parts_are_read_from_anywhere(tmp_path, monkeypatch):
    """Slices are written alone: torch by itself would write everything they are slices of."""
    everything = rows(0, 20)
    for held in (0, 1 << 20):
        monkeypatch.setattr(checkpoint, "HELD_BYTES", held)
        parts = [{"test_states": rows(100, 4)}, *({"states": part} for part in everything.split(6))]
        save(tmp_path, content(), parts)
        assert len(list(tmp_path.glob(PARTS))) == 5  # of this one, then of the previous one
        saved = load_newest(tmp_path)
        assert shape_of(saved.parts, "states") == (20, 3)
        assert shape_of(saved.parts, "test_states") == (4, 3)
        assert shape_of(saved.parts, "others") == ()
        for first, n in ((0, 20), (0, 3), (5, 2), (7, 12), (19, 1), (3, 0)):
            out = torch.zeros(n, 3, dtype=torch.uint8)
            copy_rows(saved.parts, "states", out, first)
            assert torch.equal(out, everything[first : first + n])


def test_files_of_parts_go_with_their_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "HELD_BYTES", 0)
    files = []
    for value in range(4):
        save(tmp_path, content(value), [{"states": rows(value, 5)}, {"states": rows(value + 5, 5)}])
        files.append(set(tmp_path.glob(PARTS)))
    assert [len(found) for found in files] == [2, 4, 4, 4]  # of the newest and of the previous one
    assert not files[0] & files[2]


def test_a_damaged_part_makes_its_checkpoint_damaged(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(checkpoint, "HELD_BYTES", 0)
    for value in (1, 2):
        before = set(tmp_path.glob(PARTS))
        save(tmp_path, content(value), [{"states": rows(value, 5)}, {"states": rows(value, 5)}])
    new = sorted(set(tmp_path.glob(PARTS)) - before)
    good = new[0].read_bytes()
    old = next(iter(before)).read_bytes()  # whole, and of another checkpoint
    for bad in (good[:-70] + b"x" + good[-69:], good[:50], old, None):
        new[0].unlink(missing_ok=True)
        if bad is not None:
            new[0].write_bytes(bad)
        assert equal(load_newest(tmp_path).content, content(1))
    new[0].write_bytes(good)
    assert equal(load_newest(tmp_path).content, content(2))


@contextmanager
def small_files():
    """No file may have more than 20 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_for_a_part(tmp_path, monkeypatch):
    """The limit is one that the system sets: the write itself fails."""
    monkeypatch.setattr(checkpoint, "HELD_BYTES", 0)
    save(tmp_path, content(1), [{"states": rows(0, 5)}])
    before = sorted(p.name for p in tmp_path.iterdir())
    with small_files(), pytest.raises(DiskFull, match="File too large"):
        save(tmp_path, content(2), [{"states": rows(0, 5)}, {"states": rows(0, 50_000)}])
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert equal(load_newest(tmp_path).content, content(1))


def test_no_room_for_the_list_of_parts(tmp_path, monkeypatch):
    """Parts do not pile up, however often it is tried."""
    monkeypatch.setattr(checkpoint, "HELD_BYTES", 0)
    save(tmp_path, content(1), [{"states": rows(0, 5)}])
    before = sorted(p.name for p in tmp_path.iterdir())
    with small_files():
        for _ in range(2):
            with pytest.raises(DiskFull):
                save(tmp_path, {"fit": torch.zeros(20_000)}, [{"states": rows(0, 5)}])
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_parts_that_nobody_lists_go_when_a_run_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "HELD_BYTES", 0)
    for value in (1, 2):
        save(tmp_path, content(value), [{"states": rows(value, 5)}])
    listed = set(tmp_path.glob(PARTS))
    (tmp_path / PARTS.replace("*", "0123")).write_bytes(b"of a checkpoint that was never finished")
    reinstate(load_newest(tmp_path))
    assert set(tmp_path.glob(PARTS)) == listed
