"""Other systems on the same noisy and incomplete arrays as ours, for the tables of scripts/paper/tables.py.

    python -m scripts.paper.peers [outputs/peers]
    python -m scripts.paper.peers outputs/draws --only BM3D --seeds 0 1 2 3 4 5 6 7  # how much a draw decides

Measured: non-local means, total variation and wavelets (scikit-image), sparse coding with a dictionary learned from the
noisy image in the manner of KSVD (scikit-learn), BM3D (package `bm3d`, for non-commercial use) and, for missing pixels,
biharmonic interpolation (scikit-image). All but BM3D estimate the noise level from the image; their parameters were
chosen on `camera`, which is in no table. One file for each array; those that are there are left alone, and what is not
installed is left out and said.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from skimage.restoration import (
    denoise_nl_means,
    denoise_tv_chambolle,
    denoise_wavelet,
    estimate_sigma,
    inpaint_biharmonic,
)

from tvae.data.named import read_named
from tvae.data.picture import add_noise, drop_values
from tvae.errors import UserError
from tvae.io.atomic import write_atomically
from tvae.noise.level import known_values
from tvae.restoration.metrics import psnr

PLACE = Path("outputs/peers")
SEEDS = (0, 1, 2)
NOISE = (15.0, 25.0, 50.0)
MISSING = (("house", 0.5, "pixel"), ("castle", 0.5, "channel"), ("castle", 0.8, "channel"))  # the share, and per what
PATCH = 8


class Peer(NamedTuple):
    name: str
    restore: Callable[[np.ndarray, float], np.ndarray]  # (H, W) and the true noise level -> (H, W)
    needs: str
    how: str
    packages: tuple[str, ...]

    @property
    def is_installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.packages)


def non_local_means(noisy: np.ndarray, _: float) -> np.ndarray:
    sigma = estimate_sigma(noisy)
    return denoise_nl_means(noisy, 7 if sigma > 35 else 5, patch_distance=10, h=0.55 * sigma, sigma=sigma)


def total_variation(noisy: np.ndarray, _: float) -> np.ndarray:
    return denoise_tv_chambolle(noisy, weight=0.8 * estimate_sigma(noisy))


def wavelets(noisy: np.ndarray, _: float) -> np.ndarray:
    return denoise_wavelet(noisy, method="BayesShrink", mode="soft", rescale_sigma=True)


def bm3d(noisy: np.ndarray, sigma: float) -> np.ndarray:
    """(H, W) or (H, W, 1), or colour (H, W, 3), which has groups of its own (CBM3D)."""
    import bm3d as package

    return package.bm3d_rgb(noisy, sigma) if noisy.shape[2:] == (3,) else package.bm3d(noisy, sigma)


def dictionary(noisy: np.ndarray, _: float) -> np.ndarray:
    """A dictionary of 256 atoms, then orthogonal matching pursuit of every patch down to the noise (as KSVD does)."""
    from sklearn.decomposition import MiniBatchDictionaryLearning
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.image import extract_patches_2d, reconstruct_from_patches_2d
    from sklearn.linear_model import orthogonal_mp_gram

    sigma = estimate_sigma(noisy)
    patches = extract_patches_2d(noisy, (PATCH, PATCH)).reshape(-1, PATCH**2)
    means = patches.mean(1, keepdims=True)
    centred = patches - means
    learner = MiniBatchDictionaryLearning(
        256, alpha=1.5 * sigma, batch_size=256, max_iter=20, fit_algorithm="cd", random_state=0
    )
    with warnings.catch_warnings():  # a step of the learning need not converge
        warnings.simplefilter("ignore", ConvergenceWarning)
        atoms = learner.fit(centred[:: max(1, len(centred) // 20000)]).components_
    atoms = atoms / np.maximum(np.linalg.norm(atoms, axis=1, keepdims=True), 1e-12)
    gram, cross = atoms @ atoms.T, atoms @ centred.T
    code = orthogonal_mp_gram(
        gram, cross, tol=PATCH**2 * (1.15 * sigma) ** 2, norms_squared=(centred**2).sum(1), copy_Xy=False
    )
    return reconstruct_from_patches_2d((code.T @ atoms + means).reshape(-1, PATCH, PATCH), noisy.shape)


PEERS = (
    Peer("non-local means", non_local_means, "nothing", "scikit-image, noise level estimated", ("pywt",)),
    Peer("total variation", total_variation, "nothing", "scikit-image, noise level estimated", ("pywt",)),
    Peer("wavelets", wavelets, "nothing", "scikit-image, BayesShrink", ("pywt",)),
    Peer("dictionary (as KSVD)", dictionary, "nothing", "scikit-learn, noise level estimated", ("sklearn", "pywt")),
    Peer("BM3D", bm3d, "the noise level", "package bm3d, for non-commercial use", ("bm3d",)),
)


def arrays(seeds: Iterable[int]) -> Iterator[tuple[str, np.ndarray, np.ndarray, float, np.ndarray | None]]:
    """(name, clean, corrupted, noise level, missing) of every cell of the tables whose picture can be had."""
    pictures = {}
    for name in ("house", "castle"):
        try:
            pictures[name] = read_named(name).pixels
        except UserError as error:
            print(f"left out: {error}")
    for seed in seeds:
        for noise in NOISE if "house" in pictures else ():
            clean = pictures["house"]
            yield f"noise={noise:g},seed={seed}", clean, add_noise(clean, noise, seed), noise, None
        for picture, share, per in (cell for cell in MISSING if cell[0] in pictures):
            clean = pictures[picture]
            missing = drop_values(clean.shape if per == "channel" else clean.shape[:2], share, seed)
            corrupted = np.where(known_values(missing, clean.shape), clean, 0)
            by_channel = ",missing_per=channel" if per == "channel" else ""
            yield f"dataset={picture},missing={share:g}{by_channel},seed={seed}", clean, corrupted, 0.0, missing


def biharmonic(corrupted: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Every channel (H, W) by itself, from the values that are known of it."""
    planes, missing = (np.ascontiguousarray(np.moveaxis(array, -1, 0)) for array in (corrupted / 255.0, ~known))
    return 255 * np.stack(list(map(inpaint_biharmonic, planes, missing)), -1)


def measure(
    clean: np.ndarray, corrupted: np.ndarray, noise: float, missing: np.ndarray | None, known: Container[str] = ()
) -> dict[str, Any]:
    """PSNR and seconds of every peer that can be run here, but the known ones, on one array (H, W, C)."""
    found: dict[str, Any] = {}

    def run(name: str, needs: str, how: str, restore: Callable[[], np.ndarray]) -> None:
        if name in known:
            return
        started = time.perf_counter()
        try:
            restored = restore()
        except Exception as error:  # of another system, which must not end ours
            print(f"left out: {name}: {type(error).__name__}: {error}")
            return
        seconds = time.perf_counter() - started
        quality = psnr(clean, restored.reshape(clean.shape), 255.0)
        found[name] = {"psnr": quality, "seconds": seconds, "needs": needs, "how": how}

    if missing is not None:
        name = "biharmonic interpolation"
        run(name, "nothing", "scikit-image", lambda: biharmonic(corrupted, known_values(missing, clean.shape)))
        return found
    for peer in PEERS:
        if peer.is_installed:
            run(peer.name, peer.needs, peer.how, lambda peer=peer: peer.restore(corrupted[..., 0], noise))  # type: ignore[misc]
    return found


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.paper.peers", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--only", choices=[peer.name for peer in PEERS], help="this system alone")
    parser.add_argument("--seeds", type=int, nargs="+", help="of the corruption")
    options = parser.parse_args(words)
    if options.out is None and (options.only or options.seeds):
        parser.error(f"--only and --seeds: name a folder of their own; tables are made of all there is in {PLACE}")
    out = options.out or PLACE
    out.mkdir(parents=True, exist_ok=True)
    absent = [peer.name for peer in PEERS if not peer.is_installed]
    if absent:
        print(f"not installed, so left out: {', '.join(absent)}; pip install '.[peers]'")
    others = {peer.name for peer in PEERS if options.only not in (None, peer.name)}
    for name, clean, corrupted, noise, missing in arrays(options.seeds or SEEDS):
        if options.only and missing is not None:
            continue
        path = out / f"{name}.json"
        try:
            known = json.loads(path.read_text())
        except (OSError, ValueError):  # not there, or damaged
            known = {}
        found = measure(clean, corrupted, noise, missing, others | set(known))
        if found:
            write_atomically(path, (json.dumps(known | found, indent=2) + "\n").encode())
            print(name, "  ".join(f"{peer} {values['psnr']:.2f}" for peer, values in found.items()), flush=True)


if __name__ == "__main__":
    main()
