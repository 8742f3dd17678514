"""Ranking of models by the bound and by PSNR: settings of the slab model on half A of the development set.

    python -m scripts.pictures.ranking [--pictures house camera] [--sigma 25 50] [--side 128] [--epochs 10] [--seed 100]

Each setting changes one thing of the recipe: latents, directions, prior, latents that are on, depth. A line for each
model: its bound in nats per pixel of a patch, of the final parameters, and the PSNR of its posterior mean. Then, for
each picture, Spearman's rank correlation of the two over the settings.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import spearmanr

from scripts.pictures.noise import PEAK, clean_of
from tvae.arguments import compose_options, opened
from tvae.config.recipe import prepare
from tvae.data.picture import add_noise
from tvae.restoration.metrics import psnr
from tvae.restoration.pipeline import restore_by_model
from tvae.restoration.tiling import Bands
from tvae.runs.session import Session

NO_SLAB = "model.slab=0"  # the paper's model, which learns by small steps
EPOCHS_OF_ADAM = 5  # for each epoch of an exact M-step
SETTINGS: dict[str, list[str]] = {
    "recipe": [],
    "8 latents": ["model.n_latents=8"],
    "32 latents": ["model.n_latents=32"],
    "300 latents": ["model.n_latents=300"],
    "1 direction": ["model.slab=1"],
    "4 directions": ["model.slab=4"],
    "24 directions": ["model.slab=24"],
    "global prior": ["model.prior=bernoulli"],
    "one latent on": ["ea.most_on=1"],
    "three latents on": ["ea.most_on=3"],
    "no directions, deep mean": [NO_SLAB],
}


def judge(noisy: np.ndarray, clean: np.ndarray, setting: list[str], epochs: int) -> tuple[float, float]:
    """(H, W, 1) each: the bound per pixel of a patch, and the PSNR of the posterior mean."""
    picture, _ = opened(noisy[..., 0], None, None, None)
    n_epochs = epochs * EPOCHS_OF_ADAM if NO_SLAB in setting else epochs
    config = compose_options([f"epochs={n_epochs}", *setting], {})
    config.task = "train"
    config, dataset = prepare(config, picture)
    session = Session(config, dataset)
    for _ in session.fit.epochs():
        pass
    restored = restore_by_model(session.fit, picture, config, config.restoration.n_rounds, Bands())
    return session.fit.bound() / dataset.source.n_values, psnr(clean, restored.pixels, PEAK)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.pictures.ranking", description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", nargs="+", default=["house", "camera"])
    parser.add_argument("--sigma", type=float, nargs="+", default=[25.0, 50.0])
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    options = parser.parse_args(words)
    pictures = clean_of("A", options.side)
    print("| picture | sigma | setting | bound, nats per pixel | PSNR of the model |")
    print("|---|---|---|---|---|")
    correlations = []
    for name in options.pictures:
        for sigma in options.sigma:
            noisy = add_noise(pictures[name], sigma, options.seed, PEAK)
            found = []
            for setting in options.settings:
                found.append(judge(noisy, pictures[name], SETTINGS[setting], options.epochs))
                bound, quality = found[-1]
                print(f"| {name} | {sigma:g} | {setting} | {bound:.4f} | {quality:.2f} |", flush=True)
            correlations.append((name, sigma, float(spearmanr(found).statistic)))
    for name, sigma, correlation in correlations:
        print(f"{name} at {sigma:g}: rank correlation {correlation:.2f}")


if __name__ == "__main__":
    main()
