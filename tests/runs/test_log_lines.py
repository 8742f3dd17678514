"""The line before a run."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import load, small_config
from tests.tiny import TINY, tiny_picture
from tvae.arguments import compose_options
from tvae.config.recipe import prepare
from tvae.data.picture import Picture
from tvae.data.sets.image import ImageConfig
from tvae.io.image_file import from_array, write_image
from tvae.model.vae import ModelConfig
from tvae.restoration import cost, second_stage
from tvae.restoration.cost import stages
from tvae.restoration.pipeline import restore_picture
from tvae.restoration.posterior_mean import Restored
from tvae.restoration.tiling import Bands
from tvae.runs.log_lines import closing, opening, tell_noise
from tvae.runs.setup import make_fit


def line_of(picture, **changes):
    dataset = ImageConfig(name="file", patch_size=4)
    model = ModelConfig(n_latents=8, hidden=[8])
    config = small_config(image="a.png", dataset=dataset, model=model, threads=1, task="denoise", **changes)
    config, dataset = prepare(config, picture)
    return opening(config, make_fit(config, dataset), dataset)


@pytest.fixture
def picture():
    image = from_array(np.random.default_rng(0).integers(0, 255, (24, 20, 3), dtype=np.uint8))
    missing = np.zeros((24, 20), bool)
    missing[:6] = True
    return Picture(image, np.where(missing[..., None], 0, image.pixels), missing=missing)


def test_it_says_what_will_be_done(picture):
    pattern = (
        r"a\.png: 20x24x3, 25 % missing, noise about [\d.]+ of 255; patches of 4x4, 8 latents, 4 epochs; "
        r"about \d+ s and \d\.\d GB of memory"
    )
    line = line_of(picture)
    assert re.search(pattern, line), line


@pytest.mark.parametrize(
    ("dtype", "factor", "unit"),
    [("uint8", 1, " of 255"), ("uint16", 257, " counts"), ("float32", 1 / 255, " of 1"), ("float64", 10, "")],
)
def test_what_became_of_a_picture(dtype, factor, unit):
    """Levels are in the picture's own units; the noise removed is the difference to the result."""
    clean = np.random.default_rng(0).integers(50, 200, (24, 20)).astype(float)
    noisy = clean + np.where(np.indices((24, 20)).sum(0) % 2, 4.0, -4.0)
    image = from_array((noisy * factor).astype(dtype))
    picture = Picture(image, noisy[..., None] * factor)
    restored = Restored(clean[..., None] * factor, np.ones((24, 20, 1)), noise_level=5.0 * factor)
    metrics = {"psnr": None, "psnr_input": None, "ssim": None, "seconds_total": 12.3}
    line = closing(small_config(image="a.png"), picture, restored, metrics, Path("run"))
    level, removed = (f"{value * factor:.4g}" if dtype == "uint16" else f"{value * factor:.3g}" for value in (5, 4))
    assert line == f"a.png: 20x24, noise {level}{unit} found, {removed} removed; finished in 12 s: run"
    known = {"psnr": 33.0, "psnr_input": 20.0, "ssim": 0.9, "seconds_total": 12.3}
    line = closing(small_config(image="a.png"), picture, restored, known, Path("run"))
    assert "removed, PSNR 20.00 -> 33.00 dB, SSIM 0.9000; finished" in line
    told = closing(small_config(image="a.png", sigma=5.0 * factor), picture, restored, metrics, Path("run"))
    assert f"noise {level}{unit} told, {removed} removed" in told


@pytest.mark.usefixtures("_no_figures")
def test_only_training_speaks_of_the_bound(command):
    write_image(Path("a.png"), tiny_picture())
    out = command.ok("denoise", "a.png", *TINY, "hydra.run.dir=run")
    assert "a.png: 24x24, noise " in out
    assert "ELBO" not in out.splitlines()[-2]
    assert "ELBO" in command("train", "image=a.png", *TINY, "hydra.run.dir=trained")[1]


@pytest.mark.usefixtures("_no_figures")
def test_every_restoration_ends_with_the_picture(command):
    """Also that from a run that is there already, and that by a shared model."""
    Path("many").mkdir()
    write_image(Path("many/a.png"), tiny_picture())
    command.ok("denoise", "image=many", "shared=true", *TINY, "hydra.run.dir=shared")
    log = command.ok("denoise", "image=many", "shared=true", *TINY, "hydra.run.dir=again", "seed=1")
    command.ok("denoise", "many/a.png", *TINY, "hydra.run.dir=run")
    for out in (log, command.ok("denoise", "run=run", "hydra.run.dir=other")):
        assert re.search(r"^many/a.png: 24x24, noise .* of 255 found, .* removed; finished in ", out, re.MULTILINE)


def prepared(picture, effort):
    model = ModelConfig(n_latents=8, hidden=[8])
    dataset = ImageConfig(name="file", patch_size=4)
    config, dataset = prepare(
        small_config(image="a.png", dataset=dataset, model=model, effort=effort, task="denoise"), picture
    )
    return config, make_fit(config, dataset)


@pytest.mark.parametrize("effort", ["fast", "default", "best"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_stages_are_those_that_restoration_tells_of(picture, effort, is_whole):
    picture = replace(picture, missing=None if is_whole else picture.missing)
    config, fit = prepared(picture, effort)
    told = []
    restore_picture(fit, picture, config, Bands(watch=lambda stage, share: told.append(stage)))
    foreseen = stages(config, fit, picture)
    assert list(dict.fromkeys(told)) == list(foreseen)
    assert min(foreseen.values()) > 0


def test_time_grows_with_effort_and_shrinks_with_threads(picture, monkeypatch):
    monkeypatch.setattr(cost, "e_step_seconds", lambda fit: 0.0)
    monkeypatch.setattr(cost, "slowness", lambda: 1.0)
    picture = replace(picture, missing=None, sigma=5.0)
    fast, default, best = (
        sum(stages(*prepared(picture, each), picture).values()) for each in ("fast", "default", "best")
    )
    assert 2 * fast < default < best / 2
    local = 480 / 9 * (second_stage.GROUP + 60 * 6**2 * 3 * second_stage.BY_VALUE)
    config, fit = prepared(picture, "fast")
    assert stages(config, fit, picture)["local"] == pytest.approx(local)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert stages(config, fit, picture)["local"] == pytest.approx(local / (1 + 2 * cost.THREADS_GAIN))


def test_the_forecast_of_the_slab_model_tries_nothing(monkeypatch):
    """Noise on a ramp: all of it follows from sizes, and time grows with epochs and shrinks with threads."""
    monkeypatch.setattr(cost, "slowness", lambda: 1.0)
    monkeypatch.setattr(cost, "e_step_seconds", lambda fit: pytest.fail("an E-step was tried"))
    noisy = np.add.outer(np.arange(32.0), np.arange(32.0)) + np.random.default_rng(0).normal(0, 9, (32, 32))
    image = from_array(noisy)
    picture = Picture(image, noisy[..., None], sigma=9.0)
    given = compose_options([], {"threads": 1})
    given.image, given.dataset, given.task = "a.png", ImageConfig(name="file"), "denoise"
    config, dataset = prepare(given, picture)
    fit = make_fit(config, dataset)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone, rest = cost.training_seconds(fit), cost.seconds_by_states(config, fit, picture)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert alone / 2 < cost.training_seconds(fit) < alone
    assert cost.seconds_by_states(config, fit, picture) == pytest.approx(rest / (1 + cost.THREADS_GAIN))


def test_the_least_time_that_was_measured_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("TVAE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cost, "speed_key", lambda: "key")
    found = []
    for seconds in (0.02, 0.05, 0.01):  # a neighbour at work, the second time
        monkeypatch.setattr(cost, "_trial_seconds", lambda seconds=seconds: seconds)
        cost.slowness.cache_clear()
        found.append(cost.slowness() * cost.TRIAL_SECONDS)
    cost.slowness.cache_clear()
    assert found == pytest.approx([0.02, 0.02, 0.01])
    assert float((tmp_path / "speed-key.txt").read_text()) == pytest.approx(0.01)


def test_the_machine_is_tried_on_one_thread():
    n_threads = torch.get_num_threads()
    assert 0.05 < cost.slowness() < 20
    assert torch.get_num_threads() == n_threads


def test_data_that_are_no_picture():
    config = small_config()
    dataset = load(config)
    line = opening(config, make_fit(config, dataset), dataset)
    assert line.startswith("bars: 60 data points of 16 values; 8 latents, 4 epochs; about ")


@pytest.mark.parametrize(
    ("changes", "is_told"), [({}, True), ({"keep_known": True}, False), ({"noise_model": "gaussian"}, False)]
)
def test_what_is_assumed_of_noise_that_was_not_found_out(picture, changes, is_told, caplog):
    with caplog.at_level(logging.INFO):
        tell_noise(small_config(**changes), picture)
    assert ("assumed to be white Gaussian" in caplog.text) == is_told
