"""The bytes of picture files, encoded through imageio, imagecodecs (16-bit PNG) and NumPy."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import imagecodecs
import imageio.v3 as iio
import numpy as np

from tvae.errors import UserError
from tvae.io.scale import Scale, encode_tiff


class Kind(NamedTuple):
    """Types and numbers of channels that a kind of file can hold."""

    dtypes: tuple[str, ...] | None  # None: all
    n_channels: tuple[int, ...] = (1, 2, 3, 4)


KINDS = {
    ".png": Kind(("uint8", "uint16")),
    ".tif": Kind(None),
    ".tiff": Kind(None),
    ".npy": Kind(None),
    ".jpg": Kind(("uint8",), (1, 3)),
    ".jpeg": Kind(("uint8",), (1, 3)),
    ".bmp": Kind(("uint8",), (1, 3)),
    ".webp": Kind(("uint8",), (1, 3, 4)),  # grey becomes RGB
    ".gif": Kind(("uint8",), (1, 3)),  # with 256 colours
}
JPEG_QUALITY = 95
OPTIONS: dict[str, dict[str, Any]] = {
    ".webp": {"lossless": True},
    ".jpg": {"quality": JPEG_QUALITY},
    ".jpeg": {"quality": JPEG_QUALITY},
}


def holds_type(ending: str, dtype: np.dtype) -> bool:
    dtypes = KINDS[ending].dtypes
    return dtypes is None or dtype.name in dtypes


def encode(array: np.ndarray, ending: str, scale: Scale | None = None, last_channel: str = "unassalpha") -> bytes:
    """The content of a file that holds (H, W) or (H, W, 1 to 4); its name's ending tells the format.

    `scale`: TIFF files hold it; `last_channel`: what they declare the last of 2 or 4 to be.
    """
    kind, n_channels = ending.lower(), array.shape[2] if array.ndim == 3 else 1
    if kind not in KINDS or not holds_type(kind, array.dtype) or n_channels not in KINDS[kind].n_channels:
        raise UserError(f"such a file cannot hold {array.dtype} pixels of shape {array.shape}")
    if kind in (".tif", ".tiff"):
        return encode_tiff(
            array,
            "YX" if array.ndim == 2 else "YXS",
            scale,
            photometric="rgb" if n_channels > 2 else "minisblack",
            planarconfig="contig" if n_channels > 1 else None,
            extrasamples=[last_channel] if n_channels in (2, 4) else None,
        )
    if kind == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        return buffer.getvalue()
    flat = array.reshape(array.shape[:2]) if n_channels == 1 else array
    if array.dtype == np.uint16:
        return bytes(imagecodecs.png_encode(np.ascontiguousarray(flat)))
    content: bytes = iio.imwrite("<bytes>", flat, plugin="pillow", extension=kind, **OPTIONS.get(kind, {}))
    return content
