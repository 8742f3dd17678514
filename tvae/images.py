"""Image files: reading PNG, JPEG and TIFF into floating point, and writing a result as its input was.

Values keep their scale: 0..255 for 8 bit, 0..65535 for 16 bit, whatever the file holds for floating point, in which
NaN marks a missing pixel. Palettes become colours, 1 bit becomes 8 bit (0 and 255), and a photograph is turned upright
as its orientation tag says. Anything else is refused with a line that names the file.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError

from tvae import png16
from tvae.atomic import write_atomically
from tvae.config import UserError

TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
DTYPES = ("uint8", "uint16", "float16", "float32", "float64")
JPEG_QUALITY = 95
BITS_PER_SAMPLE = 258  # a TIFF tag
# Pillow's modes that are converted, without and with a transparent colour
OPAQUE = {"1": "L", "P": "RGB", "PA": "RGBA"}
TRANSPARENT = {"1": "L", "L": "LA", "P": "RGBA", "PA": "RGBA", "RGB": "RGBA"}


@dataclass(frozen=True, eq=False)
class Image:
    """What a file holds, and what is needed to write a result in the same form."""

    pixels: np.ndarray  # (H, W, C) float64, C = 1 or 3; 0 where missing
    dtype: np.dtype
    peak: float  # 255, 65535; floating point: 1 if all values are in 0..1, else highest minus lowest value
    low: float = 0.0  # the value that is black
    is_bounded: bool = True  # all values are in 0..peak, by dtype or by convention
    is_2d: bool = True  # the file's array has no channel axis
    alpha: np.ndarray | None = None  # (H, W) of the file's dtype: kept as it is
    missing: np.ndarray | None = None  # (H, W) bool; None: nothing is missing


class _Refused(ValueError):
    """A file that is fine, but nothing this program restores."""


def read_image(path: str | Path) -> Image:
    """The image in a file, or `UserError` with one line that names the file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if not content:
        raise UserError(f"{path}: the file is empty")
    try:
        return _as_image(_decode_tiff(content) if content.startswith(TIFF_SIGNATURES) else _decode(content))
    except _Refused as refused:
        raise UserError(f"{path}: {refused}") from None
    except UnidentifiedImageError as error:
        raise UserError(f"{path}: not a PNG, JPEG or TIFF image") from error
    except Exception as error:  # decoders raise almost anything on damaged files
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: damaged or truncated image ({reason})") from error


def _decode(content: bytes, kinds: tuple[str, ...] = ("PNG", "JPEG")) -> np.ndarray:
    """(H, W) or (H, W, C) as Pillow reads it."""
    with Pillow.open(io.BytesIO(content), formats=kinds) as file:
        if file.format != "MPO":  # a photograph with previews behind it
            _refuse_many(getattr(file, "n_frames", 1))
        if png16.is_deep(file):
            return png16.decode(content)
        if file.format == "TIFF" and file.mode.startswith("RGB") and max(file.getexif().get(BITS_PER_SAMPLE, (8,))) > 8:
            raise _Refused("this compression of 16-bit colour cannot be read; save it uncompressed")
        picture = ImageOps.exif_transpose(file)
        wanted = TRANSPARENT if "transparency" in picture.info else OPAQUE
        if picture.mode in wanted:
            picture = picture.convert(wanted[picture.mode])
        if picture.mode == "I" and file.format == "PNG":  # 16-bit grey, in some versions of Pillow
            return np.array(picture).astype(np.uint16)
        if picture.mode not in ("L", "LA", "RGB", "RGBA", "F") and not picture.mode.startswith("I;16"):
            raise _Refused(f"colours of kind {picture.mode} are not read; convert it to grey or RGB")
        return np.array(picture)


def _decode_tiff(content: bytes) -> np.ndarray:
    """(H, W) or (H, W, C) of the only picture in a TIFF file."""
    try:
        with _quiet_tifffile(), tifffile.TiffFile(io.BytesIO(content)) as file:
            pictures = [series for series in file.series if not series.keyframe.is_reduced]  # without thumbnails
            if not pictures:
                raise ValueError("no picture in it")
            array, axes = pictures[0].asarray(), pictures[0].axes
            photometric = tifffile.PHOTOMETRIC(pictures[0].keyframe.photometric).name
            n_pages = sum(len(series.pages) for series in pictures)
    except ValueError as error:
        if "imagecodecs" in str(error):  # a compression tifffile needs another package for
            return _decode(content, ("TIFF",))
        raise
    if axes == "QYX" and len(pictures) == 1 and array.shape[-1] in (2, 3, 4):
        n_pages = 1  # an (H, W, C) array, stored as H pages of W x C pixels with a note of its true shape
    _refuse_many(n_pages if axes in ("YX", "YXQ", "YXS", "SYX", "QYX") else max(n_pages, len(array)))
    if photometric == "PALETTE":
        return _decode(content, ("TIFF",))
    if photometric not in ("MINISBLACK", "MINISWHITE", "RGB"):
        raise _Refused(f"colours of kind {photometric} are not read; convert it to grey or RGB")
    if photometric == "MINISWHITE" and array.dtype.kind == "u":
        array = np.iinfo(array.dtype).max - array
    return np.moveaxis(array, 0, -1) if axes == "SYX" else array


def _refuse_many(n_pictures: int) -> None:
    if n_pictures > 1:
        raise _Refused(f"holds {n_pictures} pictures, where one is wanted")


@contextmanager
def _quiet_tifffile() -> Iterator[None]:
    """Within, tifffile does not log what it finds wrong with a file: an exception says it."""
    logger = logging.getLogger("tifffile")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _as_image(array: np.ndarray) -> Image:
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    if array.ndim == 3 and array.shape[2] in (2, 4):
        picture = from_array(array[..., :-1])
        return replace(picture, alpha=array[..., -1].astype(picture.dtype), is_2d=False)
    if array.ndim == 3 and array.shape[2] not in (1, 3):
        raise _Refused(f"an array of shape {array.shape} is no grey or RGB picture")
    return from_array(array)


def from_array(array: np.ndarray) -> Image:
    """(H, W) or (H, W, C), unsigned 8 or 16 bit or floating point, as an image; `ValueError` for any other."""
    dtype = array.dtype.newbyteorder("=")
    if dtype.name not in DTYPES:
        raise _Refused(f"pixels of type {dtype.name} are not read; 8 or 16 bit unsigned, or floating point, are")
    if array.size == 0 or array.ndim not in (2, 3):
        raise _Refused(f"an array of shape {array.shape} is no picture")
    pixels = (array[..., None] if array.ndim == 2 else array).astype(np.float64)  # (H, W, C)
    if dtype.kind == "u":
        return Image(pixels, dtype, float(np.iinfo(dtype).max), is_2d=array.ndim == 2)
    if np.isinf(pixels).any():
        raise _Refused("holds infinite values (NaN marks missing pixels)")
    missing = np.any(np.isnan(pixels), axis=-1)
    if missing.all():
        raise _Refused("all pixels are missing (NaN)")
    pixels[missing] = 0
    low, high = float(pixels[~missing].min()), float(pixels[~missing].max())
    is_bounded = low >= 0 and high <= 1
    peak, low = (1.0, 0.0) if is_bounded else (high - low or 1.0, low)
    return Image(pixels, dtype, peak, low, is_bounded, array.ndim == 2, None, missing if missing.any() else None)


def to_output(pixels: np.ndarray, image: Image) -> np.ndarray:
    """(H, W, C) float -> an array of the size, channels, dtype and range that `image` had in its file."""
    if image.dtype.kind == "u":
        pixels = np.rint(pixels)
    array = (pixels.clip(0, image.peak) if image.is_bounded else pixels).astype(image.dtype)
    if image.alpha is not None:
        return np.concatenate([array, image.alpha[..., None]], -1)
    return array[..., 0] if image.is_2d else array


def to_png(pixels: np.ndarray, image: Image) -> np.ndarray:
    """As `to_output`, but floating point becomes 8 bit, with `image`'s range as 0..255: what a PNG file can hold."""
    if image.dtype.kind == "u":
        return to_output(pixels, image)
    shown = np.rint(((pixels - image.low) / image.peak * 255).clip(0, 255)).astype(np.uint8)
    return shown[..., 0] if shown.shape[-1] == 1 else shown


def write_image(path: Path, array: np.ndarray) -> None:
    """Write (H, W) or (H, W, 1 to 4), whole or not at all; the name's ending says whether PNG, JPEG or TIFF."""
    kind = path.suffix.lower()
    flat = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    buffer = io.BytesIO()
    if kind in (".tif", ".tiff"):
        _write_tiff(buffer, array)
    elif kind == ".png" and array.dtype == np.uint16:
        buffer.write(png16.encode(array))
    elif kind == ".png" and array.dtype == np.uint8:
        Pillow.fromarray(flat).save(buffer, "PNG")
    elif kind in (".jpg", ".jpeg") and array.dtype == np.uint8 and (flat.ndim == 2 or flat.shape[2] == 3):
        Pillow.fromarray(flat).save(buffer, "JPEG", quality=JPEG_QUALITY)
    else:
        raise UserError(f"{path}: such a file cannot hold {array.dtype} pixels of shape {array.shape}")
    write_atomically(path, buffer.getvalue())


def write_tiff(path: Path, pixels: np.ndarray) -> None:
    """Write (H, W) or (H, W, C) as float32 TIFF, neither rounded nor clipped, whole or not at all."""
    buffer = io.BytesIO()
    _write_tiff(buffer, np.asarray(pixels, np.float32))
    write_atomically(path, buffer.getvalue())


def _write_tiff(buffer: io.BytesIO, array: np.ndarray) -> None:
    n_channels = array.shape[2] if array.ndim == 3 else 1
    tifffile.imwrite(
        buffer,
        array,
        photometric="rgb" if n_channels > 2 else "minisblack",
        planarconfig="contig" if n_channels > 1 else None,
        extrasamples=["unassalpha"] if n_channels in (2, 4) else None,
    )
