"""The pictures that a restoration leaves in the run directory: one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tvae.data.image_encoding import holds_type
from tvae.data.image_file import to_output, to_png, write_image
from tvae.data.picture import Picture
from tvae.restore.restoration import Restored


def _restored_as_it_was(picture: Picture, restored: Restored) -> np.ndarray | None:
    """Floating point, and whatever else a PNG cannot hold."""
    return None if holds_type(".png", picture.image.dtype) else to_output(restored.pixels, picture.image)


def _shown_uncertainty(picture: Picture, restored: Restored) -> np.ndarray:
    shown = restored.uncertainty.mean(-1)
    return (255 * shown / uncertainty_scale(restored)).round().astype("uint8")


def uncertainty_scale(restored: Restored) -> float:
    """What white stands for in uncertainty.png."""
    return float(restored.uncertainty.mean(-1).max()) or 1.0


# File name -> its pixels; None: this picture has no such file.
OUTPUT_PICTURES: dict[str, Callable[[Picture, Restored], np.ndarray | None]] = {
    "input.png": lambda picture, restored: to_png(picture.noisy, picture.image),
    "restored.png": lambda picture, restored: to_png(restored.pixels, picture.image),
    "restored.tiff": _restored_as_it_was,
    "uncertainty.png": _shown_uncertainty,
    "uncertainty.tiff": lambda picture, restored: restored.uncertainty.astype(np.float32),
}


def write_pictures(directory: Path, picture: Picture, restored: Restored) -> None:
    for name, pixels_of in OUTPUT_PICTURES.items():
        pixels = pixels_of(picture, restored)
        if pixels is not None:
            write_image(directory / name, pixels)


def as_shown(picture: Picture, restored: Restored) -> np.ndarray:
    """(H, W, 1 or 3) in [0, 1]: the restored picture on a screen."""
    array = to_png(restored.pixels, picture.image)
    return (array[..., None] if array.ndim == 2 else array[..., :3]) / np.iinfo(array.dtype).max
