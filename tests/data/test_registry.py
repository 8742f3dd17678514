"""The data sets there are: each is found by its module, has its YAML files, and says what is wrong with its options."""

from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from composing import checked

from tests.conftest import small_config
from tvae.config.recipe import complete
from tvae.config.schema import conf_dir
from tvae.data import sets
from tvae.data.dataset import NOT_FOR, DataConfig, DatasetConfig
from tvae.data.sets import DATASETS, KINDS
from tvae.data.sets.array import ArrayConfig
from tvae.data.sets.bars import BarsConfig
from tvae.data.sets.image import ImageConfig
from tvae.data.sets.natural import NaturalConfig
from tvae.errors import UserError

FILES = sorted(path.stem for path in Path(conf_dir(), "dataset").glob("*.yaml"))


def test_every_module_is_a_kind():
    assert set(KINDS) == {ArrayConfig, BarsConfig, ImageConfig, NaturalConfig}
    modules = {path.stem for path in Path(sets.__path__[0]).glob("*.py")} - {"__init__"}
    assert {kind.__module__.rpartition(".")[2] for kind in KINDS} == modules


def test_every_name_belongs_to_one_kind():
    names = [name for kind in KINDS for name in kind.names]
    assert len(names) == len(set(names))
    assert {name: kind for kind in KINDS for name in kind.names} == DATASETS
    assert len({kind.schema for kind in KINDS}) == len(KINDS)


@cache
def config_of(file):
    return checked(f"dataset={file}", *(["image=picture.png"] if file == "file" else []))


@pytest.mark.parametrize("file", FILES)
def test_every_file_composes_to_a_known_kind(file):
    config = config_of(file)
    assert type(config.dataset) is DATASETS[config.dataset.name]
    assert config.dataset.problems(config) == []


def test_every_name_has_a_file():
    assert {config_of(file).dataset.name for file in FILES} == set(DATASETS)


@pytest.mark.parametrize("name", DATASETS)
def test_options_know_their_own_name(name):
    kind = DATASETS[name]
    choices = {f.name: f.metadata.get("choices") for f in fields(kind)}
    assert choices["name"] == kind.names


def test_options_are_only_for_data_sets_that_there_are():
    named = {f.metadata["only_for"] for f in fields(DataConfig) if "only_for" in f.metadata}
    assert named == set(NOT_FOR) <= {kind.schema for kind in KINDS}


GIVEN = {"n_patches": 7, "noise": 5.0, "missing": 0.5, "image": "a.png", "clean": "b.png", "mask": "c.png"}


@pytest.mark.parametrize("kind", KINDS)
def test_options_that_mean_nothing_to_a_data_set_get_a_line_each(kind):
    name = kind.names[0]
    config = small_config(dataset=kind(name=name), **GIVEN)
    lines = {option: f"{option}={value}: dataset={name} is not an image" for option, value in GIVEN.items()}
    lines["n_patches"] = f"n_patches=7: is for patches of natural images, not for dataset={name}"
    taken = {"image": {*GIVEN} - {"n_patches"}, "natural": {"n_patches"}}.get(kind.schema, set())
    assert set(config.dataset.problems(config)) == {lines[option] for option in GIVEN if option not in taken}


@pytest.mark.parametrize(
    ("dataset", "given", "lines"),
    [
        (BarsConfig(), {}, []),
        (BarsConfig(size=3, mean_bars=6), {}, ["dataset.mean_bars=6: must be below the number of bars, 6"]),
        (
            BarsConfig(mean_bars=9.0),
            {"noise": 1.0, "n_patches": 2},
            [
                "noise=1.0: dataset=bars is not an image",
                "n_patches=2: is for patches of natural images, not for dataset=bars",
                "dataset.mean_bars=9.0: must be below the number of bars, 8",
            ],
        ),
        (ImageConfig(name="file"), {}, ["image: no value was given; dataset=file needs it"]),
        (ImageConfig(name="file"), {"image": "a.png", "clean": "b.png"}, []),
        (
            ImageConfig(name="house", patch_size=4, stride=5),
            {"clean": "b.png"},
            [
                "clean=b.png: goes with image=FILE; house itself is clean",
                "dataset.stride=5: must be at most dataset.patch_size=4",
            ],
        ),
        (ImageConfig(name="house", stride=5), {}, []),  # the patch size is open
        (ArrayConfig(), {}, []),
        (NaturalConfig(), {"n_patches": 3}, []),
    ],
)
def test_problems_of_options_that_do_not_go_together(dataset, given, lines):
    assert dataset.problems(small_config(dataset=dataset, **given)) == lines


def test_a_data_set_s_problems_are_told_with_the_others():
    with pytest.raises(UserError) as found:
        checked("dataset=bars", "dataset.mean_bars=8", "noise=3", "states.n_states=64", "ea.n_parents=100")
    assert len(found.value.problems) == 3
    config = small_config(dataset=BarsConfig(mean_bars=8.0), n_patches=3)
    with pytest.raises(UserError) as found:
        complete(config, None)
    assert len(found.value.problems) == 2


def test_what_a_data_set_has_to_bring():
    """A class without its own `complete` and `make` is no data set; `open` reads nothing by default."""
    bare = DatasetConfig()
    assert bare.open(small_config()) is None
    for missing in (bare.complete, bare.make):
        with pytest.raises(NotImplementedError):
            missing(small_config(), None)
