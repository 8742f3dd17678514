"""Every file under conf/ composes, and every mistake gets a clear line of its own."""

from pathlib import Path

import pytest
from composing import checked, composed

from tvae.config.recipe import complete
from tvae.config.schema import conf_dir
from tvae.errors import UserError


def problems(*overrides):
    with pytest.raises(UserError) as found:
        complete(checked("dataset=bars", *overrides), None)
    return found.value.problems


GROUPS = [
    f"{path.parent.name}={path.stem}"
    for path in sorted(Path(conf_dir()).glob("*/*.yaml"))
    if path.parent.name != "hydra"
]


@pytest.mark.parametrize("choice", GROUPS)
def test_every_file_composes_and_passes_the_check(choice):
    checked(choice, *(["image=picture.png"] if choice == "dataset=file" else []))


@pytest.mark.parametrize(("name", "nodes", "tasks"), [("slurm", 1, 1), ("slurm_nodes", 4, 2)])
def test_launchers_of_clusters(name, nodes, tasks):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install '.[slurm]'")
    launcher = composed(f"hydra/launcher={name}", return_hydra_config=True).hydra.launcher
    assert launcher._target_.endswith("SlurmLauncher")
    assert (launcher.nodes, launcher.tasks_per_node) == (nodes, tasks)
    assert launcher.max_num_timeout > 0  # a run that reaches the time limit is queued again


def test_an_experiment_sets_values_and_the_command_line_wins():
    assert checked("experiment=bars").lr.max != checked("dataset=bars").lr.max
    assert checked("experiment=bars", "lr.max=0.5").lr.max == 0.5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["states.n_states=64", "ea.n_parents=100"], "ea.n_parents=100: must be at most states.n_states=64"),
        (["ea.n_children=9"], "ea.n_children=9: must be at most model.n_latents=8"),
        (["ea.n_flips=9"], "ea.n_flips=9: must be at most model.n_latents=8"),
        (["states.n_states=257"], "states.n_states=257: model.n_latents=8 has fewer states than that"),
        (["epochs=0"], "epochs=0: must be at least 1"),
        (["lr.max=-1", "lr=constant"], "lr.max=-1.0: must be above 0"),
        (["lr.min=1", "lr.max=0.1"], "lr.min=1.0: must be at most lr.max=0.1"),
        (["batch_size=0"], "batch_size=0: must be at least 1"),
        (["prune=1"], "prune=1.0: must be below 1"),
        (["model.hidden=[8,0]"], "model.hidden=[8, 0]: must be at least 1"),
        (["model.pi=1.5"], "model.pi=1.5: must be below 1"),
        (["model.activation=sine"], "model.activation=sine: must be one of relu, "),
        (["ea.selection=random"], "ea.selection=random: must be one of fitness, posterior, best, uniform, authors"),
        (["model.solver=exact"], "model.solver=exact: needs a linear decoder"),
        *(
            (
                [*words, "model.counts_imputed=true"],
                "model.counts_imputed=true: needs model.impute=true, model.solver=adam",
            )
            for words in (
                ["model.impute=false"],
                ["model=linear", "model.solver=exact"],
                ["model.likelihood=known_variance", "model.variances=[1]"],
            )
        ),
        (
            ["model=linear", "model.solver=exact", "model.likelihood=known_variance", "model.variances=[1]"],
            "model.solver=exact: needs model.likelihood=gaussian",
        ),
        (["model.variances=[1]"], "model.variances: go with model.likelihood=known_variance, which needs them"),
        (["model.likelihood=known_variance"], "model.variances: go with model.likelihood=known_variance"),
        (["model.likelihood=poisson"], "model.likelihood=poisson: must be one of gaussian, known_variance"),
        (["device=tpu"], "device=tpu: must be one of auto, cpu, cuda, cuda:N, mps"),
        (["device=cuda:99"], "device=cuda:99: this machine has"),
        (["precision=float16"], "precision=float16: must be one of float32, float64"),
        (["dataset.mean_bars=8"], "dataset.mean_bars=8.0: must be below the number of bars, 8"),
        (["init_from=nowhere"], "init_from=nowhere: no checkpoint.pt there"),
        (["+epoch=3"], "epoch: no such option; did you mean epochs?"),
        (["+ea.n_parent=3"], "ea.n_parent: no such option; did you mean ea.n_parents?"),
        (["lr.kind=???"], "lr.kind: no value was given"),
        (["dataset.standardise=${nowhere}"], "dataset.standardise=${nowhere}: Interpolation key 'nowhere' not found"),
        (["seed=${seed}"], "seed=${seed}: Recursive interpolation detected"),
        (["epochs=${effort}"], "epochs=${effort}: While dereferencing interpolation '${effort}': Value 'default'"),
        (["seed=${oc.env:NOWHERE}"], "seed=${oc.env:NOWHERE}: KeyError raised while resolving interpolation"),
        (["model.hidden=[${nowhere}]"], "model.hidden=['${nowhere}']: Interpolation key 'nowhere' not found"),
        (["model.hidden=${ea.n_flips}"], "model.hidden=${ea.n_flips}: does not resolve to a list"),
    ],
)
def test_a_mistake_gets_one_clear_line(overrides, message):
    (problem,) = problems(*overrides)
    assert problem.startswith(message)


def test_interpolations_between_options():
    assert checked("dataset=bars", "model.hidden=[${ea.n_flips}]", "seed=${corruption_seed}").model.hidden == [1]


def test_all_problems_are_listed_at_once():
    assert len(problems("seed=${nowhere}", "lr.max=${nowhere}", "+foo=1")) == 3
    assert len(problems("epochs=0", "batch_size=-1", "ea.n_parents=0", "device=tpu")) == 4
    assert len(problems("+epoch=3", "+foo=1", "epochs=0")) == 3
    assert len(problems("model.n_latents=-1")) == 1
    assert len(problems("model.n_latents=20000", "epochs=0")) == 1
