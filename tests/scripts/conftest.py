"""Fixtures for tests of scripts."""

import sys
import types

import numpy as np
import pytest

from scripts.paper import record
from tvae.io.image_file import write_image


@pytest.fixture(autouse=True)
def recorded_folder(tmp_path, monkeypatch):
    """A folder in place of docs/paper, which does not exist until a test makes it."""
    monkeypatch.setattr(record, "RECORDED", tmp_path / "recorded")
    return tmp_path / "recorded"


@pytest.fixture
def folder(tmp_path):
    """Three small clean pictures of the set."""
    rows, columns = np.mgrid[:24, :24]
    (tmp_path / "pictures" / "clean").mkdir(parents=True)
    for place, name in enumerate(("house", "coffee", "page")):
        pixels = 60 + 3 * columns + 40 * ((rows // 6 + columns // 8 + place) % 2)
        write_image(tmp_path / "pictures" / "clean" / f"{name}.png", pixels.astype(np.uint8))
    return tmp_path / "pictures"


@pytest.fixture
def bm3d(monkeypatch):
    """A function of picture and level in place of the package, which counts its calls."""
    calls = []

    def run(noisy, sigma):
        calls.append(sigma)
        return noisy.mean() + (noisy - noisy.mean()) / (1 + sigma / 100)

    run.calls = calls
    monkeypatch.setitem(sys.modules, "bm3d", types.SimpleNamespace(bm3d=run))
    return run
