"""A noise level that the user knows is told, and is never taken for noise to be added."""

from pathlib import Path

import numpy as np
import pytest

import tvae
from tests.processes import metrics
from tests.tiny import TINY, tiny_picture
from tvae.io.image_file import write_image

pytestmark = pytest.mark.usefixtures("_no_figures")

SMALL = {"epochs": 1, "n_latents": 8, "n_states": 8, "n_parents": 2, "n_children": 2, "train_stride": 4, "threads": 1}
PICTURE = tiny_picture(48)


@pytest.mark.parametrize("task", ["denoise", "inpaint"])
def test_noise_is_not_added_to_a_picture_of_ones_own(command, task):
    write_image(Path("a.png"), PICTURE)
    write_image(Path("mask.png"), np.eye(48, dtype=np.uint8))
    code, out = command(task, "a.png", "noise=25", "mask=mask.png", *TINY, "hydra.run.dir=run")
    assert (code, out.count("\n")) == (2, 1)
    assert "noise=25.0: would be added to a.png; sigma=25.0 states its level" in out
    assert "corruption=gaussian noise=25.0 makes a benchmark of it" in out
    assert not Path("run").exists()


def test_both_that_may_be_meant(command):
    write_image(Path("a.png"), PICTURE)
    command.ok("denoise", "a.png", "corruption=gaussian", "noise=25", *TINY, "hydra.run.dir=added")
    assert metrics("added")["psnr_input"] == pytest.approx(20 * np.log10(255 / 25), abs=0.5)
    command.ok("denoise", "a.png", "sigma=25", *TINY, "hydra.run.dir=told")
    assert metrics("told")["psnr_input"] is None
    assert metrics("told")["noise_level"] == pytest.approx(25)


def test_a_level_in_the_units_of_the_picture():
    """The more noise there is said to be, the more is removed; 16 bit is in counts."""
    removed = []
    for sigma in (1.0, 8.0, 40.0):
        found = tvae.denoise(PICTURE, sigma=sigma, effort="fast", **SMALL)
        removed.append(np.std(found.astype(float) - PICTURE))
    assert removed[0] < 1
    assert removed[0] < removed[1] < removed[2]
    deep = PICTURE.astype(np.uint16) * 257
    found = tvae.denoise(deep, sigma=8.0 * 257, effort="fast", **SMALL)
    assert np.std(found.astype(float) - deep) / 257 == pytest.approx(removed[1], rel=0.05)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sigma": 0}, "sigma=0.0: must be above 0"),
        ({"sigma": 5, "noise_model": "correlated"}, "sigma=5.0: is of white noise"),
        ({"sigma": 5, "sigma_map": "a.tif"}, "sigma=5.0: is of white noise"),
        ({"noise": 5}, "noise=5: has no meaning for an array"),
    ],
)
def test_levels_that_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        tvae.denoise(PICTURE, **options)
    with pytest.raises(ValueError, match="known pixels stay as they are; keep_known=false denoises them"):
        tvae.inpaint(PICTURE, np.eye(48), sigma=5)
