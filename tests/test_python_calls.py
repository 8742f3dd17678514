"""The Python calls: options as keywords, whatever kind of array, wherever they are made."""

import subprocess
import sys

import numpy as np
import pytest
from tiny import tiny_picture

import tvae
from tvae.api import as_overrides

SMALL = {"epochs": 1, "n_latents": 8, "n_states": 8, "n_parents": 2, "n_children": 2, "train_stride": 4, "threads": 1}
IN_HYDRA = """
import hydra, numpy as np, tvae
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base="1.3", config_path=None)
def main(cfg):
    found = tvae.denoise(np.load("a.npy"), epochs=1, n_latents=8, n_states=8, n_parents=2, n_children=2, threads=1)
    print(found.shape, HydraConfig.get().job.name)

main()
"""


def test_the_functions_are_shown():
    assert {"denoise", "inpaint", "fit", "load", "Model"} <= {*dir(tvae)}


def test_options_by_the_last_part_of_their_names():
    found = as_overrides({"epochs": 3, "patch_size": 12, "effort": "fast", "hidden": [4, 5], "stride": None})
    assert found == ["epochs=3", "dataset.patch_size=12", "effort='fast'", "model.hidden=[4, 5]", "dataset.stride=null"]
    with pytest.raises(TypeError, match="epoch: no such option; did you mean epochs"):
        tvae.denoise(tiny_picture(), epoch=3)
    with pytest.raises(ValueError, match="epochs=0: must be at least 1"):
        tvae.denoise(tiny_picture(), epochs=0)


@pytest.mark.parametrize("dtype", ["bool", "int16", "int64", "uint32"])
def test_integers_and_booleans(dtype):
    image = tiny_picture() > 100 if dtype == "bool" else tiny_picture().astype(dtype) * 100
    by_keyword = tvae.denoise(image, effort="fast", **SMALL)
    assert (by_keyword.dtype, by_keyword.shape) == (image.dtype, image.shape)
    assert dtype == "bool" or np.mean(by_keyword != image) > 0.01
    assert np.corrcoef(by_keyword.ravel(), image.ravel())[0, 1] > 0.8


def test_inside_a_hydra_program(tmp_path):
    np.save(tmp_path / "a.npy", tiny_picture())
    (tmp_path / "program.py").write_text(IN_HYDRA)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.stdout.endswith("(24, 24) program\n"), done.stderr
