"""Formats of picture files: which there are, what each can hold, and their bytes decoded and encoded.

Most go through imageio with its Pillow and tifffile plugins. Two things imageio cannot do. Its Pillow plugin reads
16-bit colour PNG as 8 bit: imagecodecs does it. Its tifffile plugin reports neither axes nor thumbnails: `_decode_tiff`
asks tifffile itself.
"""

from __future__ import annotations

import io
import logging
import re
import struct
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import imagecodecs
import imageio.v3 as iio
import numpy as np
import tifffile
from tifffile import COMPRESSION, EXTRASAMPLE, PHOTOMETRIC

from tvae.errors import UserError, refuse
from tvae.io.scale import Scale, encode_tiff

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
JPEG_SIGNATURE = b"\xff\xd8\xff"
JPEG_START, JPEG_SCAN, JPEG_END = b"\xff\xd8", b"\xda", b"\xff\xd9"
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
NPY_SIGNATURE = b"\x93NUMPY"
JPEG_QUALITY = 95
PNG_BIT_DEPTH = 24  # the byte that holds the bits per channel
# Pillow's modes that are read, and the mode each is read as, without and with a transparent colour
OPAQUE = {"1": "L", "L": "L", "LA": "LA", "P": "RGB", "RGB": "RGB", "RGBA": "RGBA", "CMYK": "RGB"}
TRANSPARENT = {**OPAQUE, "L": "LA", "P": "RGBA", "RGB": "RGBA"}
ORIENTATION = 274  # a TIFF tag
ONE_PICTURE = ("YX", "YXQ", "YXS", "SYX")  # axes as tifffile names them: S are channels, Q is unknown
ALPHA: dict[int, str] = {
    EXTRASAMPLE.ASSOCALPHA: "assocalpha",
    EXTRASAMPLE.UNASSALPHA: "unassalpha",
}  # as TIFF files call it
FAX = (COMPRESSION.CCITTRLE, COMPRESSION.CCITT_T4, COMPRESSION.CCITT_T6)


@dataclass(frozen=True)
class Format:
    """A kind of file: what it can hold, how it begins, and how a picture becomes its content and is read from it."""

    name: str
    begins: bytes  # a regular expression
    decode: Callable[[bytes], np.ndarray]  # to (H, W) or (H, W, C), upright; raises any exception for a damaged file
    encode: Callable[[np.ndarray, Scale | None, str], bytes]  # of (H, W) or (H, W, 1 to 4); see the function `encode`
    dtypes: tuple[str, ...] | None = ("uint8",)  # None: all
    n_channels: tuple[int, ...] = (1, 3)

    def holds_type(self, dtype: np.dtype) -> bool:
        return self.dtypes is None or dtype.name in self.dtypes


def encode(array: np.ndarray, ending: str, scale: Scale | None = None, last_channel: str = "unassalpha") -> bytes:
    """The content of a file that holds (H, W) or (H, W, 1 to 4); its name's ending tells the format.

    `scale`: TIFF files hold it; `last_channel`: what they declare the last of 2 or 4 to be.
    """
    kind, n_channels = FORMATS.get(ending.lower()), array.shape[2] if array.ndim == 3 else 1
    if kind is None or not kind.holds_type(array.dtype) or n_channels not in kind.n_channels:
        raise UserError(f"such a file cannot hold {array.dtype} pixels of shape {array.shape}")
    return kind.encode(array, scale, last_channel)


def decode(content: bytes) -> np.ndarray:
    """The one picture in a file, (H, W) or (H, W, C), upright.

    The first bytes tell the format. Raises `UserError` for what is not supported, and any exception for a damaged file.
    """
    with silenced("tifffile", "imagecodecs"):  # the exception tells what is wrong with a file
        for kind in FORMATS.values():
            if re.match(kind.begins, content, re.DOTALL):
                return kind.decode(content)
    *names, last = dict.fromkeys(kind.name for kind in FORMATS.values())
    raise UserError(f"not a {', '.join(names)} or {last} file")


def alpha_of(content: bytes) -> str | None:
    """TIFF's word for the alpha that the last of 2 or 4 channels is declared to be; None: it is no alpha."""
    if content.startswith(NPY_SIGNATURE):
        return None
    if not content.startswith(TIFF_SIGNATURES):
        return "unassalpha"
    with silenced("tifffile"), tifffile.TiffFile(io.BytesIO(content)) as file:
        return alpha_of_page(next(series.keyframe for series in file.series if not series.keyframe.is_reduced))


def alpha_of_page(page: tifffile.TiffPage) -> str | None:
    return ALPHA.get(int(page.extrasamples[-1])) if page.extrasamples else None


def _decode_png(content: bytes) -> np.ndarray:
    _refuse_many(iio.improps(content, plugin="pillow", index=...).n_images or 1)  # type: ignore[arg-type]
    if content[PNG_BIT_DEPTH] < 16:
        return _decode_with_pillow(content)
    metadata = iio.immeta(content, plugin="pillow", index=0, exclude_applied=False)
    return upright(imagecodecs.png_decode(content), metadata.get("Orientation"))


def _decode_only_one(content: bytes) -> np.ndarray:
    """Decode a file that may not hold several pictures."""
    _refuse_many(iio.improps(content, plugin="pillow", index=...).n_images or 1)  # type: ignore[arg-type]
    return _decode_with_pillow(content)


def _decode_jpeg(content: bytes) -> np.ndarray:
    """Decode the first picture only: previews may follow."""
    check_jpeg(content)
    return _decode_with_pillow(content)


def _decode_with_pillow(content: bytes) -> np.ndarray:
    metadata = iio.immeta(content, plugin="pillow", index=0, exclude_applied=False)
    modes = TRANSPARENT if "transparency" in metadata else OPAQUE
    _refuse_colours(metadata["mode"], modes)
    array = iio.imread(content, plugin="pillow", index=0, mode=modes[metadata["mode"]])
    has_greys_only = metadata["mode"] == "P" and array.shape[2] == 3 and (np.ptp(array, axis=2) == 0).all()
    return upright(array[..., 0] if has_greys_only else array, metadata.get("Orientation"))


def _decode_tiff(content: bytes) -> np.ndarray:
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        pictures = {i: series for i, series in enumerate(file.series) if not series.keyframe.is_reduced}
        if not pictures:
            raise ValueError("no picture in it")
        index, picture = next(iter(pictures.items()))
        check_whole(file)
        page, axes, shape = picture.keyframe, picture.axes, picture.shape
        n_pages = sum(len(series.pages) for series in pictures.values())
    if axes == "QYX" and len(pictures) == 1 and shape[-1] in (2, 3, 4):
        n_pages = 1  # an (H, W, C) array, stored as H pages of W x C pixels with a note of its true shape
    elif axes not in ONE_PICTURE:
        n_pages = max(n_pages, shape[0])
    _refuse_many(n_pages)
    if page.compression in FAX:  # tifffile needs Python 3.11 for it; Pillow turns a TIFF upright itself
        return iio.imread(content, plugin="pillow", index=0, mode="L")
    array = in_colours(iio.imread(content, plugin="tifffile", index=index), page)
    return upright(np.moveaxis(array, 0, -1) if axes == "SYX" else array, page.tags.valueof(ORIENTATION))


def check_whole(file: tifffile.TiffFile) -> None:
    """Raise `UserError` for a TIFF file that was cut off, or that has other pages than it declares."""
    size = file.filehandle.size
    for page in file.pages:
        ends = (start + count for start, count in zip(page.dataoffsets, page.databytecounts, strict=False))
        refuse(max(ends, default=0) > size, f"damaged or truncated image (page {page.index} ends beyond the file)")
    is_last = _next_page(file) in (0, *(page.offset for page in file.pages))  # some files end in a circle
    refuse(not is_last, f"damaged or truncated image (the pages after {len(file.pages)} are missing)")
    declared = [page for series in file.series for page in series.pages]
    n_declared, n_held = len(declared), len(file.pages)
    is_other = any(page is None for page in declared) or (file.is_ome and n_declared < n_held)
    if file.is_imagej:
        if n_held == 1:  # which may stand for many: files of more than 4 GB have no others
            n_held = sum(series.size // series.keyframe.size for series in file.series)
        n_declared = (file.imagej_metadata or {}).get("images", n_held)
        is_other = n_declared != n_held
    refuse(is_other, f"damaged or truncated image (declares {n_declared} pages and holds {n_held})")
    for each in declared:
        if each is not None and each.keyframe is not None and each.keyframe.compression == COMPRESSION.JPEG:
            for start, count in zip(each.dataoffsets, each.databytecounts, strict=False):
                each.parent.filehandle.seek(start)
                check_jpeg(each.parent.filehandle.read(count))


def _next_page(file: tifffile.TiffFile) -> int:
    """The place of the page that follows the last one that was found; 0: there is none."""
    handle, form = file.filehandle, file.tiff
    handle.seek(file.pages[-1].offset)
    (n_tags,) = struct.unpack(form.tagnoformat, handle.read(form.tagnosize))
    handle.seek(n_tags * form.tagsize, 1)
    place: int = struct.unpack(form.offsetformat, handle.read(form.offsetsize))[0]
    return place


def check_jpeg(content: bytes) -> None:
    """Raise `UserError` for a JPEG stream without an end, of which the decoder makes grey what it does not find."""
    place = len(JPEG_START)
    while content[place + 1 : place + 2] not in (JPEG_SCAN, b"") and content[place : place + 1] == b"\xff":
        place += 2 + int.from_bytes(content[place + 2 : place + 4], "big") if content[place + 1] != 0xFF else 1
    refuse(JPEG_END not in content[place:], "damaged or truncated image (the end of the JPEG stream is missing)")


def in_colours(array: np.ndarray, page: tifffile.TiffPage) -> np.ndarray:
    """Grey values or RGB from what a TIFF page stores: palette indices, fewer than 8 bits, or white as 0."""
    photometric = PHOTOMETRIC(page.photometric)
    if photometric == PHOTOMETRIC.PALETTE and page.colormap is not None:
        index = array.reshape(*array.shape[:2], -1).astype(np.uint16)  # (H, W, 1), or 2 with alpha
        return np.dstack([page.colormap.T[index[..., 0]] >> 8, index[..., 1:]]).astype(np.uint8)
    if photometric == PHOTOMETRIC.YCBCR and page.compression == COMPRESSION.JPEG:
        return array  # the JPEG decoder has made it RGB
    _refuse_colours(photometric.name, ("MINISBLACK", "MINISWHITE", "RGB"))
    if page.bitspersample < 8:
        array = array.astype(np.uint8) * np.uint8(255 // (2**page.bitspersample - 1))
    is_mask = page.bitspersample == 1 and page.is_shaped  # tifffile saves Booleans as MINISWHITE, and 1 means True
    is_negative = photometric == PHOTOMETRIC.MINISWHITE and array.dtype.kind == "u" and not is_mask
    return ~array if is_negative else array


def upright(array: np.ndarray, orientation: object) -> np.ndarray:
    """Turn and mirror a photograph as its EXIF orientation says, 2 to 8; with any other value it is upright."""
    if orientation in (5, 6, 7, 8):
        array = array.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        array = array[:, ::-1]
    if orientation in (3, 4, 7, 8):
        array = array[::-1]
    return np.ascontiguousarray(array)


def _refuse_many(n_pictures: int) -> None:
    refuse(n_pictures > 1, f"holds {n_pictures} pictures; must hold one")


def _refuse_colours(kind: str, known: Container[str]) -> None:
    refuse(kind not in known, f"colours of kind {kind} are not read; convert it to grey or RGB")


@contextmanager
def silenced(*names: str) -> Iterator[None]:
    """Stop these loggers, and those below them, for a while."""
    before = {logger: logger.level for logger in map(logging.getLogger, names)}
    try:
        for logger in before:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)


def _decode_npy(content: bytes) -> np.ndarray:
    array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def _encode_npy(array: np.ndarray, scale: Scale | None, last_channel: str) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _encode_tiff(array: np.ndarray, scale: Scale | None, last_channel: str) -> bytes:
    n_channels = array.shape[2] if array.ndim == 3 else 1
    return encode_tiff(
        array,
        "YX" if array.ndim == 2 else "YXS",
        scale,
        photometric="rgb" if n_channels > 2 else "minisblack",
        planarconfig="contig" if n_channels > 1 else None,
        extrasamples=[last_channel] if n_channels in (2, 4) else None,
    )


def _encode_png(array: np.ndarray, scale: Scale | None, last_channel: str) -> bytes:
    if array.dtype == np.uint16:
        return bytes(imagecodecs.png_encode(np.ascontiguousarray(_without_axis(array))))
    return _encode_with_pillow(array, scale, last_channel, extension=".png")


def _encode_with_pillow(array: np.ndarray, scale: Scale | None, last_channel: str, **options: Any) -> bytes:
    """`options`: for imageio; among them is the `extension`."""
    content: bytes = iio.imwrite("<bytes>", _without_axis(array), plugin="pillow", **options)
    return content


def _without_axis(array: np.ndarray) -> np.ndarray:
    """A single channel has no axis."""
    return array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array


ALL = (1, 2, 3, 4)
TIFF = Format("TIFF", b"|".join(map(re.escape, TIFF_SIGNATURES)), _decode_tiff, _encode_tiff, None, ALL)
JPEG = Format(
    "JPEG",
    JPEG_SIGNATURE,
    _decode_jpeg,
    partial(_encode_with_pillow, extension=".jpg", quality=JPEG_QUALITY),
)
# By the endings of file names; the first whose beginning a file has reads it.
FORMATS = {
    ".png": Format("PNG", PNG_SIGNATURE, _decode_png, _encode_png, ("uint8", "uint16"), ALL),
    ".jpg": JPEG,
    ".jpeg": JPEG,
    ".tif": TIFF,
    ".tiff": TIFF,
    ".bmp": Format("BMP", b"BM", _decode_only_one, partial(_encode_with_pillow, extension=".bmp")),
    ".webp": Format(  # grey becomes RGB
        "WebP",
        b"RIFF.{4}WEBP",
        _decode_only_one,
        partial(_encode_with_pillow, extension=".webp", lossless=True),
        n_channels=(1, 3, 4),
    ),
    ".gif": Format("GIF", b"GIF8", _decode_only_one, partial(_encode_with_pillow, extension=".gif")),  # 256 colours
    ".npy": Format("NumPy", NPY_SIGNATURE, _decode_npy, _encode_npy, None, ALL),
}
