"""The line before a run."""

import re

import numpy as np
import pytest

from tests.conftest import load, small_config
from tvae.core.model import ModelConfig
from tvae.data.image_file import from_array
from tvae.data.picture import Picture
from tvae.data.sets.image import ImageConfig
from tvae.options.recipe import prepare
from tvae.run import forecast
from tvae.run.forecast import opening
from tvae.run.setup import make_fit


def line_of(picture, **changes):
    dataset = ImageConfig(name="file", patch_size=4)
    model = ModelConfig(n_latents=8, hidden=[8], residual="grouped")
    config = small_config(image="a.png", dataset=dataset, model=model, threads=1, **changes)
    config, dataset = prepare(config, picture)
    return opening(config, make_fit(config, dataset), dataset)


@pytest.fixture
def picture():
    image = from_array(np.random.default_rng(0).integers(0, 255, (24, 20, 3), dtype=np.uint8))
    missing = np.zeros((24, 20), bool)
    missing[:6] = True
    return Picture(image, np.where(missing[..., None], 0, image.pixels), None, missing, 255.0)


def test_it_says_what_will_be_done(picture):
    pattern = (
        r"a\.png: 20x24x3, 25 % missing, noise about [\d.]+ of 255; patches of 4x4, 8 latents, 4 epochs; "
        r"about \d+ s and \d\.\d GB of memory"
    )
    line = line_of(picture)
    assert re.search(pattern, line), line


def test_refinement_is_counted(picture, monkeypatch):
    monkeypatch.setattr(forecast, "as_time", lambda seconds: f"<{seconds}>")

    def seconds(effort):
        return float(re.search("<(.*)>", line_of(picture, effort=effort))[1])

    monkeypatch.setattr(forecast, "_e_step_seconds", lambda fit: 0.0)
    assert seconds("best") / seconds("default") == pytest.approx(3440 / 1210)
    assert seconds("fast") == pytest.approx(480 * 490e-6 * 2)


def test_data_that_are_no_picture():
    config = small_config()
    dataset = load(config)
    line = opening(config, make_fit(config, dataset), dataset)
    assert line.startswith("bars: 60 data points of 16 values; 8 latents, 4 epochs; about ")
