"""Noise of several kinds on the development set: whether it is told what it is, and how well it is restored.

    python -m scripts.pictures.noise trials [--half B] [--n 100] [--seed 0]
    python -m scripts.pictures.noise table [--half B] [--seeds 0 1 2] [--effort fast] [--side 128] [--kinds ...]
    python -m scripts.pictures.noise frames [--seeds 0 1 2] [--effort fast] [--side 128]

`trials`: random pictures, kinds and strengths of noise, and what `tvae.noise.choice` says of them: the kind, for
photon counts the gain within 15 %, the correlation of neighbours within 0.1. `table`: blind restoration, beside the
plain Gaussian model (noise_model=gaussian; not run where the choice leaves the picture alone, for it is the same
then), the Gaussian blur of the best width, and for photon counts BM3D on values that were stabilised with the true gain
(package bm3d). `frames`: the same of made-up microscopy frames (`scripts.pictures.microscopy`). All write a line for
each case as they go on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import mean
from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter

import tvae
from scripts.paper.peers import bm3d
from scripts.pictures.development_set import HALVES, SIDE
from scripts.pictures.microscopy import frame
from tvae.data.corruption import add_correlated_noise, add_salt_and_pepper, compress, count_photons
from tvae.data.picture import Picture, add_noise
from tvae.io.image_file import from_array
from tvae.noise.choice import judge, with_noise_model
from tvae.noise.stabilise import Anscombe
from tvae.restoration.metrics import psnr

PEAK = 255.0
KINDS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "poisson30": lambda clean, seed: count_photons(clean, 30, seed),
    "poisson10": lambda clean, seed: count_photons(clean, 10, seed),
    "poisson4": lambda clean, seed: count_photons(clean, 4, seed),
    "correlated25": lambda clean, seed: add_correlated_noise(clean, 25, 1.0, seed),
    "saltpepper15": lambda clean, seed: add_salt_and_pepper(add_noise(clean, 15, seed), 0.02, seed),
    "gaussian15": lambda clean, seed: add_noise(clean, 15, seed),
    "gaussian25": lambda clean, seed: add_noise(clean, 25, seed),
    "jpeg30": lambda clean, seed: compress(add_noise(clean, 10, seed), 30),
}
FRAMES = [
    ("bilinear", 0.3, 2),
    ("bilinear", 2, 3),
    ("bilinear", 10, 5),
    ("1.0", 2, 3),
    ("1.0", 10, 5),
    ("1.5", 5, 4),
    ("white", 10, 5),
]
WIDTHS = np.arange(0.4, 6, 0.2)  # pixels that a picture is blurred by


class Case(NamedTuple):
    """Noise whose parameters are known."""

    name: str
    kind: str
    gain: float
    lag: float
    noisy: np.ndarray


def clean_of(half: str, side: int) -> dict[str, np.ndarray]:
    """Pictures (side, side, 1): the middle of each."""
    first = (SIDE - side) // 2
    part = slice(first, first + side)
    return {name: crop.read()[part, part, None] for name, crop in HALVES[half].items()}


def random_case(clean: np.ndarray, rng: np.random.Generator) -> Case:
    """White noise of 5 to 50 grey levels, 4 to 30 photons, or noise of 10 to 50 grey levels blurred by 0.7 to 1.3."""
    seed, which = int(rng.integers(2**31)), rng.integers(3)
    if which == 0:
        sigma = rng.uniform(5, 50)
        return Case(f"sigma {sigma:.0f}", "gaussian", 0.0, 0.0, add_noise(clean, sigma, seed))
    if which == 1:
        photons = rng.uniform(4, 30)
        return Case(
            f"photons {photons:.0f}", "poisson_gaussian", PEAK / photons, 0.0, count_photons(clean, photons, seed)
        )
    sigma, width = rng.uniform(10, 50), rng.uniform(0.7, 1.3)
    kernel = np.exp(-0.5 * (np.arange(-8, 9) / width) ** 2)
    lag = float(kernel[1:] @ kernel[:-1] / (kernel @ kernel))
    noisy = add_correlated_noise(clean, sigma, width, seed)
    return Case(f"sigma {sigma:.0f} blurred by {width:.1f}", "correlated", 0.0, lag, noisy)


def picture_of(pixels: np.ndarray) -> Picture:
    image = from_array(pixels[..., 0] if pixels.ndim == 3 else pixels)
    return Picture(image, image.pixels)


def mistake(case: Case) -> str:
    """The mistake that the choice makes of a case, or an empty string."""
    found = judge(picture_of(case.noisy), "auto")
    if found is None or found[0].kind != case.kind:
        return f"taken for {found and found[0].kind}"
    model = found[0]
    if case.gain and abs(model.line.gain / case.gain - 1) > 0.15:
        return f"gain {model.line.gain / case.gain:.2f} times the true one"
    is_right = abs(model.covariance.lag(1) - case.lag) <= 0.1
    return "" if is_right else f"correlation {model.covariance.lag(1):.2f} for {case.lag:.2f}"


def trials(half: str, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pictures = clean_of(half, SIDE)
    wrong = 0
    for i in range(n):
        name = list(pictures)[int(rng.integers(len(pictures)))]
        case = random_case(pictures[name], rng)
        found = mistake(case)
        wrong += bool(found)
        if found:
            print(f"{i + 1} {name}, {case.name}: {found}", flush=True)
    print(f"right in {n - wrong} of {n}")


def best_blur(clean: np.ndarray, noisy: np.ndarray) -> float:
    return max(psnr(clean, gaussian_filter(noisy, (width, width, 0)), PEAK) for width in WIDTHS)


def stabilised_bm3d(clean: np.ndarray, noisy: np.ndarray, gain: float) -> float:
    """Told the gain."""
    transform = Anscombe(gain, 0.0)
    return psnr(clean, transform.inverse(bm3d(transform.forward(noisy)[..., 0], 1.0))[..., None], PEAK)


def given(noisy: np.ndarray) -> np.ndarray:
    """(H, W): 8 bit where all are whole grey levels; else floating point, neither rounded nor clipped."""
    whole = noisy.clip(0, 255).astype(np.uint8)
    return whole[..., 0] if np.array_equal(noisy, whole) else noisy[..., 0] / PEAK


def restored(clean: np.ndarray, noisy: np.ndarray, noise_model: str, effort: str) -> float:
    """PSNR of what is made of a picture."""
    picture = given(noisy)
    found = tvae.denoise(picture, overrides=[f"noise_model={noise_model}", f"effort={effort}", "threads=1"])
    return psnr(clean[..., 0], found * (1.0 if picture.dtype == np.uint8 else PEAK), PEAK)


def is_left_alone(noisy: np.ndarray) -> bool:
    """True if nothing is done about the noise before the restoration."""
    return with_noise_model(picture_of(given(noisy)), "auto", None).treatment is None


def table(options: argparse.Namespace) -> None:
    pictures = clean_of(options.half, options.side)
    for kind in options.kinds or KINDS:
        rows = []
        for name, clean in pictures.items():
            for seed in options.seeds:
                noisy = KINDS[kind](clean, seed)
                found = {"auto": restored(clean, noisy, "auto", options.effort)}
                is_same = is_left_alone(noisy)
                found["plain"] = found["auto"] if is_same else restored(clean, noisy, "gaussian", options.effort)
                found["best blur"] = best_blur(clean, noisy)
                if kind.startswith("poisson"):
                    found["told, BM3D"] = stabilised_bm3d(clean, noisy, PEAK / float(kind.removeprefix("poisson")))
                rows.append(found)
                figures = ", ".join(f"{system} {value:.2f}" for system, value in found.items())
                print(f"{kind} {name} {seed}: {figures}", flush=True)
        print(f"{kind} mean: " + ", ".join(f"{system} {mean(row[system] for row in rows):.2f}" for system in rows[0]))


def frames(options: argparse.Namespace) -> None:
    for kernel, gain, read in FRAMES:
        for seed in options.seeds:
            clean, noisy = frame(options.side, seed, gain, read, kernel)
            figures = (
                f"auto {restored(clean, noisy, 'auto', options.effort):.2f}, best blur {best_blur(clean, noisy):.2f}"
            )
            print(f"{kernel}, variance {gain} x, read noise {read}, {seed}: {figures}", flush=True)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.pictures.noise", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("trials", "table", "frames"))
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", choices=tuple(HALVES), default="B")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--effort", default="fast")
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS))
    options = parser.parse_args(words)
    if options.what == "trials":
        trials(options.half, options.n, options.seed)
    else:
        {"table": table, "frames": frames}[options.what](options)


if __name__ == "__main__":
    main()
