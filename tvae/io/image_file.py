"""Image files: reading pictures into floating point, and writing a result in the form of its input.

Values keep their scale: 0..255 for 8 bit, 0..65535 for 16 bit (less if that is all a camera of 10, 12 or 14 bit has
used), whatever the file holds for other integers and for floating point, in which NaN marks a missing pixel. Palettes
and CMYK become RGB, 1 bit becomes 8 bit (0 and 255), and a photograph is turned upright as its orientation tag says.
Anything else is refused with a line that names the file.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tvae.errors import UserError, refuse
from tvae.io.atomic import write_atomically
from tvae.io.image_codec import decode
from tvae.io.image_encoding import KINDS, encode, holds_type
from tvae.io.layout import Layout
from tvae.io.regular import check_regular
from tvae.io.scale import Scale, read_scale

LEAST_RANGE = 1 / 255  # of a picture in 0..1; values of less are in units of their own, such as a physical flux
BITS = (8, 10, 12, 14, 16)  # that 16-bit files hold
WHOLE_MAX = 2.0**53  # integers above are not exact in double precision


@dataclass(frozen=True, eq=False)
class Image:
    """What a file holds, and what is needed to write a result in the same form."""

    pixels: np.ndarray  # (H, W, C) float64, C = 1 or 3; 0 where missing
    dtype: np.dtype
    peak: float  # 255, 65535; others: 1 if all values are in 0..1 and differ, else highest minus lowest value
    low: float = 0.0  # the value that is black
    is_bounded: bool = True  # all values are in 0..peak, by dtype or by convention
    is_2d: bool = True  # the file's array has no channel axis
    alpha: np.ndarray | None = None  # (H, W) of the file's dtype: kept as it is
    missing: np.ndarray | None = None  # (H, W) bool; None: nothing is missing
    scale: Scale | None = None  # where the file says
    layout: Layout | None = None  # of a stack, whose pages stand one above the other: each has H / n_pages rows

    @property
    def n_pages(self) -> int:
        return 1 if self.layout is None else self.layout.n_pages

    def holes(self) -> np.ndarray | None:
        """(H, W) bool: pixels that are fully transparent; None: there are none."""
        return None if self.alpha is None or self.alpha.all() else self.alpha == 0


def read_image(path: str | Path) -> Image:
    """The image in a file, or `UserError` with one line that names the file."""
    check_regular(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if not content:
        raise UserError(f"{path}: the file is empty")
    try:
        return replace(from_channels(decode(content)), scale=read_scale(io.BytesIO(content)))
    except UserError as refused:
        raise UserError(f"{path}: {refused}") from None
    except Exception as error:  # decoders raise almost anything on damaged files
        hidden = error.__cause__ if "`pillow`" in str(error) else None  # imageio wraps what Pillow raised
        reason = (str(hidden or error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: damaged or truncated image ({reason})") from error


def from_channels(array: np.ndarray) -> Image:
    """(H, W) or (H, W, C) as an image; the last of 2 or 4 channels is alpha."""
    if array.ndim == 3 and array.shape[2] in (2, 4):
        image = from_array(array[..., :-1])
        return replace(image, alpha=array[..., -1].astype(image.dtype))
    if array.ndim == 3 and array.shape[2] not in (1, 3):
        raise UserError(f"an array of shape {array.shape} is no grey or RGB picture")
    return from_array(array)


def from_array(array: np.ndarray) -> Image:
    """(H, W) or (H, W, C) of Booleans, integers or floating point as an image; `UserError` for any other."""
    dtype = array.dtype.newbyteorder("=")
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise UserError(f"pixels of type {dtype.name} are not read; Booleans, integers and floating point are")
    if array.size == 0 or array.ndim not in (2, 3):
        raise UserError(f"an array of shape {array.shape} is no picture")
    pixels = (array[..., None] if array.ndim == 2 else array).astype(np.float64)  # (H, W, C)
    is_2d = array.ndim == 2
    if dtype.kind == "b" or dtype.name in ("uint8", "uint16"):
        return Image(pixels, dtype, _peak(pixels, dtype), is_2d=is_2d)
    if np.isinf(pixels).any():
        raise UserError("holds infinite values (NaN marks missing pixels)")
    missing = np.any(np.isnan(pixels), axis=-1)
    if missing.all():
        raise UserError("all pixels are missing (NaN)")
    pixels[missing] = 0
    low, high = float(pixels[~missing].min()), float(pixels[~missing].max())
    if dtype.kind != "f" and max(-low, high) > WHOLE_MAX:
        raise UserError(
            f"holds integers of up to {max(-low, high):.3g}, which are too large to be exact; scale it down"
        )
    is_bounded = dtype.kind == "f" and low >= 0 and high <= 1 and (high - low > LEAST_RANGE or high == low)
    peak, low = (1.0, 0.0) if is_bounded else (high - low or 1.0, low)
    return Image(pixels, dtype, peak, low, is_bounded, is_2d, None, missing if missing.any() else None)


def _peak(pixels: np.ndarray, dtype: np.dtype) -> float:
    """White, by the type; of 16 bit by as many bits as are used."""
    if dtype.kind == "b":
        return 1.0
    highest = pixels.max()
    bits = (8,) if dtype.itemsize == 1 else BITS
    return next(2.0**n - 1 for n in bits if highest < 2**n)


def without_holes(image: Image) -> Image:
    """The same with opaque pixels in place of fully transparent ones."""
    if image.alpha is None:
        return image
    opaque = np.iinfo(image.dtype).max if image.dtype.kind == "u" else 1
    return replace(image, alpha=np.where(image.alpha == 0, opaque, image.alpha).astype(image.dtype))


def to_output(pixels: np.ndarray, image: Image) -> np.ndarray:
    """(H, W, C) float -> an array of the size, channels, dtype and range that `image` had in its file."""
    if image.dtype.kind != "f":
        pixels = np.rint(pixels)
    if image.is_bounded:
        pixels = pixels.clip(0, image.peak)
    elif image.dtype.kind != "f":
        limits = np.iinfo(image.dtype)
        pixels = pixels.clip(max(limits.min, -WHOLE_MAX), min(limits.max, WHOLE_MAX))
    array = pixels.astype(image.dtype)
    if image.alpha is not None:
        array = np.concatenate([array, image.alpha[..., None]], -1)
    if image.layout is not None:
        return image.layout.from_tall(array)
    return array[..., 0] if image.is_2d and image.alpha is None else array


def to_png(pixels: np.ndarray, image: Image) -> np.ndarray:
    """As `to_output`, but what a PNG file cannot hold becomes 8 bit, as on a screen."""
    return to_output(pixels, image) if holds_type(".png", image.dtype) else to_screen(pixels, image)


def to_screen(pixels: np.ndarray, image: Image) -> np.ndarray:
    """(H, W, C) float -> 8 bit, with `image`'s range as 0..255, without alpha."""
    shown = np.rint(((pixels - image.low) / image.peak * 255).clip(0, 255)).astype(np.uint8)
    return shown[..., 0] if shown.shape[-1] == 1 else shown


def in_kind(pixels: np.ndarray, image: Image, ending: str) -> np.ndarray:
    """(H, W, C) float -> what a file with this ending can hold of it: as `to_output`, else as `to_screen`."""
    is_exact = holds_type(ending, image.dtype)
    array = to_output(pixels, image) if is_exact else to_screen(pixels, image)
    n_channels = 1 if array.ndim == 2 else array.shape[2]
    is_held = n_channels in KINDS[ending].n_channels and (is_exact or image.alpha is None)
    refuse(not is_held, f"a {ending} file cannot hold this picture's alpha channel; a .tif file can")
    return array


def write_image(path: Path, array: np.ndarray) -> None:
    """Write (H, W) or (H, W, 1 to 4), whole or not at all; the name's ending tells the format."""
    try:
        content = encode(array, path.suffix)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    write_atomically(path, content)


def write_tiff(path: Path, pixels: np.ndarray) -> None:
    """Write (H, W) or (H, W, C) as float32 TIFF, neither rounded nor clipped, whole or not at all."""
    write_image(path, np.asarray(pixels, np.float32))
