"""PSNR of the default recipe on the paper's picture, three noise seeds each (`make test-slow`, about an hour)."""

import os
from pathlib import Path

import pytest

from tvae.data.named import find_image
from tvae.errors import UserError
from tvae.runs.run_directory import read_metrics


@pytest.fixture
def _house():
    try:
        find_image("house", os.environ.get("TVAE_DATA_DIR"))
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("_house")
@pytest.mark.parametrize("corruption_seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "corruption", "psnr"),
    [
        ("denoise", "noise=15", 33.9),
        ("denoise", "noise=25", 32.4),
        ("denoise", "noise=50", 29.6),
        ("inpaint", "missing=0.5", 37.5),
    ],
)
def test_default_recipe_on_house(command, name, corruption, psnr, corruption_seed):
    command.ok(name, "dataset=house", corruption, f"corruption_seed={corruption_seed}", "hydra.run.dir=run")
    found = read_metrics(Path("run"))
    print(f"{corruption}, corruption_seed={corruption_seed}: {found['psnr']:.2f} dB in {found['seconds']:.0f} s")
    assert found["psnr"] >= psnr
