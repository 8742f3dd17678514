"""Natural images for training: van Hateren's from a folder or the download cache, or those inside scikit-image."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tvae.data.named import NamedFile, cache_dir, data_folder, fetch, vanhateren_address
from tvae.errors import UserError
from tvae.io.atomic import check_regular
from tvae.io.image_file import read_image

RAW_SHAPE = (1024, 1536)  # of a van Hateren file: 16-bit unsigned, big-endian, row by row
RAW, ENDINGS = (".iml", ".imc"), (".iml", ".imc", ".tif", ".tiff", ".png")
EMBEDDED = ("astronaut", "camera", "chelsea", "coffee", "grass", "gravel", "rocket")
DOWNLOADED = {  # fetched if there are no images, with their SHA-256
    "imk00152.iml": "4c70cbe8dab467c1f820a61efa2496d8dae15b41a892591d0c9e7e230f9b825a",
    "imk00377.iml": "c53831290f70c619bf52f08c62dc085a638c9804b69f3d8af92bc392daaec3ba",
    "imk00405.iml": "d9a7e92f6087cdf7b1db55d7f6b250c760608e55ef020a999d43b7b095808122",
}


@dataclass(frozen=True)
class NaturalImage:
    """An image that is read when its turn comes."""

    name: str
    state: str  # changes with its content
    read: Callable[[], np.ndarray]  # (H, W) float64


def embedded(wanted: list[str] | None) -> list[NaturalImage]:
    """The pictures inside scikit-image's wheel."""
    names = wanted or list(EMBEDDED)
    unknown = [name for name in names if name not in EMBEDDED]
    if unknown:
        raise UserError(f"dataset.images={unknown}: dataset=natural has {', '.join(EMBEDDED)}")

    def reader(name: str) -> Callable[[], np.ndarray]:
        def read() -> np.ndarray:
            from skimage import data  # imports much: where it is read from

            return _grey(getattr(data, name)())

        return read

    return [NaturalImage(name, version("scikit-image"), reader(name)) for name in names]


def vanhateren(wanted: list[str] | None, data_dir: str | None) -> list[NaturalImage]:
    """The image files in `data_dir`/vanhateren, or those named; what is not there is fetched into the cache."""
    parent, cache = data_folder(data_dir), cache_dir() / "vanhateren"
    folder = parent and parent / "vanhateren"
    is_there = folder is not None and folder.is_dir()
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in ENDINGS) if folder and is_there else []
    if wanted:
        here = {file.name: file for file in files}
        files = [here.get(name) or _fetch(name, cache, folder) for name in wanted]
    elif not files and (is_there or data_dir is not None):
        raise UserError(
            f"{folder}: no images there; put .iml, .imc, TIFF or PNG files into it, or take dataset=natural"
        )
    elif not files:
        files = [_fetch(name, cache, folder) for name in DOWNLOADED]

    def reader(file: Path) -> Callable[[], np.ndarray]:
        return lambda: read_file(file)

    def state(file: Path) -> str:
        """A mark that changes with the file; no hash of it, because a whole collection has 13 GB."""
        check_regular(file)
        found = file.stat()
        with open(file, "rb") as content:
            start = hashlib.sha256(content.read(1 << 16)).hexdigest()
        return f"{file.resolve()} {found.st_size} {found.st_mtime_ns} {start}"

    return [NaturalImage(file.name, state(file), reader(file)) for file in files]


def _fetch(name: str, cache: Path, folder: Path | None) -> Path:
    if Path(name).name != name or Path(name).suffix.lower() not in ENDINGS:
        raise UserError(f"dataset.images={name}: must be the name of an image file, such as {min(DOWNLOADED)}")
    if name not in DOWNLOADED:
        raise UserError(f"{name}: not in {folder or 'data_dir'}; only {', '.join(DOWNLOADED)} are downloaded, by hash")
    return fetch(NamedFile(name, DOWNLOADED[name]), [vanhateren_address()], cache, folder)


def read_file(path: Path) -> np.ndarray:
    """(H, W) float64: raw van Hateren data, or any TIFF or PNG, colours averaged."""
    if path.suffix.lower() not in RAW:
        image = read_image(path)
        if image.missing is not None:
            raise UserError(f"{path}: holds NaN values")
        return image.pixels.mean(-1)
    length, height, width = path.stat().st_size, *RAW_SHAPE
    if length != 2 * height * width:
        raise UserError(
            f"{path}: {length} bytes, but a van Hateren image, {width}x{height} of 2 bytes, has {2 * height * width}"
        )
    return np.fromfile(path, ">u2").reshape(RAW_SHAPE).astype(np.float64)


def _grey(pixels: np.ndarray) -> np.ndarray:
    return (pixels.mean(-1) if pixels.ndim == 3 else pixels).astype(np.float64)
