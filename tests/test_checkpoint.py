import logging
import os
import pickle
import zipfile

import pytest
import torch

from tvae import checkpoint
from tvae.checkpoint import DamagedCheckpoint


def content(value=1.0):
    return {"fit": {"weights": torch.full((50,), value), "epoch": 3, "units": [0.0, 1.0]}, "history": [{"elbo": -1.5}]}


def equal(a, b):
    return torch.equal(a["fit"]["weights"], b["fit"]["weights"]) and a["history"] == b["history"]


def test_there_and_back(tmp_path):
    checkpoint.save(tmp_path, content())
    assert equal(checkpoint.load_newest(tmp_path), content())
    assert checkpoint.load_newest(tmp_path / "elsewhere") is None


def test_other_programs_can_read_it(tmp_path):
    checkpoint.save(tmp_path, content())
    assert equal(torch.load(tmp_path / checkpoint.NAME, weights_only=True), content())
    assert zipfile.ZipFile(tmp_path / checkpoint.NAME).testzip() is None


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path):
    checkpoint.save(tmp_path, content())
    path = tmp_path / checkpoint.NAME
    good = path.read_bytes()
    unnoticed = []
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        try:
            loaded = checkpoint.read(path)
        except DamagedCheckpoint:
            continue
        if not equal(loaded, content()):
            unnoticed.append(place)
    assert unnoticed == []


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_cut_file_is_refused(tmp_path, length):
    checkpoint.save(tmp_path, content())
    path = tmp_path / checkpoint.NAME
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedCheckpoint, match=str(path)):
        checkpoint.read(path)


def test_the_previous_one_stands_in_for_a_damaged_one(tmp_path, caplog):
    checkpoint.save(tmp_path, content(1))
    checkpoint.save(tmp_path, content(2))
    path = tmp_path / checkpoint.NAME
    path.write_bytes(path.read_bytes()[:-200])
    logging.getLogger("tvae").propagate = True
    with caplog.at_level("WARNING"):
        assert equal(checkpoint.load_newest(tmp_path), content(1))
    assert str(path) in caplog.text
    (tmp_path / checkpoint.PREVIOUS).write_bytes(b"")
    with pytest.raises(DamagedCheckpoint, match="restart=true"):
        checkpoint.load_newest(tmp_path)


def test_pickled_code_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    checkpoint.save(tmp_path, {"fit": Trap()})  # with a checksum that is right
    (tmp_path / checkpoint.PREVIOUS).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DamagedCheckpoint):
        checkpoint.load_newest(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, content(1))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, content(2))
    assert equal(checkpoint.load_newest(tmp_path), content(1))
    assert [p.name for p in tmp_path.iterdir()] == [checkpoint.NAME]
