"""Judging small runs on bars."""

import json
from pathlib import Path

import pytest
import torch

from scripts.paper import bars
from scripts.paper.bars import dataset_of, fields_of_start
from tvae.data.sets.bars import BarsConfig, bar_images, generating_model, match_bars
from tvae.inference.streams import generator
from tvae.runs.initialise import load_model

FIGURES = ("fields", "elbo", "samples", "pairs", "ratios", "truth")


def test_bars_are_found_in_the_generating_model():
    model = generating_model(BarsConfig(size=3))
    torch.testing.assert_close(match_bars(model, 3), torch.ones(6, dtype=torch.float64))
    with torch.no_grad():
        model.decoder.weights[0][2] = bar_images(3)[1]  # the same bar twice, and one of them nowhere
    found = match_bars(model, 3)
    assert (found > 0.99).sum() == 5


def test_the_data_shown_are_those_trained_on():
    config = BarsConfig(n_points=30)
    data = dataset_of(config).source.known_values()
    assert torch.equal(data, generating_model(config).sample(30, generator(0, "bars")))


def test_the_start_that_is_shown_is_the_one_that_was_taken(command):
    options = ["dataset.n_points=60", "states.n_states=16", "n_starts=3", "start_epochs=4", "epochs=1", "lr.max=1e-9",
               "lr.min=1e-9", "hydra.run.dir=run"]  # fmt: skip
    command.ok("train", "dataset=bars", *options)
    shown = fields_of_start(Path("run"))
    assert [epoch for epoch, _ in shown] == [0, 1, 2, 3, 4]
    model = load_model(Path("run"))[0]
    with torch.no_grad():
        z = torch.eye(model.n_latents)
        fields = model.decoder(z) - model.decoder(torch.zeros_like(z[:1]))
    torch.testing.assert_close(shown[-1][1], fields, atol=1e-5, rtol=0)  # its own epoch hardly learned
    command.ok("train", "dataset=bars", *options[:2], "epochs=1", "hydra.run.dir=single")
    assert fields_of_start(Path("single")) == []


@pytest.mark.usefixtures("_no_figures")
def test_figures_and_tables(command, tmp_path):
    options = ["dataset.n_points=60", "epochs=3", "states.n_states=16", "picture_every=1"]
    for name in ("bars", "bars_correlated"):
        for seed in (0, 1):
            where = f"hydra.run.dir=runs/{name}_{seed}"
            command.ok("train", f"dataset={name}", *options, f"seed={seed}", where)
    bars.main("runs", "out")
    expected = {f"bars_{name}.png" for name in FIGURES[:3]} | {f"bars_correlated_{name}.png" for name in FIGURES}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected | {"bars.json", "bars.md"}
    found = json.loads((tmp_path / "out" / "bars.json").read_text())
    assert [found[name]["runs"] for name in ("bars", "bars_correlated")] == [2, 2]
    assert found["bars_correlated"]["sigma_true"] == pytest.approx(0.1)
    with pytest.raises(SystemExit, match="no finished runs on bars there"):
        bars.main("nowhere", "out")
