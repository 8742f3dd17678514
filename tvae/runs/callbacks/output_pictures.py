"""The pictures that a restoration leaves in the run directory: one table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tvae.data.picture import Picture
from tvae.io.image_file import Image, holds_exactly, stretched, to_output, to_png, to_screen
from tvae.io.stack_file import write_picture
from tvae.restoration.posterior_mean import Restored, first_page


def _restored_as_it_was(picture: Picture, restored: Restored) -> np.ndarray | None:
    """The result in the form of the input, for pictures that a PNG file cannot hold."""
    return None if is_png(picture.image) else to_output(restored.pixels, picture.image)


def is_png(image: Image) -> bool:
    """True if a PNG file can hold all values of the image."""
    return image.layout is None and holds_exactly(".png", image)


def _preview(picture: Picture, restored: Restored) -> np.ndarray | None:
    """A version in 8 bit for pictures that most programs would show too dark."""
    return to_screen(restored.pixels, stretched(picture.image)) if picture.image.dtype.itemsize > 1 else None


def _shown_uncertainty(picture: Picture, restored: Restored) -> np.ndarray:
    shown = restored.uncertainty.mean(-1)
    return (255 * shown / uncertainty_scale(restored)).round().astype("uint8")


def uncertainty_scale(restored: Restored) -> float:
    """The uncertainty that is white in uncertainty.png."""
    return float(restored.uncertainty.mean(-1).max()) or 1.0


def _uncertainty_as_it_is(picture: Picture, restored: Restored) -> np.ndarray:
    values, layout = restored.uncertainty.astype(np.float32), picture.image.layout
    if layout is None:
        return values[..., 0] if values.shape[2] == 1 else values
    return layout.with_channels(values.shape[2]).from_tall(values)


# File name -> its pixels, of stacks in PNG files those of the first page; None: this picture has no such file.
OUTPUT_PICTURES: dict[str, Callable[[Picture, Restored], np.ndarray | None]] = {
    "input.png": lambda picture, restored: to_png(picture.noisy, picture.image),
    "restored.png": lambda picture, restored: to_png(restored.pixels, picture.image),
    "restored.tiff": _restored_as_it_was,
    "restored_preview.png": _preview,
    "uncertainty.png": _shown_uncertainty,
    "uncertainty.tiff": _uncertainty_as_it_is,
}


def write_pictures(directory: Path, picture: Picture, restored: Restored) -> dict[str, str]:
    """Write the pictures of the table; returns the SHA-256 of each file."""
    written = {}
    for name, pixels_of in OUTPUT_PICTURES.items():
        is_whole = name.endswith(".tiff")
        pixels = pixels_of(*((picture, restored) if is_whole else first_page(picture, restored)))
        if pixels is not None:
            layout = picture.image.layout if is_whole else None
            if layout is not None and "uncertainty" in name:
                layout = layout.with_channels(picture.noisy.shape[2])
            last_channel = "unspecified" if "uncertainty" in name else picture.image.last_channel
            write_picture(directory / name, pixels, layout, picture.image.scale, last_channel)
            written[name] = hashlib.sha256((directory / name).read_bytes()).hexdigest()
    return written


def changed_pictures(directory: Path, written: Any) -> list[Path]:
    """Pictures that are no longer as `write_pictures` has left them; `written`: what it returned, if known."""
    known = written if isinstance(written, dict) else {}
    files = [(directory / name, known.get(name)) for name in OUTPUT_PICTURES if (directory / name).is_file()]
    return [file for file, expected in files if expected not in (None, hashlib.sha256(file.read_bytes()).hexdigest())]


def as_shown(picture: Picture, pixels: np.ndarray) -> np.ndarray:
    """(h, W, 1 or 3) in [0, 1]: pixels (H, W, C) of the picture, the first page of a stack, on a screen."""
    array = to_screen(pixels[: picture.page_height], stretched(picture.image))
    return (array[..., None] if array.ndim == 2 else array) / 255
