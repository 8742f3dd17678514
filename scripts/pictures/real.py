"""Real noise: frames of fluorescence microscopy and crops of photographs, each with a clean reference.

    python -m scripts.pictures.real [--only Confocal 5dmark3] [--side 256] [--effort fast] [--bounds]

Pictures are looked for in `real/microscopy` and `real/photos` of the data folder (`TVAE_DATA_DIR`): NAME_clean.png
beside NAME_noisy.png, or NAME_noisy_1.png and so on. For each a line: the noisy picture; the Gaussian blur of the best
width, which is told; BM3D (of photographs CBM3D) at the estimated level, and for microscopy after the estimated
stabilisation (package `bm3d`, left out where it is not installed); ours with `noise_model=gaussian` (plain) and as it
comes (auto), both with seconds; the noise that was found, and the bound of each candidate above white noise in nats per
value. Then means over microscopy and over photographs. `--bounds`: only the noise and the bounds, nothing is restored.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import numpy as np

import tvae
from scripts.pictures.noise import best_blur
from tvae.data.picture import Picture
from tvae.io.image_file import from_array, read_image
from tvae.noise.choice import judge
from tvae.noise.level import estimate_noise
from tvae.noise.model import NoiseModel
from tvae.noise.stabilise import Anscombe
from tvae.restoration.metrics import psnr

FOLDERS = ("microscopy", "photos")


def cases(only: list[str]) -> Iterator[tuple[str, Path, Path]]:
    """Folder, noisy and clean file of each picture whose name begins like one of `only`."""
    place = Path(os.environ.get("TVAE_DATA_DIR", ".")) / "real"
    for folder in FOLDERS:
        for noisy in sorted((place / folder).glob("*_noisy*.png")):
            clean = noisy.with_name(re.sub(r"_noisy.*", "_clean.png", noisy.name))
            if clean.exists() and (not only or noisy.name.startswith(tuple(only))):
                yield folder, noisy, clean


def middle(path: Path, side: int) -> np.ndarray:
    """(side, side, C) uint8."""
    pixels = read_image(path).pixels
    top, left = (max(0, (length - side) // 2) for length in pixels.shape[:2])
    return pixels[top : top + side, left : left + side].astype(np.uint8)


def judged(noisy: np.ndarray) -> NoiseModel:
    image = from_array(noisy if noisy.shape[2] > 1 else noisy[..., 0])
    found = judge(Picture(image, image.pixels), "auto")
    assert found is not None
    return found[0]


def by_bm3d(noisy: np.ndarray, model: NoiseModel) -> dict[str, np.ndarray]:
    """BM3D at the estimated level; of grey pictures also after the estimated stabilisation. Empty: not installed."""
    if find_spec("bm3d") is None:
        return {}
    from bm3d import bm3d, bm3d_rgb

    pixels = noisy.astype(np.float64)
    level = estimate_noise(pixels, None)
    if noisy.shape[2] > 1:
        return {"BM3D": bm3d_rgb(pixels, level)}
    found = {"BM3D": bm3d(pixels[..., 0], level)[..., None]}
    if model.line.gain > 0:
        transform = Anscombe(model.line.gain, model.line.offset)
        found["BM3D stabilised"] = transform.inverse(bm3d(transform.forward(pixels)[..., 0], 1.0))[..., None]
    return found


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.pictures.real", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of file names")
    parser.add_argument("--side", type=int, default=512, help="pixels of the middle")
    parser.add_argument("--effort", default="default")
    parser.add_argument("--bounds", action="store_true")
    options = parser.parse_args(words)
    rows: dict[str, list[dict[str, float]]] = {folder: [] for folder in FOLDERS}
    for folder, noisy_file, clean_file in cases(options.only):
        noisy, clean = (middle(file, options.side) for file in (noisy_file, clean_file))
        target = clean.astype(np.float64)
        model = judged(noisy)
        row = {"noisy": psnr(target, noisy.astype(np.float64), 255.0)}
        row["best blur"] = best_blur(target, noisy.astype(np.float64))
        seconds = []
        if not options.bounds:
            row |= {name: psnr(target, pixels, 255.0) for name, pixels in by_bm3d(noisy, model).items()}
            for name, kind in (("plain", "gaussian"), ("auto", "auto")):
                started = time.monotonic()
                restored = tvae.denoise(noisy, channel_axis=-1, noise_model=kind, effort=options.effort)
                row[name] = psnr(target, restored.reshape(noisy.shape).astype(np.float64), 255.0)
                seconds.append(time.monotonic() - started)
        rows[folder].append(row)
        figures = ", ".join(f"{name} {value:.2f}" for name, value in row.items())
        took = "".join(f", {each:.0f} s" for each in seconds)
        white = model.bounds["white"]
        bounds = ", ".join(f"{name} {nats - white:+.3f}" for name, nats in model.bounds.items() if name != "white")
        kind = f"{model.kind}, evenness {model.evenness:.2f}" + (f": {bounds}" if bounds else "")
        print(f"{noisy_file.stem}: {figures}{took} | {kind}", flush=True)
    for folder, found in rows.items():
        if found:
            shared = [name for name in found[0] if all(name in row for row in found)]
            print(
                f"{folder}, mean of {len(found)}: " + ", ".join(f"{n} {mean(r[n] for r in found):.2f}" for n in shared)
            )


if __name__ == "__main__":
    main()
