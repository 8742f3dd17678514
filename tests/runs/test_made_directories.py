"""A mistake leaves no directory behind that was not there before."""

from pathlib import Path

import pytest


@pytest.fixture
def call(command):
    return command.of("denoise")


def test_of_a_mistake_nothing_is_left(call):
    for options in (["image=none.png"], ["image=none.png", "hydra.run.dir=a/b"], ["epochs=0", "noise=1"], []):
        call.refused(*options)
    assert list(Path().iterdir()) == []


def test_what_was_there_stays(call):
    Path("outputs").mkdir()
    Path("mine/empty").mkdir(parents=True)
    call.refused("image=none.png")
    call.refused("image=none.png", "hydra.run.dir=mine/empty")
    call.refused("image=none.png", "hydra.run.dir=mine/new/one")
    assert sorted(map(str, Path().rglob("*"))) == ["mine", "mine/empty", "outputs"]


def test_a_sweep_removes_what_its_failed_jobs_have_not_used(call):
    call.refused("-m", "image=none.png", "seed=0,1")
    assert [path.name for path in Path().rglob("*") if path.is_file()] == ["multirun.yaml"]
    assert [path for path in Path("outputs/denoise").glob("*/*") if path.is_dir()] == []
