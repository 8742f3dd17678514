"""The size of a pixel and the distance of pages, in space and time, in TIFF files: read and written.

Resolution tags alone give the size of a pixel; ImageJ's notes and OME-XML also give the distance of planes and the
interval of frames. What was read by one of these is written by it, where it can hold the picture; else as resolution.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import tifffile

from tvae.io.layout import CHANNELS_AS_PAGES

CENTIMETRE = {  # of other units
    "nm": 1e-7, "um": 1e-4, "µm": 1e-4, "\u03bcm": 1e-4, "micron": 1e-4, "microns": 1e-4, "mm": 0.1, "cm": 1.0,
    "m": 100.0, "inch": 2.54, "in": 2.54,
}  # fmt: skip
NO_UNIT, PER_CENTIMETRE = 1, 3  # as TIFF files number them
MICRO = "\\u00B5"  # as ImageJ notes it
OF_PLANES = ("unit", "yunit", "zunit", "PhysicalSizeX", "PhysicalSizeXUnit", "PhysicalSizeY", "PhysicalSizeYUnit")
OF_PAGES = (  # what holds only as long as all pages are there, in their order
    "spacing", "finterval", "fps", "tunit", "xorigin", "yorigin", "zorigin", "PhysicalSizeZ", "PhysicalSizeZUnit",
    "TimeIncrement", "TimeIncrementUnit",
)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Pixels per unit of length along a row and along a column, and the unit's number in TIFF files."""

    across: float = 1.0
    down: float = 1.0
    unit: int = NO_UNIT
    program: str = ""  # imagej or ome, whose notes these are
    notes: dict[str, Any] = field(default_factory=dict)  # as tifffile takes them

    def of_some_pages(self) -> Scale:
        """The scale without the distance between pages."""
        return replace(self, notes={key: value for key, value in self.notes.items() if key not in OF_PAGES})

    def options(self) -> dict[str, Any]:
        """Arguments for tifffile: the size of a pixel as resolution."""
        return {"resolution": (self.across, self.down), "resolutionunit": self.unit}

    def options_of_program(self, axes: str) -> dict[str, Any]:
        """Arguments for tifffile: all notes, for an array of these axes."""
        options = {**self.options(), self.program: True, "metadata": {"axes": axes, **self.notes}}
        per_unit = CENTIMETRE.get(_plain(self.notes.get("unit")))
        if self.program == "imagej" and self.unit == PER_CENTIMETRE and per_unit is not None:
            options |= {"resolution": (self.across * per_unit, self.down * per_unit), "resolutionunit": NO_UNIT}
        return options


def read_scale(file: str | Path | IO[bytes]) -> Scale | None:
    """The scale in a TIFF file, or None; what cannot be understood is left out."""
    with suppress(Exception), tifffile.TiffFile(file) as opened:  # a picture without its scale can be used
        found = _from_ome(opened.ome_metadata) if opened.is_ome else _from_tags(opened)
        return None if found == Scale() else found
    return None


def _from_ome(text: str | None) -> Scale:
    pixels = next(each for each in ElementTree.fromstring(text or "").iter() if each.tag.endswith("}Pixels")).attrib
    notes: dict[str, Any] = {
        key: pixels[key] if key.endswith("Unit") else float(pixels[key])
        for key in (*OF_PLANES, *OF_PAGES)
        if key in pixels
    }
    across, down = (
        notes.get(f"PhysicalSize{axis}", 0) * CENTIMETRE.get(notes.get(f"PhysicalSize{axis}Unit", "µm"), 0)
        for axis in "XY"
    )  # centimetres, if that is known
    if not (across > 0 and down > 0):
        return Scale(program="ome", notes=notes)
    return Scale(1 / across, 1 / down, PER_CENTIMETRE, "ome", notes)


def _from_tags(file: tifffile.TiffFile) -> Scale:
    tags, noted = file.pages.first.tags, file.imagej_metadata or {}
    notes = {key: noted[key] for key in (*OF_PLANES, *OF_PAGES) if key in noted}
    notes = {key: value.replace("µ", MICRO) if isinstance(value, str) else value for key, value in notes.items()}
    across, down = (tags[name].value[0] / tags[name].value[1] for name in ("XResolution", "YResolution"))
    unit = int(tags["ResolutionUnit"].value)
    program = "imagej" if file.is_imagej else ""
    if not (across > 0 and down > 0):
        return Scale(program=program, notes=notes)
    if unit == NO_UNIT and _plain(notes.get("unit")) in CENTIMETRE:
        per_unit = CENTIMETRE[_plain(notes["unit"])]
        return Scale(across / per_unit, down / per_unit, PER_CENTIMETRE, program, notes)
    return Scale(across, down, unit, program, notes)


def _plain(unit: object) -> str:
    return str(unit).replace(MICRO, "µ")


def encode_tiff(array: np.ndarray, axes: str, scale: Scale | None, **how: Any) -> bytes:
    """The content of a TIFF file; `how`: what tifffile is told beside it.

    Channels that were taken for pages are channels again, unless as many would be taken for colours.
    """
    place = axes.find(CHANNELS_AS_PAGES[0])
    if place >= 0 and "C" not in axes and array.shape[place] not in (1, 3):
        axes = axes.replace(CHANNELS_AS_PAGES[0], "C")
    if scale is not None and scale.program:
        # which types and orders of axes ImageJ and OME have, tifffile knows
        with suppress(ValueError, tifffile.OmeXmlError):
            return _written(array, **how, **scale.options_of_program(axes))
    return _written(array, **how, metadata={"axes": axes}, **({} if scale is None else scale.options()))


def _written(array: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, array, **options)
    return buffer.getvalue()
