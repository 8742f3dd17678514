"""How large a pixel is: read from a TIFF file's resolution, ImageJ's note or OME-XML, and written as resolution."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from contextlib import suppress
from dataclasses import dataclass

import tifffile

CENTIMETRE = {  # of other units
    "nm": 1e-7, "um": 1e-4, "µm": 1e-4, "\u03bcm": 1e-4, "micron": 1e-4, "microns": 1e-4, "mm": 0.1, "cm": 1.0,
    "m": 100.0, "inch": 2.54, "in": 2.54,
}  # fmt: skip
NO_UNIT, PER_CENTIMETRE = 1, 3  # as TIFF files number them


@dataclass(frozen=True)
class PixelSize:
    """Pixels per unit of length along a row and along a column, and the unit's number in TIFF files."""

    across: float
    down: float
    unit: int = PER_CENTIMETRE


def read_pixel_size(content: bytes) -> PixelSize | None:
    """Of a picture in a TIFF file, if it says; what cannot be understood is left out."""
    if content[:2] not in (b"II", b"MM"):
        return None
    with suppress(Exception), tifffile.TiffFile(io.BytesIO(content)) as file:  # it is a note, and the picture is read
        return _from_ome(file.ome_metadata) if file.is_ome else _from_tags(file)
    return None


def _from_ome(text: str | None) -> PixelSize | None:
    pixels = next(each for each in ElementTree.fromstring(text or "").iter() if each.tag.endswith("}Pixels")).attrib
    across, down = (
        1 / (float(pixels[f"PhysicalSize{axis}"]) * CENTIMETRE[pixels.get(f"PhysicalSize{axis}Unit", "µm")])
        for axis in "XY"
    )
    return PixelSize(across, down)


def _from_tags(file: tifffile.TiffFile) -> PixelSize | None:
    tags = file.pages.first.tags
    across, down = (tags[name].value[0] / tags[name].value[1] for name in ("XResolution", "YResolution"))
    unit = int(tags["ResolutionUnit"].value)
    if unit == NO_UNIT:
        noted = (file.imagej_metadata or {}).get("unit", "").replace("\\u00B5", "µ")
        if noted in CENTIMETRE:
            return PixelSize(across / CENTIMETRE[noted], down / CENTIMETRE[noted])
    is_nothing = (across, down, unit) == (1, 1, NO_UNIT)  # what is written where nothing is known
    return None if is_nothing or not (across > 0 and down > 0) else PixelSize(across, down, unit)
