"""Whitened patches of natural images: van Hateren's, or the pictures that come with scikit-image.

Of each image the brightest pixels are clamped and intensities are divided by their mean, which takes the exposure out.
Patches are cut at random positions, as many from each image; held-out ones lie in strips over the image, which no other
patch touches. Of each patch its mean is taken out. With `equalise` its contrast is, too: it is divided by the square
root of its variance plus a tenth of the mean variance. Latents are on or off and have no strength, so that otherwise a
few patches of high contrast would take most of them. All patches are whitened alike (`tvae.whitening`, fitted to those
that are trained on).

Images are read one at a time. What is made is kept in the download cache, under a hash of all that went into it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import skimage
import torch
from numpy.lib.stride_tricks import sliding_window_view

from tvae.atomic import atomic_file
from tvae.config import Config, NaturalConfig, UserError
from tvae.datasets import Dataset
from tvae.datasets.named import NamedFile, cache_dir, data_folder, fetch, vanhateren_address
from tvae.images import read_image
from tvae.streams import derive
from tvae.whitening import ROWS, Whitening, fit_whitening

log = logging.getLogger(__name__)

RAW_SHAPE = (1024, 1536)  # of a van Hateren file: 16-bit unsigned, big-endian, row by row
RAW, ENDINGS = (".iml", ".imc"), (".iml", ".imc", ".tif", ".tiff", ".png")
HELD_OUT, N_STRIPS = 0.2, 5  # of an image's width; so many strips, where they are wide enough
CACHE_FORMAT = 2
EMBEDDED = ("astronaut", "camera", "chelsea", "coffee", "grass", "gravel", "rocket")
DOWNLOADED = {  # what is fetched where there is nothing, with its SHA-256
    "imk00152.iml": "4c70cbe8dab467c1f820a61efa2496d8dae15b41a892591d0c9e7e230f9b825a",
    "imk00377.iml": "c53831290f70c619bf52f08c62dc085a638c9804b69f3d8af92bc392daaec3ba",
    "imk00405.iml": "d9a7e92f6087cdf7b1db55d7f6b250c760608e55ef020a999d43b7b095808122",
}


@dataclass(frozen=True)
class Source:
    """An image that is read when its turn comes."""

    name: str
    state: str  # changes with its content
    read: Callable[[], np.ndarray]  # (H, W) float64


@dataclass(frozen=True, eq=False)
class Patches:
    """What is kept in the cache."""

    train: np.ndarray  # (N, D) float32
    test: np.ndarray  # (n_test, D) float32
    whitening: Whitening
    made_of: str  # a hash of the patches before they were whitened, and of how


def make(config: Config) -> Dataset:
    options, n_patches = config.dataset, config.n_patches
    assert isinstance(options, NaturalConfig)
    assert n_patches is not None
    assert options.n_test is not None
    sources = embedded(options) if options.name == "natural" else vanhateren(options, config.data_dir)
    made_of = {
        "format": CACHE_FORMAT,
        "options": {k: v for k, v in asdict(options).items() if k not in ("name", "images", "standardise")},
        "n_patches": n_patches,
        "sources": [(source.name, source.state) for source in sources],
    }
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / "patches" / f"{key}.npz"
    patches = read_cache(path)
    if patches is None:
        log.info("cutting %d patches from %d images", n_patches + options.n_test, len(sources))
        patches = make_patches(sources, options, n_patches, options.n_test)
        write_cache(path, patches)
    return Dataset(
        torch.from_numpy(patches.train),
        (options.patch_size, options.patch_size),
        held_out=torch.from_numpy(patches.test) if len(patches.test) else None,
        whitening=patches.whitening,
        made_of=patches.made_of,
    )


def embedded(options: NaturalConfig) -> list[Source]:
    """The pictures inside scikit-image's wheel."""
    names = options.images or list(EMBEDDED)
    unknown = [name for name in names if name not in EMBEDDED]
    if unknown:
        raise UserError(f"dataset.images={unknown}: dataset=natural has {', '.join(EMBEDDED)}")

    def reader(name: str) -> Callable[[], np.ndarray]:
        return lambda: _grey(getattr(skimage.data, name)())

    return [Source(name, version("scikit-image"), reader(name)) for name in names]


def vanhateren(options: NaturalConfig, data_dir: str | None) -> list[Source]:
    """The image files in `data_dir`/vanhateren, or those named; what is not there is fetched into the cache."""
    parent, cache = data_folder(data_dir), cache_dir() / "vanhateren"
    folder = parent and parent / "vanhateren"
    is_there = folder is not None and folder.is_dir()
    files = sorted(f for f in folder.iterdir() if f.suffix.lower() in ENDINGS) if folder and is_there else []
    if options.images:
        here = {file.name: file for file in files}
        files = [here.get(name) or _fetch(name, cache, folder) for name in options.images]
    elif not files and (is_there or data_dir is not None):
        raise UserError(
            f"{folder}: no images there; put .iml, .imc, TIFF or PNG files into it, or take dataset=natural"
        )
    elif not files:
        files = [_fetch(name, cache, folder) for name in DOWNLOADED]

    def reader(file: Path) -> Callable[[], np.ndarray]:
        return lambda: read_file(file)

    def state(file: Path) -> str:
        """Not a hash of all of it: a whole collection has 13 GB."""
        found = file.stat()
        with open(file, "rb") as content:
            start = hashlib.sha256(content.read(1 << 16)).hexdigest()
        return f"{file.resolve()} {found.st_size} {found.st_mtime_ns} {start}"

    return [Source(file.name, state(file), reader(file)) for file in files]


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


def make_patches(sources: list[Source], options: NaturalConfig, n_patches: int, n_test: int) -> Patches:
    """Cut, centre and whiten; the patches of all images are mixed."""
    size = options.patch_size
    pieces = []  # of each image: to train on, and held out
    n_of_each = zip(shares(n_patches, len(sources)), shares(n_test, len(sources)), strict=True)
    for i, (source, n_here) in enumerate(zip(sources, n_of_each, strict=True)):
        image = prepare(source.read(), options.clamp)
        height, width = image.shape
        places = columns(width, size, n_test > 0)
        if height < size or not len(places[0]):
            held_out = " and as many held-out columns" if n_test else ""
            raise UserError(f"{source.name}: {width}x{height} pixels do not hold a patch of {size}x{size}{held_out}")
        rng = np.random.default_rng(derive(options.seed, "patches", i))
        pieces.append([cut(image, c, n, size, options.flat, rng) for c, n in zip(places, n_here, strict=True)])
    train, test = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    np.random.default_rng(derive(options.seed, "order")).shuffle(train)
    if (train == train[0]).all():
        raise UserError(f"dataset={options.name}: all patches are alike, so there is nothing to learn")
    if options.equalise:
        floor = 0.1 * train.var(1).mean()
        for patches in (train, test):
            patches /= np.sqrt(patches.var(1, keepdims=True) + floor)
    made_of = hashlib.sha256(repr(options.retained).encode())
    made_of.update(train.data)
    made_of.update(test.data)
    whitening = fit_whitening(train, options.retained)
    return Patches(in_parts(whitening.whiten, train), in_parts(whitening.whiten, test), whitening, made_of.hexdigest())


def shares(total: int, n_parts: int) -> list[int]:
    """`total` as evenly as it goes."""
    return [total // n_parts + (i < total % n_parts) for i in range(n_parts)]


def prepare(image: np.ndarray, clamp: float) -> np.ndarray:
    """Clamp the brightest share of the pixels to the brightest of the others, and divide by the mean intensity."""
    image = np.minimum(image, np.quantile(image, 1 - clamp, method="lower"))
    mean = np.abs(image).mean()
    return image / mean if mean > 0 else image


def columns(width: int, size: int, is_split: bool) -> tuple[np.ndarray, np.ndarray]:
    """Where patches can begin that are trained on, and those that are held out; they share no column of the image."""
    is_held_out = np.zeros(width, dtype=bool)
    n_strips = int(np.clip(HELD_OUT * width / (2 * size), 1, N_STRIPS)) if is_split else 0
    for k in range(n_strips):
        end = (k + 1) * width // n_strips
        is_held_out[max(0, end - max(size, round(HELD_OUT * width / n_strips))) : end] = True
    if width < size:
        return np.empty(0, dtype=int), np.empty(0, dtype=int)
    windows = sliding_window_view(is_held_out, size)
    return np.flatnonzero(~windows.any(1)), np.flatnonzero(windows.all(1))


def cut(
    image: np.ndarray, places: np.ndarray, n_patches: int, size: int, flat: float, rng: np.random.Generator
) -> np.ndarray:
    """(n_patches, size * size) float32: patches that begin in one of the columns `places`, in any row.

    They come without their means and without the flattest.
    """
    if n_patches == 0:
        return np.empty((0, size**2), dtype=np.float32)
    windows = sliding_window_view(image, (size, size))
    n_drawn = math.ceil(n_patches / (1 - flat))
    tops, lefts = rng.integers(0, len(windows), n_drawn), rng.choice(places, n_drawn)
    if flat > 0:
        parts = np.array_split(np.arange(n_drawn), math.ceil(n_drawn / ROWS))
        variances = np.concatenate([windows[tops[part], lefts[part]].var((1, 2)) for part in parts])
        kept = np.sort(np.argsort(-variances, kind="stable")[:n_patches])
        tops, lefts = tops[kept], lefts[kept]
    patches = windows[tops, lefts].reshape(n_patches, -1)
    return (patches - patches.mean(1, keepdims=True)).astype(np.float32)


def in_parts(change: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """`change` of all rows in single precision, with double precision for some at a time."""
    out = np.empty_like(rows)
    for start in range(0, len(rows), ROWS):
        out[start : start + ROWS] = change(rows[start : start + ROWS])
    return out


def read_cache(path: Path) -> Patches | None:
    """What was made before, unless it is not there or damaged (every byte is covered by the archive's checksums)."""
    try:
        with np.load(path, allow_pickle=False) as content:
            whitening = Whitening(*(content[name] for name in ("mean", "matrix", "inverse", "directions")))
            return Patches(content["train"], content["test"], whitening, str(content["made_of"]))
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged archive raises almost anything
        log.warning("%s: damaged (%s); it is made anew", path, type(error).__name__)
        return None


def write_cache(path: Path, patches: Patches) -> None:
    mine = path.with_suffix(f".{os.getpid()}.npz")  # another run may be making the same
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(mine) as file:
            np.savez(file, train=patches.train, test=patches.test, made_of=patches.made_of, **vars(patches.whitening))
        os.replace(mine, path)
    except OSError as error:
        log.warning("%s: cannot be written (%s); the patches will be made anew the next time", path, error.strerror)
