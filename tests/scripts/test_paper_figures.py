"""The paper's figures in the report, from made-up runs."""

import json

import numpy as np
import pytest

from scripts.paper.report import SHOWN, paper_figures
from tests.made_up_runs import make_run
from tvae.io.image_file import write_image


def make_picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_image(path, np.full((8, 12), 99, dtype=np.uint8))


def heads(pages):
    return [page.partition("</h3>")[0].removeprefix("<h3>") for page in pages]


@pytest.fixture
def outputs(tmp_path, recorded_folder):
    """Content for every figure."""
    found = tmp_path / "outputs"
    for name in SHOWN:
        make_picture(found / ("natural/quick" if name.startswith("natural") else "bars") / name)
    gain = {"gain": {"mean": 4.5, "std": 0.03}}
    summary = {"gain": {"n_patches": 100000, "elbo": gain, "elbo_test": {"gain": {"mean": 1.8, "std": None}}}}
    (found / "natural" / "quick" / "natural.json").write_text(json.dumps(summary))
    bars = {"runs": 10, "runs_with_all_bars": 9, "elbo": 9.6, "log_likelihood_true": 9.7, "gap_allowed_forbidden": 34.0}
    (found / "bars" / "bars.json").write_text(json.dumps({"bars": bars, "bars_correlated": bars}))
    for seed, psnr in enumerate([30.1, 30.3]):
        make_run(found / "table2" / "quick" / f"noise=50.0,seed={seed}", psnr)
        make_picture(found / "table2" / "quick" / f"noise=50.0,seed={seed}" / "restored.png")
    make_run(found / "table2" / "quick" / "noise=15.0,seed=0", 35.0)
    make_run(found / "inpainting" / "quick" / "dataset=house,missing=0.5,missing_per=channel,seed=0", 41.0)
    holed = found / "inpainting" / "quick" / "dataset=house,missing=0.5,seed=0"
    make_run(holed, 40.4)
    metrics = json.loads((holed / "metrics.json").read_text())
    (holed / "metrics.json").write_text(json.dumps(metrics | {"psnr_input": None}))
    for name in ("input.png", "restored.png"):
        make_picture(holed / name)
    for name, psnr in (("table2_noise_50_seed_0", 29.7), ("inpainting_house_0.5_seed_0", 38.4)):
        make_run(recorded_folder / name, psnr, epochs=500)
        make_picture(recorded_folder / name / "restored.png")
    return found


def test_all_that_show_data_in_the_papers_order(outputs):
    pages = list(paper_figures(outputs))
    assert [head.partition(":")[0] for head in heads(pages)] == [f"Figure {n}" for n in (3, 4, 7, 8, 9, 10)]
    assert [page.count("<img") for page in pages] == [1, 2, 1, 1, 3, 3]
    assert all("<p>Paper: " in page and "<br>Ours: " in page for page in pages)


def test_the_papers_values_stand_beside_ours(outputs):
    natural, denoised, bars, pairs, correlated, inpainted = paper_figures(outputs)
    assert "4.50 ± 0.03 nats per patch, on held-out patches 1.80 nats, 100000 patches" in natural
    assert "Paper: 30.03 dB" in denoised
    assert "30.30 dB (default recipe, noise=50.0,seed=1, 40 epochs); 29.70 dB" in denoised, (
        "the best, then the recorded"
    )
    assert "all bars in 9 of 10 runs, the best with an ELBO of 9.60 nats (true log-likelihood 9.70)" in bars
    assert "34.0 nats below" in pairs
    assert "pi = 2/8" in correlated
    assert "Paper: 38.56 dB" in inpainted
    assert "38.40 dB" in inpainted
    assert "seed=0, restored: 40.40 dB" in inpainted
    assert "seed=0, input<" in inpainted, "holes have no PSNR"
    assert "41.00" not in inpainted, "other values were missing there"


def test_without_runs_there_are_the_recorded_ones(tmp_path, recorded_folder):
    assert list(paper_figures(tmp_path)) == []
    make_run(recorded_folder / "table2_noise_50_seed_0_fitness", 29.9, epochs=500)
    (page,) = paper_figures(tmp_path)
    assert "29.90 dB (the paper&#x27;s parameters, ea.selection=fitness, sigma2 from the data&#x27;s variance, " in page
