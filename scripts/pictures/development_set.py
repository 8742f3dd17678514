"""The development set: 16 grey pictures of 256x256 pixels, to choose a recipe on and to say how good it is.

    python -m scripts.pictures.development_set [A|B|AB] [outputs/pictures/clean]

Fixed crops of pictures inside scikit-image's wheel, and of house and barbara (`tvae.data.named`). Half A is what ideas
are chosen on; half B is reported only. Large pictures are reduced by block means, so that the clean ones are clean.
Written as 8-bit PNG; files that are there are left alone, and a picture that cannot be had is left out and said. The
names of the files go to standard output, as a sweep takes them: a.png,b.png.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import skimage

from tvae.data.named import NAMED_FILES, read_named
from tvae.errors import UserError, refuse
from tvae.io.image_file import read_image, write_image

SIDE = 256
LUMINANCE = (0.2125, 0.7154, 0.0721)  # of red, green and blue, as in scikit-image
FOLDER = Path("outputs/pictures/clean")


@dataclass(frozen=True)
class Crop:
    """Pieces of a picture, one above the other: as wide as the crop, and together as high."""

    source: str  # a file in scikit-image's wheel, or a named picture
    corners: tuple[tuple[int, int], ...] = ((0, 0),)  # top and left of the pieces
    reduction: int = 1  # block means of so many pixels along a side come first

    def read(self) -> np.ndarray:
        """(256, 256) float64, whole grey levels in 0..255."""
        pixels = block_means(grey(read_source(self.source)), self.reduction)
        height = SIDE // len(self.corners)
        pieces = [pixels[top : top + height, left : left + SIDE] for top, left in self.corners]
        whole = np.concatenate(pieces)
        refuse(whole.shape != (SIDE, SIDE), f"{self.source}: too small for the crop")
        return np.rint(whole)


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
}
ROLES = {"A": "chosen on", "B": "reported"}
HALF_OF = {name: half for half, pictures in HALVES.items() for name in pictures}


def read_source(source: str) -> np.ndarray:
    """(H, W, C) float64, from disk; only named pictures are downloaded, if they are nowhere."""
    if source in NAMED_FILES:
        return read_named(source).pixels
    return read_image(Path(skimage.__file__).parent / "data" / source).pixels


def grey(pixels: np.ndarray) -> np.ndarray:
    """(H, W, C) -> (H, W)"""
    return pixels @ LUMINANCE if pixels.shape[-1] == 3 else pixels[..., 0]


def block_means(pixels: np.ndarray, side: int) -> np.ndarray:
    """(H, W) -> (H // side, W // side)"""
    height, width = (length // side for length in pixels.shape)
    return pixels[: height * side, : width * side].reshape(height, side, width, side).mean((1, 3))


def write_pictures(halves: str, folder: Path) -> list[Path]:
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
    parser.add_argument("half", nargs="?", default="AB", choices=[*HALVES, "AB"])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    options = parser.parse_args(words)
    paths = write_pictures(options.half, options.folder)
    if not paths:
        sys.exit("error: none of the pictures can be had")
    print(",".join(path.name for path in paths))


if __name__ == "__main__":
    main()
