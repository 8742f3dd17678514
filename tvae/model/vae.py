"""Theta = {pi, W, sigma2}, the log-joint of Eq. (1), and what follows from it for a set of states.

    log p(x, z) = sum_h [z_h log pi_h + (1 - z_h) log(1 - pi_h)] + log p(x | mu(z; W))

Values are the true ones, never up to a constant, so that ELBOs can be compared across models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor, nn

from tvae.errors import refuse
from tvae.fields import Open, option
from tvae.model.decoder import ACTIVATIONS, Decoder, Mlp, restore_decoder
from tvae.model.likelihood import LIKELIHOODS, Gaussian, Likelihood, restore_likelihood
from tvae.model.units import Units

PI_MIN = 1e-6  # pi is kept within [PI_MIN, 1 - PI_MIN], off the poles of the log-joint


@dataclass
class ModelConfig:
    n_latents: Optional[int] = option(None, "H; null: by the data", ge=1)
    hidden: Optional[list[int]] = option(None, "units of each hidden layer, []: linear; null: one of n_latents", ge=1)
    activation: str = option("relu", "of the hidden layers", choices=tuple(ACTIVATIONS))
    pi: Optional[float] = option(None, "prior at the start; null: 1/H", gt=0, lt=1)
    likelihood: str = option("gaussian", "noise model", choices=tuple(LIKELIHOODS))
    sigma2: Optional[float] = option(
        0.01, "noise variance at the start, in the data's units; null: the data's variance, of bars 0.01", is_open=True,
        gt=0,
    )  # fmt: skip
    variances: Optional[list[float]] = option(
        None, "likelihood=known_variance: noise variance of each value of a data point, in the data's units", gt=0
    )
    solver: str = option(
        "adam", "of the decoder: adam by minibatch, or (linear only) exact once an epoch", choices=("adam", "exact")
    )
    impute: Open[bool] = option(
        True, "adam: missing values stand at their posterior mean in the gradient, else are left out; null: by data",
        is_open=True,
    )  # fmt: skip
    counts_imputed: bool = option(
        False, "impute: missing values count as observed in sigma2, too, as in the published program"
    )


class Model(nn.Module):
    """A decoder, the prior `pi` (H,) and the likelihood, in the precision of `pi`."""

    pi: Tensor

    def __init__(self, decoder: Decoder, pi: Tensor, likelihood: Likelihood):
        super().__init__()
        self.decoder = decoder
        self.register_buffer("pi", pi.clamp(PI_MIN, 1 - PI_MIN))
        self.likelihood = likelihood

    @property
    def n_latents(self) -> int:
        return len(self.pi)

    def log_prior(self, z: Tensor) -> Tensor:
        """(..., H) -> (...): log p(z)."""
        return z @ torch.logit(self.pi) + torch.log1p(-self.pi).sum()

    def log_joint(self, x: Tensor, z: Tensor, observed: Tensor | None = None) -> Tensor:
        """x (B, D), z (B, S, H), observed (B, D) bool -> (B, S): log p(x, z)."""
        error = self.likelihood.error(x, self.decoder(z), observed)
        return self.log_prior(z) + self.likelihood.log_prob(error, x, observed)

    def sample(self, n_points: int, rng: torch.Generator) -> Tensor:
        """(N, D): draws from p(x), on the CPU's random numbers."""
        dtype, device = self.pi.dtype, self.pi.device
        z = (torch.rand(n_points, self.n_latents, generator=rng, dtype=dtype).to(device) < self.pi).to(dtype)
        return self.likelihood.sample(self.decoder(z), rng)

    def spec(self) -> dict[str, Any]:
        """Plain values from which `restore_model` rebuilds the model, given its parameters."""
        return {**self.decoder.spec(), **self.likelihood.spec()}

    def parameters_by_name(self) -> dict[str, Tensor]:
        """All parameters as they are saved: pi, those of the likelihood, those of the decoder."""
        decoder = {f"decoder.{name}": value for name, value in self.decoder.state_dict().items()}
        return {"pi": self.pi, **self.likelihood.state_dict(), **decoder}

    @torch.no_grad()
    def load(self, parameters: dict[str, Tensor]) -> None:
        """Take over what `parameters_by_name` gave, of a model with the same `spec`."""
        mine = self.parameters_by_name()
        if mine.keys() != parameters.keys():
            raise ValueError(f"parameters {sorted(parameters)}, not {sorted(mine)}")
        for name, value in mine.items():
            if value.shape != parameters[name].shape:
                raise ValueError(f"{name}: shape {tuple(parameters[name].shape)}, not {tuple(value.shape)}")
            value.copy_(parameters[name])


def start_model(
    options: ModelConfig, n_outputs: int, data_variance: float, units: Units, rng: torch.Generator
) -> Model:
    """Theta before training: Glorot weights, zero biases, `pi` and the likelihood as configured."""
    assert options.n_latents is not None
    assert options.hidden is not None
    n_variances = n_outputs if options.variances is None else len(options.variances)
    refuse(n_variances != n_outputs, f"model.variances: {n_variances}, but a data point has {n_outputs} values")
    decoder = Mlp(options.n_latents, options.hidden, n_outputs, options.activation, rng)
    pi = torch.full((options.n_latents,), options.pi or 1 / options.n_latents, dtype=torch.float64)
    kind = LIKELIHOODS[options.likelihood]
    return Model(decoder, pi, kind.start(options.sigma2, options.variances, data_variance, units))


def restore_model(spec: dict[str, Any], parameters: dict[str, Tensor]) -> Model:
    """The model whose `spec` and `parameters_by_name` were saved."""
    parts: dict[str, dict[str, Tensor]] = {"decoder": {}, "likelihood": {}}
    for name, value in parameters.items():
        if name != "pi":
            is_decoders = name.startswith("decoder.")
            parts["decoder" if is_decoders else "likelihood"][name.removeprefix("decoder.")] = value
    decoder = restore_decoder(spec, parts["decoder"])
    return Model(decoder, parameters["pi"], restore_likelihood(spec, parts["likelihood"]))


def gaussian_model(decoder: Decoder, pi: Tensor, sigma2: float) -> Model:
    """The paper's model with these parameters."""
    return Model(decoder, pi, Gaussian(torch.tensor(sigma2, dtype=pi.dtype)))


def log_likelihood(model: Model, x: Tensor, z: Tensor, observed: Tensor | None = None) -> Tensor:
    """(B,): log of the sum of p(x, z) over the states z (S, H); with all 2^H of them the exact log p(x)."""
    error = model.likelihood.error(x, model.decoder(z)[None], observed)
    return (model.log_prior(z) + model.likelihood.log_prob(error, x, observed)).logsumexp(1)
