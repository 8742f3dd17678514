"""Groups compose: what is given wins, and what is left open is filled in, for every data set and experiment."""

import json
import logging
from dataclasses import fields
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import yaml
from composing import checked, composed

from tvae.config.checks import flat
from tvae.config.recipe import complete, tell_choices
from tvae.config.schema import conf_dir
from tvae.data.named import camera
from tvae.data.sets import image
from tvae.errors import UserError
from tvae.io.image_file import read_image, write_image
from tvae.model.vae import ModelConfig
from tvae.runs.files import LOG

CONF = Path(conf_dir())
GROUPS = ("model", "ea", "lr", "restoration")
CHOICES = {group: sorted(file.stem for file in (CONF / group).glob("*.yaml")) for group in GROUPS}
DATASETS = sorted(file.stem for file in (CONF / "dataset").glob("*.yaml"))
EXPERIMENTS = sorted(file.stem for file in (CONF / "experiment").glob("*.yaml"))
PINNED = json.loads(Path(__file__).with_name("completed.json").read_text())


@pytest.fixture(autouse=True)
def _every_picture_is_camera(monkeypatch):
    """The others are not on every machine."""
    monkeypatch.setattr(image, "read_named", lambda name, folder: camera())


def completed(*words):
    config = checked(*words)
    return flat(complete(config, config.dataset.open(config)))


@cache
def given_by(file):
    """Every value that a YAML file of `conf` sets, with those of the files of its folder that it extends."""
    content = yaml.safe_load((CONF / file).with_suffix(".yaml").read_text())
    values = {}
    for default in content.pop("defaults", []):
        if isinstance(default, str) and default != "_self_" and "schema" not in default:
            own = default.partition("@")[0].lstrip("/")
            inside = given_by(own if "/" in own else str(Path(file).with_name(own)))
            values |= {f"{Path(own).parent}.{name}" if "/" in own else name: v for name, v in inside.items()}
    return values | flat(content)


@pytest.mark.parametrize("words", PINNED)
def test_recipe_chooses_as_it_did_before_groups_composed(words):
    """Recorded when data sets set options of other groups themselves."""
    found = completed(*words.split())
    assert {name: found[name] for name in PINNED[words]} == PINNED[words]


def test_every_experiment_and_data_set_is_pinned():
    named = {word.partition("=")[2] for words in PINNED for word in words.split()[:1]}
    assert named == {*EXPERIMENTS, *DATASETS} - {"file"}


def covering(allowed):
    """Rows of one choice of each group, few of them, in which every pair of choices that is `allowed` occurs."""
    every = [row for row in product(*([f"{group}={c}" for c in CHOICES[group]] for group in GROUPS)) if allowed(row)]
    left, rows = {pair for row in every for pair in combinations(row, 2)}, []
    while left:
        rows.append(max(every, key=lambda row: len(left & {*combinations(row, 2)})))
        left -= {*combinations(rows[-1], 2)}
    return rows


def needs(dataset, words):
    """What is wrong with these choices of groups for a data set; None: nothing."""
    is_image = dataset not in ("array", "bars", "bars_correlated", "natural", "vanhateren")
    if "restoration=nonlocal" in words and not is_image:
        return "is not an image"
    is_linear = "model=deep" not in words if is_image else {"model=slab", "model=linear"} & {*words}
    return "needs a linear decoder" if "ea=residual" in words and not is_linear else None


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_value_of_every_pair_of_groups_survives(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(image, "read_named", lambda name, folder: small)
    write_image(tmp_path / "a.png", np.random.default_rng(0).integers(0, 255, (30, 30), dtype=np.uint8))
    small = read_image(tmp_path / "a.png")
    about = [f"dataset={dataset}", "model.n_latents=12", *([f"image={tmp_path}/a.png"] * (dataset == "file"))]
    plain = checked(*about)
    opened = plain.dataset.open(plain)
    for row in covering(lambda row: needs(dataset, row) is None):
        found = flat(complete(checked(*about, *row), opened))
        for group, _, choice in (word.partition("=") for word in (*row, f"dataset={dataset}")):
            expected = {f"{group}.{name}": v for name, v in given_by(f"{group}/{choice}").items() if v is not None}
            assert {name: found[name] for name in expected} == expected, row


@pytest.mark.parametrize("dataset", ["bars", "camera"])
def test_groups_that_do_not_go_together_are_refused(dataset):
    plain = checked(f"dataset={dataset}")
    opened = plain.dataset.open(plain)
    pairs = [
        (f"{one}={a}", f"{other}={b}")
        for one, other in combinations(GROUPS, 2)
        for a, b in product(CHOICES[one], CHOICES[other])
    ]
    refused = [pair for pair in pairs if needs(dataset, pair)]
    assert refused
    for pair in refused:
        with pytest.raises(UserError, match=needs(dataset, pair)):
            complete(checked(f"dataset={dataset}", *pair), opened)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_values_of_an_experiment_survive_but_for_groups_that_were_chosen(experiment):
    own = {name: v for name, v in given_by(f"experiment/{experiment}").items() if not name.startswith("hydra.")}
    plain = flat(composed(f"experiment={experiment}"))
    assert {name: plain[name] for name in own} == own
    chosen = {"model": "linear", "ea": "sparse", "lr": "decay", "restoration": "posterior_mean"}
    found = flat(checked(f"experiment={experiment}", *(f"{group}={file}" for group, file in chosen.items())))
    given = {
        f"{group}.{name}": v for group, choice in chosen.items() for name, v in given_by(f"{group}/{choice}").items()
    }
    assert {name: found[name] for name in given} == given
    resolved = flat(checked(f"experiment={experiment}"))
    assert {name: found[name] for name in found if name not in given} == {
        name: value for name, value in resolved.items() if name not in given
    }


def test_the_experiment_of_the_paper_with_other_groups():
    found = completed("experiment=house_50", "model=linear", "ea=paper", "lr=constant")
    assert (found["model.hidden"], found["model.solver"], found["model.n_latents"]) == ([], "exact", 64)
    assert (found["ea.selection"], found["ea.n_parents"], found["ea.n_generations"]) == ("fitness", 10, 4)
    assert (found["lr.kind"], found["lr.max"], found["noise"]) == ("constant", 0.01, 50)


def test_an_option_of_the_command_line_wins_over_its_group():
    assert completed("dataset=bars", "ea.n_parents=3", "ea=posterior")["ea.n_parents"] == 3


@pytest.mark.parametrize("group", GROUPS)
def test_default_leaves_everything_open(group):
    """`default` also resets what an experiment has set."""
    found = composed("experiment=house_50", f"{group}=default")
    assert found[group] == composed("dataset=house")[group]


def test_data_sets_set_nothing_else():
    plain = flat(composed("dataset=bars"))
    for dataset in DATASETS:
        other = flat(composed(f"dataset={dataset}"))
        assert {n: v for n, v in other.items() if not n.startswith("dataset.")} == {
            n: v for n, v in plain.items() if not n.startswith("dataset.")
        }


def test_one_line_says_what_was_chosen(caplog):
    given = checked("dataset=bars", "ea.n_parents=3", "epochs=7")
    with caplog.at_level(logging.INFO, "tvae"):
        tell_choices(given, complete(given, None))
    (line,) = caplog.messages
    assert line.startswith("chosen for bars: ")
    assert {"model.n_latents=8", "model.hidden=[8]", "ea.selection=fitness", "lr.max=0.01", "model.impute=true"} <= {
        *line.removeprefix("chosen for bars: ").split(", ")
    }
    assert "n_parents" not in line
    assert "epochs=" not in line


def test_nothing_is_chosen_twice(caplog):
    given = checked("dataset=bars")
    config = complete(given, None)
    with caplog.at_level(logging.INFO, "tvae"):
        tell_choices(config, complete(config, None))
    assert complete(config, None) == config
    assert not caplog.messages


def test_a_run_says_what_was_chosen(command):
    small = ["dataset=bars", "dataset.n_points=20", "epochs=1", "hydra.run.dir=run"]
    out = command.ok("train", *small, "ea=posterior")
    (line,) = [line for line in out.splitlines() if line.startswith("chosen for bars: ")]
    assert "lr.max=0.01" in line
    assert "ea." not in line
    assert line in Path("run", LOG).read_text()


def test_open_options_are_null_and_have_a_value_where_no_recipe_is():
    model = composed("dataset=bars").model
    of_model = {f.name: f.default for f in fields(ModelConfig) if f.metadata.get("is_open")}
    assert of_model == {
        "prior": "bernoulli", "likelihood": "gaussian", "slab": 0, "sigma2": 0.01, "solver": "adam", "impute": True,
        "fixed_sigma2": False, "capped_sigma2": False,
    }  # fmt: skip
    assert all(model[name] is None for name in of_model)
