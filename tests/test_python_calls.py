"""The Python calls: options as keywords, whatever kind of array, wherever they are made."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_picture

import tvae
from tvae.arguments import as_overrides
from tvae.errors import UserError

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


PICTURE, COLOUR = tiny_picture(), np.dstack([tiny_picture()] * 3)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"image": None}, "image: must be an array, not None"),
        ({"image": "a.png"}, "image: must be an array, not 'a.png'; the commands read files"),
        ({"image": Path("a.png")}, "image: must be an array, not PosixPath"),
        ({"image": b"abc"}, "image: must be an array, not b'abc'"),
        ({"image": 3}, "an image of 0 dimensions"),
        ({"image": PICTURE.astype("M8[s]")}, "pixels of type datetime64.* are not read"),
        ({"image": PICTURE.astype(object)}, "pixels of type object are not read"),
        ({"image": PICTURE.astype(np.uint64) << 50}, "too large to be exact"),
        ({"rng": 1.5}, "rng: must be a whole number, a numpy.random.Generator or None, not 1.5"),
        ({"rng": "x"}, "rng: must be a whole number, .* not 'x'"),
        ({"rng": [1, 2]}, "rng: must be a whole number, "),
        ({"rng": -1}, "rng=-1: must be at least 0"),
        ({"axes": 3}, "axes: must be letters, as in 'TYX', not 3"),
        ({"axes": ["Y", "X"]}, "axes: must be letters"),
        ({"axes": ""}, "a letter for each axis"),
        ({"image": COLOUR, "channel_axis": 3}, "channel_axis=3: the image has axes 0 to 2"),
        ({"image": COLOUR, "channel_axis": -4}, "channel_axis=-4: the image has axes 0 to 2"),
        ({"image": COLOUR, "channel_axis": "last"}, "channel_axis: must be a whole number, not 'last'"),
        ({"image": COLOUR, "channel_axis": 2.0}, "channel_axis: must be a whole number, not 2.0"),
        ({"image": COLOUR, "channel_axis": True}, "channel_axis: must be a whole number, not True"),
        ({"overrides": 3}, "overrides: must be a list of words, .* not 3"),
        ({"overrides": None}, "overrides: must be a list of words"),
        ({"overrides": {"epochs": 1}}, "overrides: must be a list of words"),
        ({"overrides": [3]}, "overrides: must be a list of words"),
        ({"epochs": float("nan")}, "epochs=nan: Value 'nan' of type 'float' could not be converted"),
        ({"hidden": 4}, "model.hidden=4: Invalid value"),
        ({"hidden": [object()]}, "hidden: <object object .* cannot be the value of an option"),
        ({"effort": object()}, "effort: <object object .* cannot be the value of an option"),
        ({"effort": "fast", "n_states": 8, "seed": 3}, "seed=3: has no meaning for an array"),
    ],
)
def test_arguments_that_are_wrong(arguments, told):
    """Python's own exceptions are raised before anything is computed."""
    with pytest.raises((ValueError, TypeError), match=told):
        tvae.denoise(**{"image": PICTURE, **arguments})


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        ("mask.png", "mask: must be an array, not 'mask.png'"),
        (np.full(PICTURE.shape, "x"), "mask: must hold numbers or Booleans, not <U1"),
        (np.zeros((3, 3)), "a mask of shape .3, 3. for an image of"),
        (True, "a mask of shape .. for an image"),
    ],
)
def test_masks_that_are_wrong(mask, told):
    with pytest.raises((ValueError, TypeError), match=told):
        tvae.inpaint(PICTURE, mask)
    stack = np.stack([PICTURE] * 2)
    with pytest.raises((ValueError, TypeError), match="mask"):
        tvae.inpaint(stack, mask, axes="TYX")


def test_all_that_is_wrong_with_the_options_is_told_at_once():
    with pytest.raises(UserError) as told:
        tvae.denoise(PICTURE, epochs="many", batch_size="few", overrides=["precision=float16"])
    assert [line.partition(":")[0] for line in told.value.problems] == [
        "epochs='many'", "batch_size='few'", "precision=float16",
    ]  # fmt: skip


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
