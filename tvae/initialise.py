"""Start a run from the end of another one: the same decoder, or a deep one from a linear one; pi, sigma2, states."""

from __future__ import annotations

from pathlib import Path

import torch

from tvae import checkpoint
from tvae.checkpoint import DamagedCheckpoint
from tvae.config import UserError
from tvae.decoder import Decoder, why_not_from_linear
from tvae.fit import Fit


def start_from_run(fit: Fit, directory: Path) -> None:
    """Take over parameters and, where they are of the same number and size, states."""
    try:
        saved = checkpoint.load_newest(directory)
        assert saved is not None
        source = saved["fit"]
        sizes, activation = source["sizes"], source["activation"]
    except (DamagedCheckpoint, KeyError, AssertionError) as error:
        raise UserError(f"init_from={directory}: no usable checkpoint there ({error})") from error
    model = fit.model
    if source["units"] != [fit.units.mean, fit.units.std]:
        raise UserError(f"init_from={directory}: that run was trained on other data, or on another scale")
    if sizes == model.decoder.sizes and activation == model.decoder.activation:
        model.load_state_dict(source["model"])
    else:
        problems = why_not_from_linear(model.decoder.sizes, model.decoder.activation, sizes)
        if problems:
            raise UserError(*(f"init_from={directory}: {problem}" for problem in problems))
        linear = Decoder(sizes[0], [], sizes[-1], activation, torch.Generator())
        prefix = "decoder."
        linear.load_state_dict({k.removeprefix(prefix): v for k, v in source["model"].items() if k.startswith(prefix)})
        model.decoder.start_from_linear(linear.to(fit.data.device, fit.dtype))
        model.pi.copy_(source["model"]["pi"])
        model.sigma2.copy_(source["model"]["sigma2"])
    if source["states"].shape == fit.states.shape:
        fit.states.copy_(source["states"])
