"""The space of a search: its own options on the command line, and the file of the space."""

import pytest

optuna = pytest.importorskip("optuna", reason="the search's extra is not installed: pip install '.[search]'")

from tvae.errors import UserError  # noqa: E402
from tvae.search.__main__ import take_options  # noqa: E402
from tvae.search.space import distribution  # noqa: E402

SMALL = ["dataset=bars", "dataset.n_points=60", "states.n_states=16", "batch_size=16", "epochs=3", "restore_every=1"]


def test_own_options_are_taken_out():
    options, others = take_options(["experiment=bars", "space=a.yaml", "n_trials=3", "lr.max=0.1", "-x"])
    assert (options.space, options.n_trials, options.objective) == ("a.yaml", 3, "elbo")
    assert others == ["experiment=bars", "lr.max=0.1", "-x"]


def test_all_mistakes_in_own_options_are_named():
    with pytest.raises(UserError) as caught:
        take_options(["n_trials=none", "objective=beauty"])
    assert [line.split(":")[0] for line in caught.value.problems] == ["space", "n_trials=none", "objective=beauty"]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"low": 1, "high": 5}, optuna.distributions.IntDistribution(1, 5)),
        ({"low": 64, "high": 512, "step": 64}, optuna.distributions.IntDistribution(64, 512, step=64)),
        ({"low": 0.1, "high": 5}, optuna.distributions.FloatDistribution(0.1, 5)),
        ({"low": 1e-3, "high": 0.1, "log": True}, optuna.distributions.FloatDistribution(1e-3, 0.1, log=True)),
        ({"choices": ["a", None, [1, 2]]}, optuna.distributions.CategoricalDistribution(["a", "null", "[1,2]"])),
    ],
)
def test_distributions(given, kind):
    assert distribution(given) == kind


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must map options to ranges or choices"),
        ("[1, 2]", "must map options to ranges or choices"),
        ("a: [", "not readable as YAML"),
        ("lr.mxa: {low: 1, high: 2}", "lr.mxa: no such option; did you mean lr.max?"),
        ("lr.max: 3", "lr.max: must be {low: ..., high: ...} or {choices: [...]}"),
        ("lr.max: {low: 2, high: 1}", "lr.max: low must be below high"),
        ("lr.max: {low: 0, high: 1, log: true}", "lr.max: low must be below high, above 0 with log"),
        ("lr.max: {low: a, high: 1}", "lr.max: low, high and step must be numbers"),
        ("lr.max: {low: 1}", "lr.max: must have low and high"),
        ("lr.max: {low: 1, high: 2, lgo: true}", "lr.max: must have low and high, and may have log, step; got"),
        ("lr.max: {choices: []}", "lr.max: choices must be a list"),
        ("lr.max: {low: -1.0, high: 1.0}", "lr.max: lr.max=-1.0: must be above 0"),
        ("ea.selection: {choices: [luck]}", "ea.selection: ea.selection=luck: must be one of"),
        ("dataset.size: {low: 3, high: 5}", "dataset.size: changes the data"),
        ("lr.max: {low: 0.1, high: 0.2, step: 0.5}", "lr.max: high=0.2 cannot be reached from low=0.1 in steps of 0.5"),
        ("ea.n_parents: {low: 2, high: 7, step: 2}", "ea.n_parents: high=7 cannot be reached from low=2 in steps of 2"),
        ("restart: {choices: [true]}", "restart: is not for a space"),
        ("init_from: {choices: [here]}", "init_from: is not for a space"),
        ("model: {choices: [deep, linear]}", "model: is a group of options; name one of them"),
        ("ea.n_parents: {low: 2.5, high: 6.5}", "ea.n_parents: Value '2.5' of type 'float'"),
    ],
)
def test_mistakes_in_a_space(command, tmp_path, content, message):
    (tmp_path / "space.yaml").write_text(content)
    out = command.refused("search", *SMALL, "space=space.yaml")
    assert message in out
    assert len(out.strip().splitlines()) == 1
    assert not list(tmp_path.glob("outputs/**/study.db"))


def test_no_such_space(command):
    out = command.refused("search", *SMALL, "space=nowhere")
    assert "space=nowhere: no such file, and not one of denoise" in out
