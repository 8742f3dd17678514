"""Facts about the true model behind the data, for comparison with a run's results."""

from __future__ import annotations

import torch

from tvae.config.schema import Config
from tvae.data.dataset import Dataset
from tvae.data.sets.bars import SIMILAR, BarsConfig, match_bars
from tvae.inference.states import all_states
from tvae.model.units import Units
from tvae.model.vae import Model, log_likelihood


@torch.no_grad()
def known_facts(config: Config, dataset: Dataset) -> dict[str, float]:
    """Values of metrics.json, beside ELBO and sigma."""
    if dataset.picture is not None and config.noise is not None and config.corruption not in ("poisson", "jpeg"):
        return {"sigma_true": config.noise * dataset.picture.image.peak / 255}
    if dataset.truth is None:
        return {}
    truth, source = dataset.truth, dataset.source
    everything = source.reader(range(source.n_points), Units(), truth.pi.device, truth.pi.dtype)
    x, observed = everything.take(torch.arange(source.n_points))
    z = all_states(truth.n_latents).to(truth.pi.dtype)
    exact = log_likelihood(truth, x, z, observed).mean().item()
    return {"log_likelihood_true": exact, "sigma_true": truth.likelihood.sigma(Units())}


def recovered_facts(config: Config, model: Model) -> dict[str, int]:
    """Values of metrics.json that say how much of the truth a trained model has found."""
    if not isinstance(config.dataset, BarsConfig):
        return {}
    similarity = match_bars(model, config.dataset.size)
    return {"bars": len(similarity), "bars_found": int((similarity > SIMILAR).sum())}
