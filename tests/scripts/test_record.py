"""Keeping runs with the paper's parameters, from made-up ones."""

import csv

import numpy as np
import pytest
from omegaconf import OmegaConf

from scripts.paper import record
from scripts.paper.record import recorded_runs
from tests.composing import checked
from tests.made_up_runs import make_run
from tvae.io.image_file import write_image

NOISE_25 = "table1/paper/noise=25,seed=0"
CELLS = {
    "table1/paper/noise=15.0,seed=0": "table1_noise_15_seed_0",
    "table2/paper/noise=50.0,seed=0": "table2_noise_50_seed_0",
    "inpainting/paper/dataset=house,missing=0.5,seed=0": "inpainting_house_0.5_seed_0",
}


def make_paper_run(path, psnr, status="finished", **options):
    """Write a run of the experiment of its table, with other values of these options by their dotted names."""
    make_run(path, psnr, epochs=500, status=status)
    words = [word for word in path.name.replace("seed=", "corruption_seed=").split(",") if "house" not in word]
    config = OmegaConf.structured(checked(f"experiment={path.parts[-3]}", *words))
    config.dataset.train_stride, config.keep_known = 1, config.noise is None  # which a run fills in
    for name, value in options.items():
        OmegaConf.update(config, name, value)
    OmegaConf.save(config, path / "config.yaml")
    with open(path / "history.csv", "w") as file:
        writer = csv.writer(file)
        writer.writerows([["epoch", "elbo", "psnr"], [1, -3, ""], [10, -2, psnr - 1], [20, -1, psnr]])
    for name in ("restored.png", "figures/training.png"):
        (path / name).parent.mkdir(exist_ok=True)
        write_image(path / name, np.full((8, 8), 99, dtype=np.uint8))


@pytest.fixture
def outputs(tmp_path):
    for place, name in enumerate(CELLS):
        make_paper_run(tmp_path / "outputs" / name, 30.0 + place)
    return tmp_path / "outputs"


def test_every_finished_run_is_kept_under_its_name(outputs, recorded_folder):
    make_paper_run(outputs / "table1" / "paper" / "noise=25.0,seed=0", 32.0, status="interrupted")
    make_paper_run(outputs / "inpainting" / "paper" / "dataset=castle,missing=0.5,seed=0", 33.0)  # not in the paper
    record.main([str(outputs)])
    assert {run.folder.name: run.metrics["psnr"] for run in recorded_runs()} == {
        name: 30.0 + place for place, name in enumerate(CELLS.values())
    }
    kept = recorded_folder / "table1_noise_15_seed_0"
    assert sorted(path.name for path in kept.iterdir()) == [
        "history.csv", "metrics.json", "restored.png", "training.png",
    ]  # fmt: skip
    run = outputs / "table1" / "paper" / "noise=15.0,seed=0"
    assert (kept / "history.csv").read_bytes() == (run / "history.csv").read_bytes()
    assert (recorded_folder / record.CURVES).is_file()


def test_what_is_recorded_is_not_replaced(outputs, recorded_folder, capsys):
    record.main([str(outputs)])
    again = outputs / "table1" / "paper" / "noise=15.0,seed=0" / "metrics.json"
    again.write_text(again.read_text().replace("30.0", "34.0"))
    capsys.readouterr()
    record.main([str(outputs)])
    assert "table1" not in capsys.readouterr().out
    assert recorded_runs()[1].metrics["psnr"] == 30.0


@pytest.mark.parametrize(
    ("place", "options", "variant"),
    [
        (NOISE_25, {}, None),
        (NOISE_25, {"threads": 7, "restore_every": 3}, None),
        (NOISE_25, {"model.sigma2": None}, "variance"),
        (NOISE_25, {"ea.selection": "fitness", "model.sigma2": None}, "fitness"),
        ("inpainting/paper/dataset=house,missing=0.5,seed=0", {"model.counts_imputed": False}, "observed"),
    ],
)
def test_variants_of_an_experiment_are_told_apart(tmp_path, place, options, variant):
    make_paper_run(tmp_path / "outputs" / place, 32.0, **options)
    record.main([str(tmp_path / "outputs")])
    (run,) = recorded_runs()
    assert place == f"{run.table}/paper/{run.column},seed={run.seed}"
    assert run.variant == variant


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epochs": 20}, "epochs=20: not the paper's"),
        ({"model.sigma2": 5.0}, "model.sigma2=5.0: not"),
        ({"ea.selection": "fitness"}, "ea.selection=fitness: not"),
        ({"lr.max": 0.02, "seed": 7}, "lr.max=0.02, seed=7: not"),
        ({"dataset.train_stride": 4}, "dataset.train_stride=4: not"),
        ({"model.pi": 0.5}, "model.pi=0.5: not"),
    ],
)
def test_other_parameters_are_left_out_and_named(tmp_path, options, reason, capsys):
    run = tmp_path / "outputs" / NOISE_25
    make_paper_run(run, 32.0, **options)
    record.main([str(tmp_path / "outputs")])
    assert recorded_runs() == []
    assert f"left out: {run}: {reason}" in capsys.readouterr().out


def test_curves_show_mean_and_ends_over_seeds_beside_the_published_value(outputs):
    make_paper_run(outputs / "table2/paper/noise=50.0,seed=2", 29.0)
    record.main([str(outputs)])
    figure = record.draw_curves(recorded_runs())
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    assert list(panels) == list(record.CELLS.values())
    (published, run, *others) = panels["Table 2, sigma=50"].lines
    assert set(published.get_ydata()) == {29.98}
    assert list(run.get_xdata()) == [10, 20]
    assert list(run.get_ydata()) == [29.0, 30.0]
    assert not any(line.get_xdata().size for line in others), "no runs of the variants"
    band, *_ = panels["Table 2, sigma=50"].collections
    assert {28.0, 30.0, 29.0, 31.0} == set(band.get_paths()[0].vertices[:, 1])
    assert not any(line.get_xdata().size for line in panels["Table 1, sigma=25"].lines[1:]), "no run there"


def test_the_table_has_mean_spread_seeds_and_difference(outputs, capsys):
    make_paper_run(outputs / "table2/paper/noise=50.0,seed=2", 29.0)
    make_paper_run(outputs / "table2/paper/noise=50.0,seed=1", 30.0, **{"model.sigma2": None})
    record.main([str(outputs)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| Table 2")]
    assert lines == [
        "| Table 2, sigma=50 | 29.98 | 30.00 ± 1.41 (0, 2) | +0.02 | 0.03 |",
        "| Table 2, sigma=50; sigma2 from the data's variance | 29.98 | 30.00 (1) | +0.02 | 0.03 |",
    ]
