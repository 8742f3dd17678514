"""Image files: reading pictures into floating point, and writing a result in the form of its input.

Where all channels of a picture are equal, as in a grey one stored as RGB, it is read as grey and written with as many.
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
from tvae.io.atomic import check_regular, write_atomically
from tvae.io.formats import FORMATS, alpha_of, decode, encode, silenced
from tvae.io.layout import Layout
from tvae.io.scale import Scale, read_scale

LEAST_RANGE = 1 / 255  # of a picture in 0..1; values of less are in units of their own, such as a physical flux
CHANNELS_MAX = 4
STRETCHED = (0.2, 99.8)  # percentiles that become black and white on a screen
BITS = (8, 10, 12, 14, 16)  # that 16-bit files hold
WHOLE_MAX = 2.0**53  # integers above are not exact in double precision


@dataclass(frozen=True, eq=False)
class Image:
    """The content of a file, and what is needed to write a result in the same form."""

    pixels: np.ndarray  # (H, W, C) float64; 0 where missing
    dtype: np.dtype
    peak: float  # 255, 65535; others: 1 if all values are in 0..1 and differ, else highest minus lowest value
    low: float = 0.0  # the value that is black
    is_bounded: bool = True  # all values are in 0..peak, by dtype or by convention
    is_2d: bool = True  # the file's array has no channel axis
    n_equal: int = 1  # channels of the file, one of which `pixels` holds
    alpha: np.ndarray | None = None  # (H, W) of the file's dtype: kept as it is
    alpha_kind: str = "unassalpha"  # as TIFF files call it; assocalpha: colours are multiplied by it
    missing: np.ndarray | None = None  # (H, W) bool; None: nothing is missing
    scale: Scale | None = None  # where the file says
    layout: Layout | None = None  # of a stack, whose pages stand one above the other: each has H / n_pages rows

    @property
    def n_pages(self) -> int:
        return 1 if self.layout is None else self.layout.n_pages

    @property
    def n_channels(self) -> int:
        """Channels of the file without alpha."""
        return self.pixels.shape[2] * self.n_equal

    @property
    def last_channel(self) -> str:
        """The last of 2 or 4 channels, in the words of TIFF."""
        return "unspecified" if self.alpha is None else self.alpha_kind

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
        array = decode(content)
        refuse_channels(array.shape[2:], array.shape)
        with silenced("tifffile"):
            scale = read_scale(io.BytesIO(content))
        return replace(from_channels(array, alpha_of(content)), scale=scale)
    except UserError as refused:
        raise UserError(f"{path}: {refused}") from None
    except Exception as error:  # decoders raise almost anything on damaged files
        raise UserError(f"{path}: {what_is_damaged(error)}") from error


def what_is_damaged(error: Exception) -> str:
    """A message about a file whose decoder has raised this."""
    hidden = error.__cause__ if "`pillow`" in str(error) else None  # imageio wraps what Pillow raised
    reason = (str(hidden or error).splitlines() or [type(error).__name__])[0]
    return f"damaged or truncated image ({reason})"


def refuse_channels(channels: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raise `UserError` for too many channels; `channels`: (C,), or () where they have no axis."""
    refuse(max(channels, default=1) > CHANNELS_MAX, f"shape {shape}: at most {CHANNELS_MAX} channels are read")


def from_channels(array: np.ndarray, alpha: str | None) -> Image:
    """(H, W) or (H, W, C) as an image; `alpha`: how the last of 2 or 4 channels is declared as such, if it is."""
    if array.ndim == 3 and array.shape[2] in (2, 4) and alpha is not None:
        image = without_copies(from_array(array[..., :-1]))
        return replace(image, alpha=array[..., -1].astype(image.dtype), alpha_kind=alpha)
    return without_copies(from_array(array))


def without_copies(image: Image) -> Image:
    """The same with one channel, where all of them are equal."""
    first, n_channels = image.pixels[..., :1], image.pixels.shape[2]
    if n_channels == 1 or not all(np.array_equal(first[..., 0], image.pixels[..., i]) for i in range(1, n_channels)):
        return image
    return replace(image, pixels=first.copy(), n_equal=n_channels)


def from_array(array: np.ndarray) -> Image:
    """(H, W) or (H, W, C) of Booleans, integers or floating point as an image; `UserError` for any other."""
    dtype = array.dtype.newbyteorder("=")
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise UserError(f"pixels of type {dtype.name} are not read; Booleans, integers and floating point are")
    if array.size == 0 or array.ndim not in (2, 3):
        raise UserError(f"an array of shape {array.shape} is not a picture")
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
    return Image(pixels, dtype, peak, low, is_bounded, is_2d, missing=missing if missing.any() else None)


def _peak(pixels: np.ndarray, dtype: np.dtype) -> float:
    """The value of white: by the type, for 16 bit by the bits in use."""
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
    """(H, W, C) or (H, W, 1) float -> an array of the size, channels, dtype and range that `image` had in its file."""
    if image.dtype.kind != "f":
        pixels = np.rint(pixels)
    if image.alpha is not None and image.alpha_kind == "assocalpha":
        pixels = pixels.clip(max=np.maximum(image.alpha[..., None], image.pixels))  # no more light than it lets through
    if image.is_bounded:
        pixels = pixels.clip(0, image.peak)
    elif image.dtype.kind != "f":
        limits = np.iinfo(image.dtype)
        pixels = pixels.clip(max(limits.min, -WHOLE_MAX), min(limits.max, WHOLE_MAX))
    array = pixels.astype(image.dtype)
    if array.shape[2] != image.n_channels:  # all are equal
        array = np.repeat(array, image.n_channels, axis=2)
    if image.alpha is not None:
        array = np.concatenate([array, image.alpha[..., None]], -1)
    if image.layout is not None:
        return image.layout.from_tall(array)
    return array[..., 0] if image.is_2d and image.alpha is None else array


def holds_exactly(ending: str, image: Image) -> bool:
    """True if a file with this ending can hold one page exactly; 2 or 4 channels without alpha only some can."""
    kind, n_channels = FORMATS[ending], image.n_channels + (image.alpha is not None)
    is_plain = image.alpha is not None or n_channels in (1, 3) or kind.dtypes is None
    return kind.holds_type(image.dtype) and is_plain and n_channels in kind.n_channels


def to_png(pixels: np.ndarray, image: Image) -> np.ndarray:
    """The result of `to_output`, or as 8 bit for a screen what a PNG file cannot hold."""
    return to_output(pixels, image) if holds_exactly(".png", image) else to_screen(pixels, image)


def visible(pixels: np.ndarray) -> np.ndarray:
    """(..., C) -> grey (..., 1) or RGB (..., 3): the mean of two channels, the first three of more."""
    return pixels.mean(-1, keepdims=True) if pixels.shape[-1] == 2 else pixels[..., :3]


def stretched(image: Image) -> Image:
    """The same with black and white where its values lie, if they take up less than half of its range.

    Percentiles: a few hot pixels do not make the rest dark.
    """
    known = image.pixels if image.missing is None else image.pixels[~image.missing]
    low, high = (float(value) for value in np.percentile(known, STRETCHED))
    return replace(image, low=low, peak=high - low) if 0 < high - low < image.peak / 2 else image


def to_screen(pixels: np.ndarray, image: Image) -> np.ndarray:
    """(H, W, C) float -> 8 bit, with `image`'s range as 0..255, without alpha."""
    shown = np.rint(((visible(pixels) - image.low) / image.peak * 255).clip(0, 255)).astype(np.uint8)
    return shown[..., 0] if shown.shape[-1] == 1 else shown


def in_kind(pixels: np.ndarray, image: Image, ending: str) -> np.ndarray:
    """(H, W, C) float -> what a file with this ending can hold of it: as `to_output`, else 8 bit to be seen."""
    is_exact = holds_exactly(ending, image)
    refuse(
        not is_exact and image.alpha is not None,
        f"a {ending} file cannot hold this picture's alpha channel; a .tif file can",
    )
    n_channels = image.n_channels
    refuse(
        not is_exact and n_channels not in (1, 3),
        f"a {ending} file cannot hold {n_channels} channels without alpha; a .tif file can",
    )
    return to_output(pixels, image) if is_exact else to_screen(pixels, stretched(image))


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
