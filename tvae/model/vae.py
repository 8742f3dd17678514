"""Theta = {pi, W, sigma2}, the log-joint of Eq. (1), and what follows from it for a set of states.

    log p(x, z) = log p(z) + log p(x | z, mu(z; W))

Values are the true ones, never up to a constant, so that ELBOs can be compared across models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor, nn

from tvae.errors import refuse
from tvae.fields import Open, option
from tvae.model.decoder import ACTIVATIONS, DECODERS, Decoder, decoder_from
from tvae.model.likelihood import LIKELIHOODS, Gaussian, Likelihood
from tvae.model.local_prior import Local
from tvae.model.parts import Places, Start
from tvae.model.prior import PRIORS, Bernoulli, Prior
from tvae.model.slab import Slab
from tvae.model.units import Units

PRIORS[Local.name], LIKELIHOODS[Slab.name] = Local, Slab  # which have modules of their own


@dataclass
class ModelConfig:
    decoder: str = option("mlp", "kind of decoder", choices=tuple(DECODERS))
    prior: Open[str] = option(
        "bernoulli", "prior of the latents: the same everywhere, or local, by the patches around; null: by the model",
        is_open=True, choices=tuple(PRIORS),
    )  # fmt: skip
    n_latents: Optional[int] = option(None, "H; null: by the data", ge=1)
    hidden: Optional[list[int]] = option(None, "units of each hidden layer, []: linear; null: one of n_latents", ge=1)
    activation: str = option("relu", "activation of the hidden layers", choices=tuple(ACTIVATIONS))
    pi: Optional[float] = option(None, "prior at the start; null: 1/H", gt=0, lt=1)
    likelihood: Open[str] = option(
        "gaussian", "noise model; slab: with Gaussian directions for every latent; null: by the data", is_open=True,
        choices=tuple(LIKELIHOODS),
    )  # fmt: skip
    slab: Open[int] = option(
        0,
        "directions of every latent (likelihood=slab), r; 0: the paper's; null: by the noise",
        is_open=True,
        ge=0,
    )
    sigma2: Optional[float] = option(
        0.01, "noise variance at the start, in the data's units; null: the data's variance, of bars 0.01", is_open=True,
        gt=0,
    )  # fmt: skip
    fixed_sigma2: Open[bool] = option(
        False, "the noise variance stays as it is at the start; null: where `sigma` is given", is_open=True
    )
    capped_sigma2: Open[bool] = option(
        False, "the noise variance is never above that of the start; null: of slabs, where that was estimated",
        is_open=True,
    )  # fmt: skip
    variances: Optional[list[float]] = option(
        None, "likelihood=known_variance: noise variance of each value of a data point, in the data's units", gt=0
    )
    solver: Open[str] = option(
        "adam", "training of the decoder: adam by minibatch, or (linear) exact once an epoch; null: by the model",
        is_open=True, choices=("adam", "exact"),
    )  # fmt: skip
    impute: Open[bool] = option(
        True, "adam: missing values stand at their posterior mean in the gradient, else are left out; null: by data",
        is_open=True,
    )  # fmt: skip
    counts_imputed: bool = option(
        False, "impute: missing values count as observed in sigma2, too, as in the published program"
    )


class Model(nn.Module):
    """A decoder, a likelihood and a prior, in the precision of the prior; Adam trains the `parameters()` of all."""

    def __init__(self, decoder: Decoder, prior: Prior, likelihood: Likelihood):
        super().__init__()
        self.decoder, self.likelihood, self.prior = decoder, likelihood, prior

    @property
    def pi(self) -> Tensor:
        """(H,): the probability that a latent is on; of a prior that differs between data points, the mean."""
        return self.prior.mean()

    @property
    def n_latents(self) -> int:
        return self.decoder.n_latents

    def log_prior(self, z: Tensor, index: Tensor | None = None) -> Tensor:
        """(..., H) -> (...): log p(z), of the data points with the numbers `index`."""
        return self.prior.log_prob(z, index)

    def log_joint(self, x: Tensor, z: Tensor, observed: Tensor | None = None, index: Tensor | None = None) -> Tensor:
        """x (B, D), z (B, S, H), observed (B, D) bool, index (B,) -> (B, S): log p(x, z)."""
        error = self.likelihood.error(x, self.decoder(z), z, observed)
        return self.log_prior(z, index) + self.likelihood.log_prob(error, x, observed)

    def sample(self, n_points: int, rng: torch.Generator) -> Tensor:
        """(N, D): draws from p(x), on the CPU's random numbers."""
        z = self.prior.sample(n_points, rng)
        return self.likelihood.sample(self.decoder(z), rng, z)

    def spec(self) -> dict[str, Any]:
        """Plain values from which `model_from` rebuilds the model, given its parameters."""
        return {**self.decoder.spec(), **self.prior.spec(), **self.likelihood.spec()}

    def parameters_by_name(self) -> dict[str, Tensor]:
        """All parameters as they are saved: those of the prior, the likelihood and the decoder."""
        prior = {_saved_name(name): value for name, value in self.prior.state_dict().items()}
        decoder = {f"decoder.{name}": value for name, value in self.decoder.state_dict().items()}
        return {**prior, **self.likelihood.state_dict(), **decoder}

    def problem(self, parameters: dict[str, Tensor]) -> str | None:
        """The reason why these cannot be the `parameters_by_name` of such a model after training, if there is one."""
        state = by_part(parameters)
        return self.prior.problem(state["prior"]) or self.likelihood.problem(state["likelihood"])

    @torch.no_grad()
    def load(self, parameters: dict[str, Tensor], of_other_data: bool = False) -> None:
        """Take over what `parameters_by_name` gave, of a model with the same `spec`.

        `of_other_data`: what a prior knows of single data points does not hold here.
        """
        mine = self.parameters_by_name()
        if mine.keys() != parameters.keys():
            raise ValueError(f"parameters {sorted(parameters)}, not {sorted(mine)}")
        per_point = {_saved_name(name) for name in self.prior.per_point} if of_other_data else set()
        for name, value in mine.items():
            if name in per_point:
                value.copy_(parameters["pi"])
                continue
            if value.shape != parameters[name].shape:
                raise ValueError(f"{name}: shape {tuple(parameters[name].shape)}, not {tuple(value.shape)}")
            value.copy_(parameters[name])


def _saved_name(name: str) -> str:
    """The name under which a prior's parameter is saved: `pi` has no prefix."""
    return name if name == "pi" else f"prior.{name}"


def by_part(parameters: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """`parameters_by_name` as the `state_dict` of `decoder`, `prior` and `likelihood`."""
    parts: dict[str, dict[str, Tensor]] = {"decoder": {}, "prior": {}, "likelihood": {}}
    for name, value in parameters.items():
        part, _, own = ("prior." + name if name == "pi" else name).partition(".")
        if part in ("decoder", "prior") and own:
            parts[part][own] = value
        else:
            parts["likelihood"][name] = value
    return parts


def start_model(
    options: ModelConfig,
    n_points: int,
    n_outputs: int,
    data_variance: float,
    units: Units,
    rng: torch.Generator,
    places: Places | None = None,
) -> Model:
    """Theta before training, each part by its name in the options."""
    assert options.n_latents is not None
    assert options.hidden is not None
    n_variances = n_outputs if options.variances is None else len(options.variances)
    refuse(n_variances != n_outputs, f"model.variances: {n_variances}, but a data point has {n_outputs} values")
    start = Start(options, n_points, n_outputs, data_variance, units, rng, places)
    return Model(
        DECODERS[options.decoder].start(start),
        PRIORS[options.prior].start(start),
        LIKELIHOODS[options.likelihood].start(start),
    )


def model_from(spec: dict[str, Any], parameters: dict[str, Tensor]) -> Model:
    """The model whose `spec` and `parameters_by_name` were saved."""
    state = by_part(parameters)
    return Model(
        decoder_from(spec, state["decoder"]),
        PRIORS[spec.get("prior", Bernoulli.name)](**state["prior"]),
        LIKELIHOODS[spec.get("likelihood", Gaussian.name)](**state["likelihood"]),
    )


def gaussian_model(decoder: Decoder, pi: Tensor, sigma2: float) -> Model:
    """The paper's model with these parameters."""
    return Model(decoder, Bernoulli(pi), Gaussian(torch.tensor(sigma2, dtype=pi.dtype)))


def log_likelihood(model: Model, x: Tensor, z: Tensor, observed: Tensor | None = None) -> Tensor:
    """(B,): log of the sum of p(x, z) over the states z (S, H); with all 2^H of them the exact log p(x)."""
    error = model.likelihood.error(x, model.decoder(z)[None], z[None], observed)
    return (model.log_prior(z) + model.likelihood.log_prob(error, x, observed)).logsumexp(1)
