"""The development set: 16 grey pictures and 12 in colour, to choose a recipe on and to say how good it is.

    python -m scripts.pictures.development_set [A|B|AB|colour-A|colour-B|colour-AB] [outputs/pictures/clean]

Fixed crops, 256x256 pixels in grey and 192x192 in colour, of pictures inside the wheels of scikit-image and, in colour,
of scikit-learn, and of house, barbara and castle (`tvae.data.named`). Half A is what ideas are chosen on; half B is
reported only. Large pictures are reduced by block means, so that the clean ones are clean.
Written as 8-bit PNG; files that are there are left alone, and a picture that cannot be had is left out and said. The
names of the files go to standard output, as a sweep takes them: a.png,b.png.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tvae.data.named import NAMED_FILES, read_named
from tvae.errors import UserError, refuse
from tvae.io.image_file import read_image, write_image

SIDE = 256
SIDE_IN_COLOUR = 192
LUMINANCE = (0.2125, 0.7154, 0.0721)  # of red, green and blue, as in scikit-image
FOLDER = Path("outputs/pictures/clean")


@dataclass(frozen=True)
class Crop:
    """Pieces of a picture, one above the other: as wide as the crop, and together as high."""

    source: str  # a file in scikit-image's wheel, or in that of another PACKAGE: "PACKAGE:file"; or a named picture
    corners: tuple[tuple[int, int], ...] = ((0, 0),)  # top and left of the pieces
    reduction: int = 1  # block means of so many pixels along a side come first
    is_colour: bool = False

    def read(self) -> np.ndarray:
        """(256, 256), or in colour (192, 192, 3), float64, whole grey levels in 0..255."""
        pixels = read_source(self.source)
        side = SIDE_IN_COLOUR if self.is_colour else SIDE
        pixels = block_means(pixels[..., :3] if self.is_colour else grey(pixels), self.reduction)
        height = side // len(self.corners)
        pieces = [pixels[top : top + height, left : left + side] for top, left in self.corners]
        whole = np.concatenate(pieces)
        refuse(whole.shape[:2] != (side, side), f"{self.source}: too small for the crop")
        return np.rint(whole)


def coloured(source: str, top: int, left: int, reduction: int = 1) -> Crop:
    return Crop(source, ((top, left),), reduction, is_colour=True)


HALVES: dict[str, dict[str, Crop]] = {
    "A": {
        "house": Crop("house"),
        "camera": Crop("camera.png", reduction=2),
        "chelsea": Crop("chelsea.png", ((20, 100),)),
        "grass": Crop("grass.png", reduction=2),
        "text": Crop("text.png", ((20, 0), (20, 190))),
        "cell": Crop("cell.png", ((40, 10),), reduction=2),
        "coins": Crop("coins.png", ((20, 60),)),
        "motorcycle": Crop("motorcycle_left.png", ((150, 250),)),
    },
    "B": {
        "barbara": Crop("barbara", ((200, 240),)),
        "astronaut": Crop("astronaut.png", reduction=2),
        "coffee": Crop("coffee.png", ((80, 180),)),
        "gravel": Crop("gravel.png", reduction=2),
        "page": Crop("page.png", ((10, 0), (60, 120))),
        "ihc": Crop("ihc.png", reduction=2),
        "retina": Crop("retina.jpg", ((48, 48),), reduction=4),
        "rocket": Crop("rocket.jpg", ((80, 200),)),
    },
    "colour-A": {
        "colour_chelsea": coloured("chelsea.png", 60, 130),
        "colour_motorcycle": coloured("motorcycle_left.png", 26, 100, 2),
        "colour_hubble": coloured("hubble_deep_field.jpg", 100, 100, 2),
        "colour_wheel": coloured("color.png", 10, 10),
        "colour_flower": coloured("sklearn:datasets/images/flower.jpg", 10, 60, 2),
        "colour_china": coloured("sklearn:datasets/images/china.jpg", 10, 60, 2),
    },
    "colour-B": {
        "colour_castle": coloured("castle", 150, 60),
        "colour_astronaut": coloured("astronaut.png", 0, 40, 2),
        "colour_coffee": coloured("coffee.png", 100, 180),
        "colour_ihc": coloured("ihc.png", 32, 32, 2),
        "colour_retina": coloured("retina.jpg", 80, 80, 4),
        "colour_rocket": coloured("rocket.jpg", 10, 70, 2),
    },
}
ROLES = {"A": "chosen on", "B": "reported", "colour-A": "chosen on", "colour-B": "reported"}
SETS = {half: (half,) for half in HALVES} | {"AB": ("A", "B"), "colour-AB": ("colour-A", "colour-B")}
HALF_OF = {name: half for half, pictures in HALVES.items() for name in pictures}


def read_source(source: str) -> np.ndarray:
    """(H, W, C) float64, from disk; only named pictures are downloaded, if they are nowhere."""
    if source in NAMED_FILES:
        return read_named(source).pixels
    package, _, file = source.rpartition(":")
    found = find_spec(package or "skimage")
    if found is None or found.origin is None:
        raise UserError(f"{source}: {package} is not installed")
    return read_image(Path(found.origin).parent / (file if package else f"data/{file}")).pixels


def grey(pixels: np.ndarray) -> np.ndarray:
    """(H, W, C) -> (H, W)"""
    return pixels @ LUMINANCE if pixels.shape[-1] == 3 else pixels[..., 0]


def block_means(pixels: np.ndarray, side: int) -> np.ndarray:
    """(H, W, ...) -> (H // side, W // side, ...)"""
    height, width = (length // side for length in pixels.shape[:2])
    parts = pixels[: height * side, : width * side].reshape(height, side, width, side, *pixels.shape[2:])
    return parts.mean((1, 3))


def write_pictures(halves: Iterable[str], folder: Path) -> list[Path]:
    """The files of the pictures of `halves`, written if they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, crop in (picture for half in halves for picture in HALVES[half].items()):
        path = folder / f"{name}.png"
        try:
            if not path.exists():
                write_image(path, crop.read().astype(np.uint8))
        except UserError as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
            continue
        paths.append(path)
    return paths


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.pictures.development_set", description=__doc__.splitlines()[0])
    parser.add_argument("half", nargs="?", default="AB", choices=SETS)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    options = parser.parse_args(words)
    paths = write_pictures(SETS[options.half], options.folder)
    if not paths:
        sys.exit("error: none of the pictures can be had")
    print(",".join(path.name for path in paths))


if __name__ == "__main__":
    main()
