"""The files of the restored picture: in the run directory, and at `output=PATH`."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from tvae.config.schema import Config
from tvae.data.picture import Picture
from tvae.errors import Failure, UserError, refuse
from tvae.io.atomic import check_writable, write_atomically
from tvae.io.formats import FORMATS, encode
from tvae.io.image_file import Image, in_kind, stretched, to_output
from tvae.io.stack_file import encode_picture, read_picture
from tvae.runs.callbacks.output_pictures import is_png
from tvae.runs.files import NAMED

log = logging.getLogger("tvae.train")

SHOWN, EXACT = "restored.png", "restored.tiff"  # the second one where a PNG file cannot hold the values


def result_file(path: Path) -> Path | None:
    """The restored picture in a run directory, with the values that it has; None: there is none."""
    return next((path / name for name in (EXACT, SHOWN) if (path / name).is_file()), None)


def is_complete(path: Path, picture: Picture | None) -> bool:
    """True if a finished run's picture is there, or if there is none."""
    if picture is None:
        return True
    names = (SHOWN,) if is_png(picture.image) else (SHOWN, EXACT)
    return all((path / name).is_file() for name in names)


def check_output(config: Config, path: Path) -> None:
    """Raise `UserError` if `output` cannot be written, before any work is done. `path`: the run directory."""
    if config.output is None:
        return
    target, what = Path(config.output), f"output={config.output}"
    ending = target.suffix.lower()
    kinds = sorted(FORMATS, key=lambda each: FORMATS[each].dtypes == ("uint8",))  # those that hold more come first
    refuse(ending not in FORMATS, f"{what}: the ending tells the kind of file, which can be {', '.join(kinds)}")
    refuse(target.is_dir(), f"{what}: is a folder; name a file in it")
    refuse(target.is_symlink(), f"{what}: is a link to elsewhere; name a file")
    refuse(target.exists() and not target.is_file(), f"{what}: is a pipe or device; name a file")
    refuse(not target.parent.is_dir(), f"{what}: there is no folder {target.parent}")
    for name in ("image", "clean", "mask", "sigma_map"):
        given = getattr(config, name)
        is_same = given is not None and target.exists() and Path(given).exists() and target.samefile(given)
        refuse(is_same, f"{what}: is what {name}= reads; name another file")
    is_runs = target.resolve().parent == path.resolve() and target.name in NAMED
    refuse(is_runs, f"{what}: a run has a file of that name in its directory; name another one")
    # A finished run may have written it: then `deliver` compares.
    is_free = not target.exists() or config.overwrite or (result_file(path) is not None and not config.restart)
    refuse(not is_free, _exists(what))
    if config.overwrite or not target.exists():
        check_writable(target.parent, target.name, what)


def check_kind(config: Config, picture: Picture | None) -> None:
    """Raise `UserError` if a file of the kind of `output` cannot hold the picture, before it is restored."""
    if config.output is None:
        return
    if picture is None:
        raise UserError(f"output={config.output}: dataset={config.dataset.name} is not an image")
    _content(picture.noisy, picture.image, Path(config.output).suffix.lower())


def deliver(config: Config, path: Path, picture: Picture | None) -> None:
    """Write the result of the run in `path` to `output`; what is there already and equal stays."""
    source = result_file(path)
    if config.output is None or picture is None or source is None:
        return
    target = Path(config.output)
    ending = target.suffix.lower()
    content = _content(read_picture(source).pixels, picture.image, ending)
    if target.exists() and target.read_bytes() == content:
        return
    refuse(target.exists() and not config.overwrite, _exists(f"output={target}"))
    if not FORMATS[ending].holds_type(picture.image.dtype):
        seen = stretched(picture.image)
        log.info(
            "%s holds 8 bit, black being %.6g and white %.6g; %s has the %s values",
            target, seen.low, seen.low + seen.peak, source, picture.image.dtype,
        )  # fmt: skip
    write_atomically(target, content)


def tell_result(config: Config, path: Path) -> None:
    """Print the path of the restored picture on stdout, alone on the last line, for scripts."""
    found = result_file(path) if config.output is None else Path(config.output)
    if found is not None and found.exists():
        try:
            print(found, flush=True)
        except OSError as error:
            raise Failure(f"{found} is written, but not its path to stdout ({error.strerror})") from error


def _content(pixels: np.ndarray, image: Image, ending: str) -> bytes:
    """The content of a file with this ending that holds (H, W, C) in the form of `image`, or `UserError`."""
    is_one = image.layout is None or (not image.layout.page_axes and FORMATS[ending].dtypes is not None)
    if is_one:
        return encode(in_kind(pixels, replace(image, layout=None), ending), ending, image.scale, image.last_channel)
    return encode_picture(to_output(pixels, image), image.layout, ending, image.scale, image.last_channel)


def _exists(what: str) -> str:
    return f"{what}: exists already; overwrite=true replaces it"
