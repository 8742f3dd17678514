"""Restoration as a Python call: an array in, an array of the same kind out, nothing written to disk.

    import tvae
    restored = tvae.denoise(image)
    filled, uncertainty = tvae.inpaint(image, mask, return_uncertainty=True)

The commands do the same with files, and keep a record of it in a run directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from tvae.arguments import ImageT, compose_options, opened, restored_constant, seed_of
from tvae.data.picture import Picture, check_content, check_missing
from tvae.errors import refuse
from tvae.restoration.posterior_mean import Restored
from tvae.runs.session import train_in_memory


@overload
def denoise(
    image: ImageT,
    *,
    channel_axis: int | None = None,
    axes: str | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    return_uncertainty: Literal[False] = False,
    **options: Any,
) -> ImageT: ...


@overload
def denoise(
    image: ImageT,
    *,
    channel_axis: int | None = None,
    axes: str | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    return_uncertainty: Literal[True],
    **options: Any,
) -> tuple[ImageT, NDArray[np.float64]]: ...


def denoise(
    image: ImageT,
    *,
    channel_axis: int | None = None,
    axes: str | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    return_uncertainty: bool = False,
    **options: Any,
) -> ImageT | tuple[ImageT, NDArray[np.float64]]:
    """Remove noise of unknown strength from an image, learning from that image alone.

    `image` (M, N), with `channel_axis` (M, N, C), or with `axes`, as in "TYX", a stack, which has one model for all its
    pages: Booleans, integers or floating point; it is not modified. Pixels that are NaN, or masked in a masked array,
    are missing and are filled in. `rng`: seed or generator of all that is random, None for another result each time.
    `options` are those of the command line by the last part of their names, `epochs=10, patch_size=12, effort="fast"`;
    `overrides` as they are typed there, `["dataset.patch_size=12"]`; those that an array cannot honour are refused.
    Returns an array of the same shape, dtype and range; with `return_uncertainty` also the stated standard
    deviation of the error, floating point in the image's units. Of a torch tensor a tensor is returned, of a PIL image
    (grey or RGB) a PIL image; the uncertainty is an array. An image of one value everywhere comes back as it is.
    """
    picture, back = opened(image, None, channel_axis, axes)
    return back(_restored("denoise", picture, rng, overrides, options), return_uncertainty)


@overload
def inpaint(
    image: ImageT,
    mask: Any = None,
    *,
    channel_axis: int | None = None,
    axes: str | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    return_uncertainty: Literal[False] = False,
    **options: Any,
) -> ImageT: ...


@overload
def inpaint(
    image: ImageT,
    mask: Any = None,
    *,
    channel_axis: int | None = None,
    axes: str | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    return_uncertainty: Literal[True],
    **options: Any,
) -> tuple[ImageT, NDArray[np.float64]]: ...


def inpaint(
    image: ImageT,
    mask: Any = None,
    *,
    channel_axis: int | None = None,
    axes: str | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    return_uncertainty: bool = False,
    **options: Any,
) -> ImageT | tuple[ImageT, NDArray[np.float64]]:
    """Fill in the pixels of an image where `mask` (M, N) is nonzero, learning from the others, which stay as they are.

    The mask of a stack is (M, N) or (T, M, N). Pixels that are NaN, or masked in a masked array, are missing as well;
    that none is missing is a mistake. With `overrides=["keep_known=false"]` known pixels are denoised. The rest is as
    in `denoise`.
    """
    picture, back = opened(image, mask, channel_axis, axes)
    return back(_restored("inpaint", picture, rng, overrides, options), return_uncertainty)


def _restored(
    task: str,
    picture: Picture,
    rng: int | np.random.Generator | None,
    overrides: Sequence[str],
    options: dict[str, Any],
) -> Restored:
    config = compose_options(overrides, options)
    refuse(task == "denoise" and config.keep_known is True, "keep_known=true: is for inpaint")
    config.task, config.seed = task, seed_of(rng)
    if task == "inpaint":
        check_missing(picture.missing, "the image")
    constant = restored_constant(picture)
    if constant is not None:
        return constant
    check_content(picture.noisy, picture.missing, "the image")
    return train_in_memory(config, picture)
