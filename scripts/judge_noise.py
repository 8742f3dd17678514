"""Noise of several kinds on the development set: whether it is told what it is, and how well it is restored.

    python -m scripts.judge_noise trials [--n 100] [--seed 100]
    python -m scripts.judge_noise table [--half B] [--seeds 0 1 2] [--effort fast] [--side 128] [--kinds poisson4 ...]

`trials`: random pictures, kinds and strengths of noise, and what `tvae.data.noise_model` says of them: the kind, for
photon counts the gain within 15 %, the correlation of neighbours within 0.1. `table`: blind restoration, beside the
plain Gaussian model (noise_model=gaussian), the Gaussian blur of the best width, and for photon counts BM3D on values
that were stabilised with the true gain (package bm3d). Both write a line for each case as they go on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import mean
from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter

import tvae
from scripts.development_set import HALVES, SIDE
from scripts.peers import bm3d
from tvae.data.corruption import add_correlated_noise, add_salt_and_pepper, compress, count_photons
from tvae.data.noise_model import diagnose
from tvae.data.picture import add_noise
from tvae.data.stabilise import Anscombe
from tvae.restore.metrics import psnr

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


def mistake(case: Case) -> str:
    """What the diagnosis of a case gets wrong; empty: nothing."""
    model = diagnose(case.noisy, None, PEAK)
    if model is None or model.kind != case.kind:
        return f"taken for {model and model.kind}"
    if case.gain and abs(model.line.gain / case.gain - 1) > 0.15:
        return f"gain {model.line.gain / case.gain:.2f} times the true one"
    lag = model.lag(1) if model.is_correlated else 0.0  # else it is that of texture
    return "" if abs(lag - case.lag) <= 0.1 else f"correlation {lag:.2f} for {case.lag:.2f}"


def trials(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pictures = {**clean_of("A", SIDE), **clean_of("B", SIDE)}
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


def restored(clean: np.ndarray, noisy: np.ndarray, noise_model: str, effort: str) -> float:
    """Neither rounded nor clipped, as a floating-point picture is."""
    scaled = noisy[..., 0] / PEAK
    found = tvae.denoise(scaled, overrides=[f"noise_model={noise_model}", f"effort={effort}", "threads=1"])
    return psnr(clean[..., 0], found * PEAK, PEAK)


def table(options: argparse.Namespace) -> None:
    pictures = clean_of(options.half, options.side)
    for kind in options.kinds or KINDS:
        rows = []
        for name, clean in pictures.items():
            for seed in options.seeds:
                noisy = KINDS[kind](clean, seed)
                found = {each: restored(clean, noisy, each, options.effort) for each in ("auto", "gaussian")}
                found["best blur"] = best_blur(clean, noisy)
                if kind.startswith("poisson"):
                    found["told, BM3D"] = stabilised_bm3d(clean, noisy, PEAK / float(kind.removeprefix("poisson")))
                rows.append(found)
                figures = ", ".join(f"{system} {value:.2f}" for system, value in found.items())
                print(f"{kind} {name} {seed}: {figures}", flush=True)
        print(f"{kind} mean: " + ", ".join(f"{system} {mean(row[system] for row in rows):.2f}" for system in rows[0]))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.judge_noise", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("trials", "table"))
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--half", choices=tuple(HALVES), default="B")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--effort", default="fast")
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS))
    options = parser.parse_args(words)
    if options.what == "trials":
        trials(options.n, options.seed)
    else:
        table(options)


if __name__ == "__main__":
    main()
