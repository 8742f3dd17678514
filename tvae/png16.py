"""PNG files with 16 bits per channel and more than one channel, which Pillow reads as 8 bit and cannot write.

Reading uses that Pillow has two unpackers for such data: one keeps the first of every two bytes, the other the second.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image as Pillow
from PIL.ImageFile import ImageFile

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # channels: PNG's number for grey, grey + alpha, RGB, RGBA
LOW_BYTES = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L"}  # unpacker of the high bytes: that of the low bytes


def is_deep(file: ImageFile) -> bool:
    """Whether Pillow would drop half of the bits of this file."""
    return file.format == "PNG" and bool(file.tile) and _unpacker(file) in {*LOW_BYTES, "LA;16B"}


def decode(content: bytes) -> np.ndarray:
    """(H, W, 2, 3 or 4) uint16, of a file that `is_deep`."""
    with Pillow.open(io.BytesIO(content)) as file:
        unpacker = _unpacker(file)
    if unpacker == "LA;16B":  # a pixel is 4 bytes, as in 8-bit RGBA
        octets = _unpack(content, "RGBA").astype(np.uint16)
        return octets[..., 0::2] << 8 | octets[..., 1::2]
    high, low = _unpack(content, unpacker), _unpack(content, LOW_BYTES[unpacker])
    return high.astype(np.uint16) << 8 | low


def _unpacker(file: ImageFile) -> str:
    args = file.tile[0].args
    return args if isinstance(args, str) else str(args)


def _unpack(content: bytes, unpacker: str) -> np.ndarray:
    with Pillow.open(io.BytesIO(content)) as file:
        file.tile = [tile._replace(args=unpacker) for tile in file.tile]
        return np.array(file)


def encode(array: np.ndarray) -> bytes:
    """A PNG file of (H, W) or (H, W, 1 to 4) uint16."""
    height, width = array.shape[:2]
    n_channels = 1 if array.ndim == 2 else array.shape[2]
    lines = np.ascontiguousarray(array, ">u2").view(np.uint8).reshape(height, -1)
    # Every line after the first holds its difference to the one above it (filter 2), which compresses better.
    filtered = np.empty((height, lines.shape[1] + 1), np.uint8)
    filtered[0, 0], filtered[1:, 0] = 0, 2
    filtered[0, 1:], filtered[1:, 1:] = lines[0], lines[1:] - lines[:-1]
    header = struct.pack(">IIBBBBB", width, height, 16, COLOUR_TYPES[n_channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes())), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
