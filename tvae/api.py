"""Restoration as a Python call: an array in, an array of the same kind out, nothing written to disk.

    import tvae
    restored = tvae.denoise(image)
    filled, uncertainty = tvae.inpaint(image, mask, return_uncertainty=True)

The commands do the same with files, and keep a record of it in a run directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from numpy.typing import NDArray

from tvae.core.errors import UserError
from tvae.data.image_file import Image, from_array, to_output
from tvae.data.picture import Picture, check_content
from tvae.options.checks import resolve
from tvae.options.schema import Config, conf_dir, register
from tvae.run.session import train_in_memory

# Options of the commands that are about files and run directories
MEANINGLESS = ("noise", "missing", "clean", "mask", "run", "init_from", "data_dir", "restart")


def denoise(
    image: NDArray[Any],
    *,
    channel_axis: int | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    return_uncertainty: bool = False,
) -> Any:
    """Remove noise of unknown strength from an image, learning from that image alone.

    `image` (M, N) or, with `channel_axis`, (M, N, C): unsigned 8 or 16 bit, or floating point with NaN where a pixel is
    missing; it is not modified. `rng`: seed or generator of all that is random, None for another result each time.
    `overrides`: options as on the command line, for instance `["epochs=10", "dataset.patch_size=12"]`. Returns an array
    of the same shape, dtype and range; with `return_uncertainty` also the posterior standard deviation, floating point
    in the image's units.
    """
    return _restore(image, None, channel_axis, rng, overrides, return_uncertainty, keep_observed=False)


def inpaint(
    image: NDArray[Any],
    mask: NDArray[Any],
    *,
    channel_axis: int | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    return_uncertainty: bool = False,
) -> Any:
    """Fill in the pixels of an image where `mask` (M, N) is nonzero, learning from the others; the rest is as above."""
    return _restore(image, np.asarray(mask), channel_axis, rng, overrides, return_uncertainty, keep_observed=True)


def _restore(
    array: NDArray[Any],
    mask: NDArray[Any] | None,
    channel_axis: int | None,
    rng: int | np.random.Generator | None,
    overrides: Sequence[str],
    return_uncertainty: bool,
    keep_observed: bool,
) -> Any:
    array = np.asarray(array)
    if isinstance(overrides, str):
        overrides = [overrides]
    if array.ndim != (2 if channel_axis is None else 3):
        raise ValueError(f"an image of {array.ndim} dimensions; 2 are wanted, or 3 with channel_axis")
    last = array if channel_axis is None else np.moveaxis(array, channel_axis, -1)
    image = from_array(last)
    seed = rng if isinstance(rng, (int, np.integer)) else int(np.random.default_rng(rng).integers(2**31))
    config = _compose([*overrides, f"seed={seed}"])
    picture = _picture(image, mask)
    check_content(picture.noisy, picture.missing, "the image")
    found = train_in_memory(config, picture, keep_observed)

    def back(pixels: np.ndarray) -> np.ndarray:
        if channel_axis is None:
            return pixels.reshape(array.shape)
        return np.moveaxis(pixels.reshape(last.shape), -1, channel_axis)

    restored = back(to_output(found.pixels, image))
    return (restored, back(found.uncertainty)) if return_uncertainty else restored


def _compose(overrides: Sequence[str]) -> Config:
    register()
    with initialize_config_dir(conf_dir(), version_base="1.3"):
        config = resolve(compose("config", ["dataset=file", "image=image", *overrides]))
    for name in MEANINGLESS:
        if getattr(config, name) != getattr(Config, name):
            raise UserError(f"{name}={getattr(config, name)}: has no meaning for an array")
    if config.states.memmap:
        raise UserError("states.memmap=true: has no meaning without a run directory")
    return config


def _picture(image: Image, mask: NDArray[Any] | None) -> Picture:
    height, width = image.pixels.shape[:2]
    if mask is not None and mask.shape != (height, width):
        raise ValueError(f"a mask of shape {mask.shape} for an image of {(height, width)}")
    missing = np.zeros((height, width), dtype=bool) if mask is None else mask != 0
    if image.missing is not None:
        missing = missing | image.missing
    pixels = np.where(missing[..., None], 0, image.pixels)
    return Picture(image, pixels, None, missing if missing.any() else None, image.peak)
