"""What is said of runs on bars, from small ones."""

import json

import pytest
import torch

from scripts import judge_bars
from scripts.bars_runs import dataset_of, match_bars
from tvae.core.streams import generator
from tvae.data.sets.bars import BarsConfig, bar_images, generating_model

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


@pytest.mark.usefixtures("_no_figures")
def test_figures_and_tables(command, tmp_path):
    options = ["dataset.n_points=60", "epochs=3", "states.n_states=16", "picture_every=1"]
    for name in ("bars", "bars_correlated"):
        for seed in (0, 1):
            where = f"hydra.run.dir=runs/{name}_{seed}"
            assert command("train", f"dataset={name}", *options, f"seed={seed}", where)[0] == 0
    judge_bars.main("runs", "out")
    expected = {f"bars_{name}.png" for name in FIGURES[:3]} | {f"bars_correlated_{name}.png" for name in FIGURES}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected | {"bars.json", "bars.md"}
    found = json.loads((tmp_path / "out" / "bars.json").read_text())
    assert [found[name]["runs"] for name in ("bars", "bars_correlated")] == [2, 2]
    assert found["bars_correlated"]["sigma_true"] == pytest.approx(0.1)
    with pytest.raises(SystemExit, match="no finished runs on bars there"):
        judge_bars.main("nowhere", "out")
