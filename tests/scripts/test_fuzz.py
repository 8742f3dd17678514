"""The fuzzer for some seconds; and that it finds what it looks for."""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.fuzz import fuzzer
from scripts.fuzz.attempts import Attempt
from scripts.fuzz.fuzzer import Fuzzer, judge
from scripts.fuzz.world import World


def test_some_attempts(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fuzz.py"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    found = Fuzzer(tmp_path / "fuzz", first_seed=0)
    found.run(seconds=15, n_most=30)
    assert found.wrong == []
    assert sum(found.tried.values()) > 0


@dataclass(frozen=True)
class Fake(Attempt):
    """An attempt that ends as told."""

    end: object = 0
    made: tuple[str, ...] = ()

    def run(self, world):
        if self.about == "hangs":
            time.sleep(10)
        while self.about == "computes for ever":
            pass
        if self.about == "overwrites":
            Path(world.folder, "mine.txt").write_text("theirs")
        if isinstance(self.end, Exception):
            raise self.end
        print(self.about)
        return self.end

    def compare(self, world):
        return list(self.made)


@pytest.mark.parametrize(
    ("attempt", "found"),
    [
        (Fake("denoise", [], about="one line", end=2), []),
        (Fake("denoise", [], end=KeyError("x")), ["KeyError"]),
        (Fake("denoise", [], about="Traceback (most recent call last):", end=1), ["Traceback"]),
        (Fake("denoise", [], about="many\n" * 100, end=2), ["tells of a mistake in 101 lines"]),
        (Fake("denoise", [], about="hangs"), ["hangs: takes more than 0.5 s"]),
        (Fake("denoise", [], about="computes for ever"), ["hangs: takes more than 0.5 s"]),
        (Fake("denoise", [], about="overwrites"), ["has changed mine.txt"]),
        (Fake("denoise", [], end=135), ["ends with 135"]),
        (Fake("denoise", [], made=("another result",)), ["another result"]),
    ],
)
def test_what_is_found(attempt, found, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzer, "HANGS_AFTER", 0.5)
    (tmp_path / "mine.txt").write_text("mine")
    problems = judge(attempt, World(tmp_path))
    assert len(problems) == len(found), problems
    assert all(text in problem for text, problem in zip(found, problems, strict=True))
