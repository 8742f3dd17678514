"""Every option: what it means, whether it changes the result, and what a run is called by those that do."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from composing import composed

from tvae.config.schema import FREE, Config
from tvae.data.sets import KINDS
from tvae.runs.sweeps import run_name


def options(config, path=""):
    """Every field of a configuration by its dotted name."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from options(value, f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", field


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_says_what_it_means(kind):
    found = dict(options(Config(dataset=kind())))
    assert {"epochs", "dataset.name", "model.n_latents", "states.n_states", "ea.n_parents", "lr.max"} <= found.keys()
    for name, field in found.items():
        assert field.metadata.get("meaning"), name


def test_options_that_do_not_change_the_result():
    assert sorted(FREE) == [
        "checkpoint_seconds",
        "data_dir",
        "device",
        "output",
        "overwrite",
        "restart",
        "threads",
        "working_dir",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_option_says_itself_whether_it_changes_the_result(kind):
    """`FREE` is what the flags say, and only top level options are free: others cannot be told from their names."""
    flags = {name: field.metadata["changes_result"] for name, field in options(Config(dataset=kind()))}
    assert {name for name, changes_result in flags.items() if not changes_result} == set(FREE)


FREELY = ["data_dir=.", "device=cpu", "threads=1", "checkpoint_seconds=0", "restart=true"]
FREELY += ["output=a.png", "overwrite=true", "working_dir=."]


def test_the_run_directory_is_named_by_what_changes_the_result():
    assert sorted(override.partition("=")[0] for override in FREELY) == sorted(FREE)
    hydra = composed(*FREELY, "seed=3", "dataset=bars", return_hydra_config=True).hydra
    assert sorted(hydra.job.config.override_dirname.exclude_keys) == sorted(FREE)
    assert hydra.job.override_dirname == "dataset=bars,seed=3"
    assert Path(hydra.run.dir).name == hydra.sweep.subdir == "dataset=bars,seed=3"
    assert Path(composed(*FREELY, return_hydra_config=True).hydra.run.dir).name == "default"


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ("", "default"),
        ("dataset=bars,seed=0", "dataset=bars,seed=0"),
        ("model.hidden=[8,8]", None),
        ("x=../../etc", None),
        ("图" * 140, None),
    ],
)
def test_a_run_name_is_one_path_component(overrides, name):
    found = run_name(overrides)
    assert found == (name or found)
    assert Path(found).name == found
    assert run_name(overrides + ",y=1") != found


def test_long_run_names_are_cut_and_stay_different():
    names = {run_name("a=" + "1" * 300 + end) for end in "ab"}
    assert len(names) == 2
    assert max(map(len, names)) < 200
