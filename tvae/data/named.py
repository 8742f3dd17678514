"""The pictures that go by a name: where their files are, and how to get those that are not there.

A file is looked for in `data_dir` (or the folder in TVAE_DATA_DIR), then in the download cache (TVAE_CACHE_DIR, else
the user's cache folder), and is then downloaded (from TVAE_DATA_URL, else from where it is public). `camera` comes with
scikit-image and needs no file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch

from tvae.errors import UserError
from tvae.io.image_file import Image, read_image

log = logging.getLogger(__name__)

URL = "https://raw.githubusercontent.com/tvlearn/ecml2022/de99f01525f141dd6fcbaf5920e1115c70b3ccb5/experiments/"
VANHATEREN_URL = "https://pirsquared.org/research/vhatdb"
FOLDERS = ("denoising/img", "inpainting/img")  # below the address: where a file may be
TIMEOUT = 20  # seconds without an answer
NOT_THERE = "not found"


@dataclass(frozen=True)
class NamedFile:
    file: str
    sha256: str


NAMED_FILES = {
    "house": NamedFile("house.png", "576b2b3b6ff4d7e6c8ddccb0df645774f9b986c81219c28e16ba1935990a0b29"),
    "barbara": NamedFile("barbara.png", "764b8a2748cc7ad381cccc047c5e512cb528c197ba86adb83aa339e8932e66c0"),
    "castle": NamedFile("castle.jpg", "0b3f51fe3352965aae0edabd522e85d21bac6e1d883913c463fd07d288db936c"),
}


def read_named(name: str, data_dir: str | None = None) -> Image:
    """The clean picture called `name`."""
    return camera() if name == "camera" else read_image(find_image(name, data_dir))


def camera() -> Image:
    """scikit-image's 8-bit picture of a cameraman, averaged over 2x2 pixels: (256, 256, 1)."""
    from skimage import data

    blocks = data.camera().astype(np.float64).reshape(256, 2, 256, 2)
    return Image(np.rint(blocks.mean((1, 3)))[..., None], np.dtype(np.uint8), 255.0)


def find_image(name: str, data_dir: str | None = None) -> Path:
    """The file of a named picture, downloaded if it is nowhere; or `UserError` that says which file to put where."""
    wanted = NAMED_FILES[name]
    folder = data_folder(data_dir)
    if folder and (folder / wanted.file).is_file():
        path = folder / wanted.file
        if pooch.file_hash(str(path)) != wanted.sha256:
            log.warning("%s: not the picture known as %s (its SHA-256 differs); it is used anyway", path, name)
        return path
    base = (os.environ.get("TVAE_DATA_URL") or URL).rstrip("/")
    return fetch(wanted, [f"{base}/{place}" for place in FOLDERS], cache_dir(), folder)


def data_folder(data_dir: str | None) -> Path | None:
    """The user's folder of images, or None."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise UserError(f"data_dir={data_dir}: no such folder")
    folder = data_dir or os.environ.get("TVAE_DATA_DIR")
    return Path(folder) if folder else None


def vanhateren_address() -> str:
    """The folder that van Hateren's images are downloaded from."""
    base = os.environ.get("TVAE_DATA_URL")
    return f"{base.rstrip('/')}/vanhateren" if base else VANHATEREN_URL


def cache_dir() -> Path:
    """The folder of downloads and of files made from them."""
    return Path(os.environ.get("TVAE_CACHE_DIR") or pooch.os_cache("tvae"))


def fetch(wanted: NamedFile, addresses: Sequence[str], cache: Path, folder: Path | None) -> Path:
    """The file in the cache; if need be downloaded from the first address that has it, whole and with the right hash.

    `folder`: where the user may put the file instead.
    """
    path = cache / wanted.file
    if path.is_file() and wanted.sha256 == pooch.file_hash(str(path)):
        return path
    pooch.get_logger().setLevel("WARNING")
    log.info("downloading %s from %s", wanted.file, addresses[0])
    import requests  # a tenth of a second: where something is downloaded

    reasons = []
    for address in addresses:
        try:
            return Path(
                pooch.retrieve(
                    f"{address}/{wanted.file}",
                    wanted.sha256,
                    fname=wanted.file,
                    path=cache,
                    downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
                )
            )
        except (requests.RequestException, ValueError, OSError) as error:
            reasons.append(_reason(error))
            if not isinstance(error, (requests.HTTPError, ValueError)):
                break  # the other addresses are on the same host
    why = next((reason for reason in reasons if reason != NOT_THERE), NOT_THERE)
    where = folder or cache
    raise UserError(
        f"{wanted.file}: cannot be downloaded from {addresses[0]} ({why}); put it into {where}, or set data_dir"
    )


def _reason(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return NOT_THERE if error.response.status_code == 404 else f"HTTP {error.response.status_code}"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the transfer broke off"
    if isinstance(error, requests.Timeout):
        return "no answer"
    if isinstance(error, requests.RequestException):
        return "no connection"
    if isinstance(error, ValueError):
        return "the file there has another SHA-256"
    return f"{getattr(error, 'filename', None) or 'the cache'}: {getattr(error, 'strerror', None) or error}"
