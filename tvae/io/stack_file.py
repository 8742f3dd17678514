"""Files that hold one picture or a stack of them: multi-page TIFF, animated GIF, PNG or WebP, and NumPy arrays."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import tifffile

from tvae.errors import UserError, refuse
from tvae.io.atomic import check_regular, write_atomically
from tvae.io.formats import (
    NPY_SIGNATURE,
    ORIENTATION,
    TIFF_SIGNATURES,
    alpha_of_page,
    check_whole,
    encode,
    in_colours,
    silenced,
    upright,
)
from tvae.io.image_file import Image, from_channels, read_image, refuse_channels, what_is_damaged
from tvae.io.layout import CHANNELS, CHANNELS_AS_PAGES, Layout, layout_of, parse_pages
from tvae.io.scale import Scale, encode_tiff, read_scale

ANIMATED = (b"GIF8", b"\x89PNG", b"RIFF")  # files of one or many pictures of 8 bit
FRAMES = (".gif", ".png", ".webp")
Stack = tuple[np.ndarray, Layout, str | None]  # with the alpha that its last channel is declared to be
SECONDS_MAX = 60.0  # that a frame can last in each of them, and a little less than PNG has


def read_picture(path: str | Path, axes: str | None = None, pages: str | None = None) -> Image:
    """The picture or the stack in a file; `axes` where the file does not say, `pages` of a stack to take."""
    check_regular(path)
    found = _read_stack(Path(path), axes)
    if found is None:
        refuse(axes is not None, f"axes={axes}: {path} holds one picture, of rows and columns")
        refuse(pages is not None, f"pages={pages}: {path} holds one picture")
        return read_image(path)
    with silenced("tifffile"):
        scale = read_scale(path) or _interval(path)
    if scale is not None and (axes is not None or pages is not None):
        scale = scale.of_some_pages()
    array, layout, alpha = found
    return replace(to_image(array, layout, pages, str(path), alpha), scale=scale)


def to_image(
    array: np.ndarray,
    layout: Layout,
    pages: str | None = None,
    source: str = "the image",
    alpha: str | None = None,
) -> Image:
    """An array of this layout as an image of its pages, or of some; `alpha`: see `from_channels`."""
    refuse(array.size == 0, f"{source}: an array of shape {array.shape} is not a picture")
    if not layout.page_axes:
        refuse(pages is not None, f"pages={pages}: {source} holds one picture")
    elif pages is not None:
        numbers = parse_pages(pages, layout.n_pages)
        array, whole = layout.to_pages(array)[numbers], layout
        layout = whole.chosen(numbers)
        array = layout.from_tall(array.reshape(-1, *array.shape[2:]))
    try:
        image = from_channels(layout.to_tall(array), alpha)
    except UserError as refused:
        raise UserError(*(f"{source}: {line}" for line in refused.args)) from None
    return replace(image, layout=layout)


def _read_stack(path: Path, axes: str | None) -> Stack | None:
    """The content of a stack, or of a file whose axes the user names; None: it is for `read_image`."""
    try:
        with open(path, "rb") as file:
            begin = file.read(8)
        if begin.startswith(TIFF_SIGNATURES):
            with silenced("tifffile", "imagecodecs"):
                return _read_tiff(path, axes)
        if begin.startswith(NPY_SIGNATURE):
            return _read_npy(path, axes)
        if begin.startswith(ANIMATED):
            return _read_frames(path, axes)
    except UserError as refused:
        raise UserError(f"{path}: {refused}") from None
    except Exception:  # whatever is wrong with it, `read_image` says
        return None
    return None


def _read_tiff(path: Path, axes: str | None) -> Stack | None:
    with tifffile.TiffFile(path) as file:
        series = [each for each in file.series if not each.keyframe.is_reduced]
        first = series[0]
        is_one = first.axes in ("YX", "YXQ", "YXS") or (first.axes == "QYX" and first.shape[-1] in (2, 3, 4))
        if len(series) == 1 and is_one and axes is None:
            return None
        refuse(len(series) > 1, f"holds {len(series)} pictures or stacks of different sizes; save one of them")
        check_whole(file)
        page = first.keyframe
        with _telling_damage():
            array = first.asarray()
        layout = layout_of(axes, array.shape) if axes is not None else _named_by_file(first.axes, array.shape)
    orientation = page.tags.valueof(ORIENTATION)
    pages = np.stack([upright(in_colours(each, page), orientation) for each in layout.to_pages(array)])
    refuse_channels(pages.shape[3:], array.shape)
    layout = layout.with_channels(pages.shape[3] if pages.ndim == 4 else 1).with_sides(*pages.shape[1:3])
    return layout.from_tall(pages.reshape(-1, *pages.shape[2:])), layout, alpha_of_page(page)


@contextmanager
def _telling_damage() -> Iterator[None]:
    """Turn whatever a decoder raises on a stack into a `UserError`."""
    try:
        yield
    except Exception as error:
        raise UserError(what_is_damaged(error)) from error


def _named_by_file(axes: str, shape: tuple[int, ...]) -> Layout:
    """Channels that are neither grey nor colours are pages."""
    named = Layout(axes, shape)
    channels = dict(zip(axes, shape, strict=True))
    if channels.get("C", 1) not in (1, 3) or ("C" in channels and "S" in channels):
        named = Layout(axes.replace("C", next(letter for letter in CHANNELS_AS_PAGES if letter not in axes)), shape)
    return named


def _read_npy(path: Path, axes: str | None) -> Stack | None:
    array = np.load(path, allow_pickle=False)
    if axes is not None:
        return array, layout_of(axes, array.shape), None
    if array.ndim < 3 or (array.ndim == 3 and array.shape[2] in (1, 2, 3, 4)):
        return None
    return array, layout_of("TYX" if array.ndim == 3 else "TYXC", array.shape), None


def _read_frames(path: Path, axes: str | None) -> Stack | None:
    n_frames = iio.improps(path, plugin="pillow", index=...).n_images or 1  # type: ignore[arg-type]
    if n_frames == 1:
        return None
    refuse(axes is not None, f"axes={axes}: an animated file has its frames first")
    with _telling_damage():
        array = iio.imread(path, plugin="pillow", index=...)  # type: ignore[arg-type]
    metadata = iio.immeta(path, plugin="pillow", index=0, exclude_applied=False)
    array = np.stack([upright(frame, metadata.get("Orientation")) for frame in array])
    has_palette = metadata["mode"] in ("P", "L")
    if has_palette and array.shape[3:] == (3,) and (np.ptp(array, axis=3) == 0).all():  # a palette of greys
        array = array[..., 0]
    return array, Layout("TYX" if array.ndim == 3 else "TYXC", array.shape), "unassalpha"


def _interval(path: str | Path) -> Scale | None:
    """The interval of an animated file's frames, from the first one, as ImageJ notes it."""
    with suppress(Exception):  # frames without an interval can be used
        milliseconds = float(iio.immeta(path, plugin="pillow", index=0)["duration"])
        return Scale(program="imagej", notes={"finterval": milliseconds / 1000}) if milliseconds > 0 else None
    return None


def write_picture(
    path: Path, array: np.ndarray, layout: Layout | None, scale: Scale | None = None, last_channel: str = "unassalpha"
) -> None:
    """Write a picture, or with a layout a stack, whole or not at all; the name's ending tells the format."""
    write_atomically(path, encode_picture(array, layout, path.suffix, scale, last_channel))


def encode_picture(
    array: np.ndarray, layout: Layout | None, ending: str, scale: Scale | None = None, last_channel: str = "unassalpha"
) -> bytes:
    """The content of such a file; `last_channel`: see `encode`."""
    if layout is None:
        return encode(array, ending, scale, last_channel)
    kind = ending.lower()
    buffer = io.BytesIO()
    if kind == ".npy":
        np.save(buffer, array, allow_pickle=False)
        return buffer.getvalue()
    if kind in (".tif", ".tiff"):
        place = -1 if layout.axes[-1] in CHANNELS else -3 if layout.axes.endswith("SYX") else None
        n_channels = 1 if place is None else array.shape[place]  # else they are pages
        return encode_tiff(
            np.ascontiguousarray(array),
            layout.axes if place is None else layout.axes.replace("C", "S"),
            scale,
            photometric="rgb" if n_channels in (3, 4) else "minisblack",
            planarconfig={-1: "contig", -3: "separate", None: None}[place if n_channels > 1 else None],
            extrasamples=[last_channel] if n_channels in (2, 4) else None,
        )
    pages = layout.to_pages(array)
    refuse(kind not in FRAMES or array.dtype != np.uint8, f"a {ending} file cannot hold a stack of {array.dtype} pages")
    seconds = None if scale is None else scale.notes.get("finterval")
    timing: dict[str, Any] = {}
    if isinstance(seconds, (int, float)) and 0 < seconds < math.inf:
        timing = {"duration": max(1, round(1000 * min(seconds, SECONDS_MAX))), "loop": 0}
    content: bytes = iio.imwrite("<bytes>", pages, plugin="pillow", extension=kind, is_batch=True, **timing)
    return content
