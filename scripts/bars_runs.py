"""Runs on bars, and what their models make of the bars (Appendix B)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from tvae.config.checks import read_config
from tvae.config.recipe import prepare
from tvae.data.dataset import DataConfig, Dataset
from tvae.data.sets.bars import BarsConfig, bar_images, inhibited_pairs
from tvae.errors import UserError
from tvae.inference.states import all_states
from tvae.model.vae import Model, log_likelihood
from tvae.runs.callbacks.figures import one_hot_outputs
from tvae.runs.files import CONFIG, METRICS
from tvae.runs.initialise import load_model
from tvae.runs.run_directory import read_metrics
from tvae.runs.setup import make_fit
from tvae.runs.starts import start_config


@dataclass
class Run:
    directory: Path
    config: BarsConfig
    metrics: dict[str, Any]
    model: Model
    similarity: Tensor  # (n_bars,): cosine of each one-hot output with the bar it stands for


def load_runs(directory: Path) -> list[Run]:
    runs = []
    for path in sorted(directory.glob(f"*/{METRICS}")):
        metrics = read_metrics(path.parent)
        try:
            config = read_config(path.parent / CONFIG).dataset
        except UserError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        if isinstance(config, BarsConfig) and metrics and metrics["status"] == "finished":
            model = load_model(path.parent)[0].double()
            runs.append(Run(path.parent, config, metrics, model, match_bars(model, config.size)))
    return runs


def dataset_of(config: BarsConfig) -> Dataset:
    return config.make(DataConfig(dataset=config), None)


@torch.no_grad()
def match_bars(model: Model, size: int) -> Tensor:
    """Each true bar's cosine with the one-hot output matched to it, a different one for each bar."""
    z = torch.eye(model.n_latents, dtype=torch.float64)
    fields = model.decoder(z) - model.decoder(torch.zeros_like(z[:1]))
    cosine = torch.nn.functional.cosine_similarity(bar_images(size)[:, None], fields, dim=-1)
    bars, latents = linear_sum_assignment(-cosine.numpy())
    found = torch.zeros(2 * size, dtype=torch.float64)
    found[bars] = cosine[bars, latents]
    return found


def fields_of_start(directory: Path) -> list[tuple[int, Tensor]]:
    """(epoch, what each latent adds (H, D)) of the start that a run took, by training all its starts again.

    Nothing if the run had a single start, whose epochs are its own.
    """
    config, dataset = prepare(read_config(directory / CONFIG))
    starts = []
    for number in range(config.n_starts if config.n_starts > 1 else 0):
        trial = make_fit(start_config(config, number), dataset)
        shown = [(0, one_hot_outputs(trial))]
        for epoch in trial.epochs():
            shown.append((epoch.epoch, one_hot_outputs(trial)))
        starts.append((epoch.elbo, shown))
    return max(starts, key=lambda start: start[0], default=(0, []))[1]


class Pairs(NamedTuple):
    """The noiseless pictures of two bars, the forbidden pairs first, and their log p(x)."""

    x: Tensor  # (P, D)
    inferred: Tensor  # (P,)
    true: Tensor  # (P,)
    n_forbidden: int


@torch.no_grad()
def pair_likelihoods(run: Run) -> Pairs:
    bars, size = bar_images(run.config.size), run.config.size
    forbidden = {tuple(sorted(pair)) for pair in inhibited_pairs(size)}
    pairs = sorted(combinations(range(2 * size), 2), key=lambda pair: pair not in forbidden)
    x = torch.stack([bars[a] + bars[b] for a, b in pairs])
    truth = dataset_of(run.config).truth
    assert truth is not None
    inferred, true = (log_likelihood(m, x, all_states(m.n_latents).double()) for m in (run.model, truth))
    return Pairs(x, inferred, true, len(forbidden))
