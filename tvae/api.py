"""Restoration as a Python call: an array in, an array of the same kind out, nothing written to disk.

    import tvae
    restored = tvae.denoise(image)
    filled, uncertainty = tvae.inpaint(image, mask, return_uncertainty=True)

The commands do the same with files, and keep a record of it in a run directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from numpy.typing import NDArray
from omegaconf.errors import OmegaConfBaseException

from tvae.core.errors import UserError, refuse
from tvae.data.image_file import Image, to_output
from tvae.data.layout import Layout, layout_of
from tvae.data.picture import Picture, check_content, check_missing
from tvae.data.stack_file import to_image
from tvae.options.checks import resolve
from tvae.options.every_option import did_you_mean, every_option
from tvae.options.mistakes import one_line
from tvae.options.paths_as_typed import escaped
from tvae.options.schema import Config, conf_dir, register
from tvae.restore.restoration import Restored
from tvae.run.session import train_in_memory

# Options of the commands that say which picture, are about files and run directories, or are arguments of the call
MEANINGLESS = (
    "dataset", "dataset.name", "image", "axes", "pages", "noise", "missing", "missing_per", "corruption", "peak",
    "correlation", "outliers", "quality", "corruption_seed", "clean", "mask",
    "n_patches", "data_dir", "run", "init_from", "restart", "seed", "restore_every", "picture_every",
    "checkpoint_seconds", "task", "states.memmap", "output",
)  # fmt: skip


def denoise(
    image: NDArray[Any],
    *,
    channel_axis: int | None = None,
    axes: str | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    return_uncertainty: bool = False,
    **options: Any,
) -> Any:
    """Remove noise of unknown strength from an image, learning from that image alone.

    `image` (M, N), with `channel_axis` (M, N, C), or with `axes`, as in "TYX", a stack, which has one model for all its
    pages: Booleans, integers or floating point; it is not modified. Pixels that are NaN, or masked in a masked array,
    are missing and are filled in. `rng`: seed or generator of all that is random, None for another result each time.
    `options` are those of the command line by the last part of their names, `epochs=10, patch_size=12, effort="fast"`;
    `overrides` as they are typed there, `["dataset.patch_size=12"]`; those that an array cannot honour are refused.
    Returns an array of the same shape, dtype and range; with `return_uncertainty` also the posterior standard
    deviation, floating point in the image's units.
    """
    overrides = [*as_overrides(options), *as_list(overrides)]
    return _restore("denoise", image, None, channel_axis, axes, rng, overrides, return_uncertainty)


def inpaint(
    image: NDArray[Any],
    mask: NDArray[Any] | None = None,
    *,
    channel_axis: int | None = None,
    axes: str | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    return_uncertainty: bool = False,
    **options: Any,
) -> Any:
    """Fill in the pixels of an image where `mask` (M, N) is nonzero, learning from the others, which stay as they are.

    The mask of a stack is (M, N) or (T, M, N). Pixels that are NaN, or masked in a masked array, are missing as well;
    that none is missing is a mistake. With `overrides=["keep_known=false"]` known pixels are denoised. The rest is as
    in `denoise`.
    """
    overrides = [*as_overrides(options), *as_list(overrides)]
    return _restore("inpaint", image, mask, channel_axis, axes, rng, overrides, return_uncertainty)


def _restore(
    task: str,
    array: NDArray[Any],
    mask: NDArray[Any] | None,
    channel_axis: int | None,
    axes: str | None,
    rng: int | np.random.Generator | None,
    overrides: Sequence[str],
    return_uncertainty: bool,
) -> Any:
    picture, back = opened(array, mask, channel_axis, axes)
    config = compose_options(overrides)
    refuse(task == "denoise" and config.keep_known is True, "keep_known=true: is for inpaint")
    config.task, config.seed = task, seed_of(rng)
    check_content(picture.noisy, picture.missing, "the image")
    if task == "inpaint":
        check_missing(picture.missing, "the image")
    return back(train_in_memory(config, picture), return_uncertainty)


def opened(
    array: NDArray[Any], mask: NDArray[Any] | None, channel_axis: int | None, axes: str | None
) -> tuple[Picture, Callable[[Restored, bool], Any]]:
    """An array as a picture, and how what was restored becomes an array of the same kind (and its uncertainty)."""
    array, masked = _unmasked(array)
    layout = _layout(array, channel_axis, axes)
    image = to_image(array, layout)
    if masked is not None:
        marked = layout.to_tall(masked)
        marked = np.any(marked, -1) if marked.ndim == 3 else marked
        image = replace(image, missing=np.asarray(marked if image.missing is None else marked | image.missing))
    picture = _picture(image, None if mask is None else np.ma.filled(mask, 1))

    def back(found: Restored, with_uncertainty: bool) -> Any:
        restored = to_output(found.pixels, image)
        return (restored, layout.from_tall(found.uncertainty)) if with_uncertainty else restored

    return picture, back


def _layout(array: NDArray[Any], channel_axis: int | None, axes: str | None) -> Layout:
    if axes is not None:
        if channel_axis is not None:
            raise ValueError("channel_axis and axes both say where the channels are; one of them is enough")
        return layout_of(axes, array.shape)
    if array.ndim != (2 if channel_axis is None else 3):
        raise ValueError(f"an image of {array.ndim} dimensions; 2 are wanted, 3 with channel_axis, or axes for a stack")
    names = ["Y", "X"]
    if channel_axis is not None:
        names.insert(channel_axis % 3, "C")
    return Layout("".join(names), array.shape)


def seed_of(rng: int | np.random.Generator | None) -> int:
    return int(rng) if isinstance(rng, (int, np.integer)) else int(np.random.default_rng(rng).integers(2**31))


def as_list(overrides: str | Sequence[str]) -> list[str]:
    return [overrides] if isinstance(overrides, str) else list(overrides)


def as_overrides(options: dict[str, Any]) -> list[str]:
    """Keyword arguments as the words of a command line; `TypeError` for a name that there is not."""
    names = {name.rpartition(".")[2]: name for name in reversed(list(every_option()))}
    for key in options:
        if key not in names:
            raise TypeError(f"{key}: no such option{did_you_mean(key)}")
    return [f"{names[key]}={_typed(value)}" for key, value in options.items()]


def _typed(value: Any) -> str:
    if isinstance(value, str):
        return QuotedString(escaped(value), Quote.single).with_quotes()
    return "null" if value is None else str(list(value) if isinstance(value, tuple) else value)


@contextmanager
def _apart() -> Iterator[None]:
    """Within, Hydra is as if nobody else used it; the call may be made inside a program that `hydra.main` runs."""
    held = GlobalHydra.instance().hydra
    GlobalHydra.instance().hydra = None
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = held


def compose_options(overrides: Sequence[str]) -> Config:
    """The configuration for an array, with options as on the command line."""
    overrides = as_list(overrides)
    register()
    refused = [word for word in overrides if word.lstrip("+~").partition("=")[0].startswith(("hydra.", "hydra/"))]
    refused += [word for word in overrides if word.lstrip("+~").partition("=")[0] in MEANINGLESS]
    if refused:
        raise UserError(*(f"{word}: has no meaning for an array" for word in refused))
    try:
        with _apart(), initialize_config_dir(conf_dir(), version_base="1.3"):
            config = resolve(compose("config", ["dataset=file", "image=image", *overrides]))
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(error)) from error
    for name in ("noise", "missing"):  # which an experiment may bring along
        value = getattr(config, name)
        refuse(value is not None, f"{name}={value}: has no meaning for an array")
    return config


def _unmasked(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """An array without what is masked in it, and where that was; None: nothing was."""
    if not np.ma.isMaskedArray(array):
        return np.asarray(array), None
    is_floating = np.issubdtype(array.dtype, np.floating)
    return np.ma.filled(array, np.nan if is_floating else 0), np.ma.getmaskarray(array)


def _picture(image: Image, mask: NDArray[Any] | None) -> Picture:
    height, width = image.pixels.shape[:2]
    if mask is not None and image.n_pages > 1:
        mask = np.broadcast_to(mask, (image.n_pages, height // image.n_pages, width)).reshape(height, width)
    if mask is not None and mask.shape != (height, width):
        raise ValueError(f"a mask of shape {mask.shape} for an image of {(height, width)}")
    missing = np.zeros((height, width), dtype=bool) if mask is None else mask != 0
    if image.missing is not None:
        missing = missing | image.missing
    pixels = np.where(missing[..., None], 0, image.pixels)
    return Picture(image, pixels, None, missing if missing.any() else None, image.peak)
