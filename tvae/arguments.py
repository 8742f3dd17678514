"""Checked arguments of the Python calls: arrays and masks as pictures, keywords and overrides as a configuration."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from numpy.typing import NDArray
from omegaconf.errors import OmegaConfBaseException
from PIL import Image as Pillow
from torch import Tensor

from tvae.config.checks import resolve
from tvae.config.every_option import did_you_mean, every_option, options_told
from tvae.config.messages import composition_problems
from tvae.config.paths_as_typed import escaped
from tvae.config.schema import Config, conf_dir, register
from tvae.data.picture import Picture
from tvae.errors import UserError, refuse
from tvae.io.image_file import Image, to_output
from tvae.io.layout import Layout, layout_of
from tvae.io.stack_file import to_image
from tvae.restoration.posterior_mean import Restored

# Options of the commands that say which picture, are about files and run directories, or are arguments of the call
MEANINGLESS = ("dataset", "dataset.name", *options_told("for_arrays", False))
PIL_MODES = ("L", "RGB", "I;16", "I", "F")  # whose values are brightness or colours
ImageT = TypeVar("ImageT")  # a NumPy array, a torch tensor or a PIL image
FOR_ARRAYS = ["dataset=file", "image=image"]


def opened(
    given: Any, mask: Any, channel_axis: int | None, axes: str | None
) -> tuple[Picture, Callable[[Restored, bool], Any]]:
    """An array, tensor or PIL image as a picture, and a function that turns a result into the same kind."""
    array, masked = _unmasked(_as_array(given, "image"))
    if isinstance(given, Pillow.Image) and array.ndim == 3 and channel_axis is axes is None:
        channel_axis = 2
    layout = _layout(array, channel_axis, axes)
    image = to_image(array, layout)
    if masked is not None:
        marked = layout.to_tall(masked)
        marked = np.any(marked, -1) if marked.ndim == 3 else marked
        image = replace(image, missing=np.asarray(marked if image.missing is None else marked | image.missing))
    picture = _picture(image, None if mask is None else _read_mask(mask))

    def back(found: Restored, with_uncertainty: bool) -> Any:
        restored = _in_kind(to_output(found.pixels, image), given)
        if not with_uncertainty:
            return restored
        return restored, layout.from_tall(np.repeat(found.uncertainty, image.n_equal, axis=2))

    return picture, back


def _as_array(given: Any, name: str) -> NDArray[Any]:
    if given is None or isinstance(given, (str, bytes, os.PathLike)):
        hint = "; the commands read files, and imageio.v3.imread does" if given is not None else ""
        raise TypeError(f"{name}: must be an array, not {given!r:.80}{hint}")
    if isinstance(given, Pillow.Image) and given.mode not in PIL_MODES:
        raise TypeError(f"{name}: a PIL image of mode {given.mode}; convert it to one of {', '.join(PIL_MODES)}")
    if isinstance(given, Tensor):
        return (given.float() if given.dtype is torch.bfloat16 else given).detach().cpu().numpy()
    try:
        return given if np.ma.isMaskedArray(given) else np.asarray(given)
    except ValueError as error:  # lists of other lengths
        raise TypeError(f"{name}: must be an array ({error})") from None


def _in_kind(array: NDArray[Any], given: Any) -> Any:
    """A tensor or PIL image where one was given."""
    if isinstance(given, Tensor):
        return torch.from_numpy(np.ascontiguousarray(array)).to(given.device, given.dtype)
    return Pillow.fromarray(array) if isinstance(given, Pillow.Image) else array


def restored_constant(picture: Picture) -> Restored | None:
    """The restoration of a picture whose known values are all equal: that value everywhere; None for others."""
    known = picture.noisy if picture.known is None else picture.noisy[picture.known]
    if known.size == 0 or known.min() != known.max():
        return None
    shape = picture.noisy.shape
    return Restored(np.full(shape, known.flat[0]), np.zeros(shape))


def _read_mask(mask: Any) -> NDArray[Any]:
    array: NDArray[Any] = np.ma.filled(_as_array(mask, "mask"), 1)
    if array.dtype.kind not in "buifO":
        raise TypeError(f"mask: must hold numbers or Booleans, not {array.dtype}")
    return array


def _layout(array: NDArray[Any], channel_axis: int | None, axes: str | None) -> Layout:
    if axes is not None:
        if channel_axis is not None:
            raise ValueError("channel_axis and axes both say where the channels are; one of them is enough")
        if not isinstance(axes, str):
            raise TypeError(f"axes: must be letters, as in 'TYX', not {axes!r:.80}")
        return layout_of(axes, array.shape)
    if array.ndim != (2 if channel_axis is None else 3):
        raise ValueError(f"an image of {array.ndim} dimensions; must have 2, 3 with channel_axis, or axes for a stack")
    names = ["Y", "X"]
    if channel_axis is not None:
        if isinstance(channel_axis, bool) or not isinstance(channel_axis, (int, np.integer)):
            raise TypeError(f"channel_axis: must be a whole number, not {channel_axis!r:.80}")
        refuse(not -3 <= channel_axis < 3, f"channel_axis={channel_axis}: the image has axes 0 to 2")
        names.insert(channel_axis % 3, "C")
    return Layout("".join(names), array.shape)


def seed_of(rng: int | np.random.Generator | None) -> int:
    """A seed from 0 on; a generator gives another one each time."""
    if isinstance(rng, (int, np.integer)):
        refuse(rng < 0, f"rng={rng}: must be at least 0")
        return int(rng)
    if rng is not None and not isinstance(rng, (np.random.Generator, np.random.RandomState, np.random.BitGenerator)):
        raise TypeError(f"rng: must be a whole number, a numpy.random.Generator or None, not {rng!r:.80}")
    return int(np.random.default_rng(rng).integers(2**31))


def as_overrides(options: dict[str, Any]) -> list[str]:
    """Keyword arguments as the words of a command line; `TypeError` for an unknown name."""
    names = {name.rpartition(".")[2]: name for name in reversed(list(every_option()))}
    for key in options:
        if key not in names:
            raise TypeError(f"{key}: no such option{did_you_mean(key)}")
    return [f"{names[key]}={_typed(key, value)}" for key, value in options.items()]


def _typed(name: str, value: Any) -> str:
    """A value as it is typed on the command line."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, float, np.generic)):
        return "null" if value is None else str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_typed(name, each) for each in value)}]"
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name}: {value!r:.80} cannot be the value of an option")
    return QuotedString(escaped(str(value)), Quote.single).with_quotes()


_composing = threading.RLock()  # Hydra has one state for all threads
if hasattr(os, "register_at_fork"):  # not on Windows; a forked process is not without it while another thread composes
    os.register_at_fork(
        before=_composing.acquire, after_in_parent=_composing.release, after_in_child=_composing.release
    )


@contextmanager
def _apart() -> Iterator[None]:
    """Hide the state of Hydra: the call may be made inside a program that `hydra.main` runs."""
    with _composing:
        held = GlobalHydra.instance().hydra
        GlobalHydra.instance().hydra = None
        try:
            yield
        finally:
            GlobalHydra.instance().hydra = held


def compose_options(overrides: Sequence[str], options: dict[str, Any]) -> Config:
    """The configuration for an array, by overrides as on the command line and options as keywords."""
    given = [overrides] if isinstance(overrides, str) else overrides
    if not isinstance(given, (list, tuple)) or not all(isinstance(word, str) for word in given):
        raise TypeError(f"overrides: must be a list of words, as in ['epochs=10'], not {overrides!r:.80}")
    words = [*as_overrides(options), *given]
    names = {word: word.lstrip("+~").partition("=")[0] for word in words}
    refused = [word for word, name in names.items() if name.startswith(("hydra.", "hydra/")) or name in MEANINGLESS]
    if refused:
        raise UserError(*(f"{word}: has no meaning for an array" for word in refused))
    with _apart(), initialize_config_dir(conf_dir(), version_base="1.3"):
        register()
        try:
            config = resolve(compose("config", [*FOR_ARRAYS, *words]))
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(*composition_problems(words, error, FOR_ARRAYS)) from error
    for name in ("noise", "missing"):  # which an experiment may bring along
        value = getattr(config, name)
        refuse(value is not None, f"{name}={value}: has no meaning for an array")
    return config


def _unmasked(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """A masked array with its masked values filled, and the mask (None for other arrays)."""
    if not np.ma.isMaskedArray(array):
        return array, None
    is_floating = np.issubdtype(array.dtype, np.floating)
    return np.ma.filled(array, np.nan if is_floating else 0), np.ma.getmaskarray(array)


def _picture(image: Image, mask: NDArray[Any] | None) -> Picture:
    height, width = image.pixels.shape[:2]
    if mask is not None and image.n_pages > 1:
        page = height // image.n_pages, width
        is_of_pages = mask.shape in (page, (image.n_pages, *page))
        refuse(not is_of_pages, f"a mask of shape {mask.shape} for {image.n_pages} pages of {page}")
        mask = np.broadcast_to(mask, (image.n_pages, *page)).reshape(height, width)
    if mask is not None and mask.shape != (height, width):
        raise ValueError(f"a mask of shape {mask.shape} for an image of {(height, width)}")
    missing = np.zeros((height, width), dtype=bool) if mask is None else mask != 0
    if image.missing is not None:
        missing = missing | image.missing
    pixels = np.where(missing[..., None], 0, image.pixels)
    return Picture(image, pixels, missing=missing if missing.any() else None)
