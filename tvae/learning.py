"""The M-step: the decoder by Adam on the q-weighted squared error, or exactly where it is linear; pi and sigma2.

    grad_W F = -1 / (2 sigma2) sum_n sum_z q_n(z) grad_W |x_n - mu(z; W)|^2                                     Eq. (4)
    sigma2   = 1 / (number of observed values) sum_n sum_z q_n(z) |x_n - mu(z; W)|^2                            Eq. (5)
    pi       = 1 / N sum_n sum_z q_n(z) z                                                                       Eq. (5)

`Totals` adds up over an epoch what the closed forms need. For a linear decoder with `solver=exact` it also adds up the
normal equations, one set for all outputs or, where data are missing, one for each output.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tvae.config import LrConfig
from tvae.decoder import Decoder
from tvae.inference import EStep
from tvae.model import PI_MIN, SIGMA2_MIN, Model, squared_error
from tvae.native import FirstLayer, add_moments, gradient, has_gradient, multiply_transposed, with_bias


class Rows(NamedTuple):
    """The states that carry weight, R in all, with the data point each belongs to."""

    point: Tensor  # (R,) place in the batch
    packed: Tensor  # (R, ceil(H/8)) uint8
    weight: Tensor  # (R,): q, adding up to 1 for each data point


def weighty_states(step: EStep, prune: float) -> Rows:
    """Leave out states with q below prune / S: at most `prune` of the mass of a data point; the rest is rescaled.

    On accelerators all stay in: how many there are would have to be waited for.
    """
    weights = step.weights
    if prune == 0 or weights.device.type != "cpu":
        batch, n_states = weights.shape
        point = torch.arange(batch, device=weights.device).repeat_interleave(n_states)
        return Rows(point, step.packed.flatten(0, 1), weights.flatten())
    kept = weights >= prune / weights.shape[1]
    weights = weights * kept
    weights = weights / weights.sum(1, keepdim=True)
    point, place = kept.nonzero(as_tuple=True)
    return Rows(point, step.packed[point, place], weights[point, place])


def outputs(decoder: Decoder, rows: Rows) -> Tensor:
    """(R, D): mu of each row."""
    return decoder.rest(FirstLayer.apply(rows.packed, decoder.weights[0], decoder.biases[0]))


def decoder_loss(
    model: Model,
    x: Tensor,
    rows: Rows,
    observed: Tensor | None = None,
    impute: bool = False,
    n_points: int | None = None,
) -> Tensor:
    """-F / B up to terms without W; its gradient is Eq. (4) divided by the number of data points.

    `n_points`: B, where the minibatch has more data points than are here.

    Missing values are left out, or with `impute` (paper, Appendix C) stand at their posterior mean, Eq. (15).
    """
    mu = outputs(model.decoder, rows)
    if observed is not None and impute:
        mean = torch.zeros_like(x).index_add_(0, rows.point, rows.weight[:, None] * mu.detach())
        x, observed = torch.where(observed, x, mean), None
    of_point = None if observed is None else observed[rows.point]
    error = squared_error(x[rows.point], mu[:, None], of_point)[:, 0]
    return (rows.weight * error).sum() / (2 * model.sigma2 * (n_points or len(x)))


def set_gradient(
    model: Model,
    x: Tensor,
    rows: Rows,
    observed: Tensor | None = None,
    impute: bool = False,
    n_points: int | None = None,
) -> None:
    """Give the decoder's parameters the gradient of `decoder_loss`."""
    parameters = [*model.decoder.weights, *model.decoder.biases]
    if has_gradient(model.decoder, x) and not (impute and observed is not None):
        scale = 1 / (model.sigma2.item() * (n_points or len(x)))
        gradients = gradient(model.decoder, x, rows.point, rows.packed, rows.weight, scale, observed)
    else:
        gradients = list(torch.autograd.grad(decoder_loss(model, x, rows, observed, impute, n_points), parameters))
    for parameter, its_gradient in zip(parameters, gradients, strict=True):
        parameter.grad = its_gradient


class Totals:
    """Sums over the data points visited so far in this epoch; in float64 where the device has it."""

    def __init__(self, model: Model, exact: bool, masked: bool):
        n_latents, n_outputs = model.decoder.sizes[0], model.decoder.sizes[-1]
        device = model.pi.device
        dtype = torch.float32 if device.type == "mps" else torch.float64

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.sums = {name: zeros() for name in ("n_points", "n_observed", "elbo", "n_accepted", "error")}
        self.sums["active"] = zeros(n_latents)
        if exact:  # normal equations for [W; b]: gram [W; b] = cross
            n_sets = n_outputs if masked else 1
            self.sums["gram"] = zeros(n_sets, n_latents + 1, n_latents + 1)
            self.sums["cross"] = zeros(n_latents + 1, n_outputs)
            self.sums["square"] = zeros(n_outputs)

    def __getitem__(self, name: str) -> Tensor:
        return self.sums[name]

    def add(self, x: Tensor, step: EStep, rows: Rows, observed: Tensor | None = None) -> None:
        """Count in a batch: x (B, D) with its E-step and the states that carry weight."""
        sums = self.sums
        sums["n_points"] += len(x)
        sums["n_observed"] += x.numel() if observed is None else observed.sum()
        sums["elbo"] += step.elbo.sum()
        sums["n_accepted"] += step.n_accepted
        sums["error"] += (step.weights * step.error).sum()
        sums["active"] += multiply_transposed(rows.packed, rows.weight[:, None], len(sums["active"]))[:, 0]
        if "gram" in sums:
            self._add_normal_equations(x, rows, observed)

    def _add_normal_equations(self, x: Tensor, rows: Rows, observed: Tensor | None) -> None:
        sums = self.sums
        if observed is None:
            mean = add_moments(sums["gram"][0], rows.packed, rows.weight, rows.point, len(x))
        else:
            x = x * observed
            y = with_bias(rows.packed, len(sums["active"]), x.dtype)
            weighted = y * rows.weight[:, None]
            of_output = observed[rows.point].T.to(y.dtype)  # (D, R)
            sums["gram"] += (of_output[:, None] * weighted.T) @ y  # (D, H+1, R) @ (R, H+1)
            mean = y.new_zeros(len(x), y.shape[1]).index_add_(0, rows.point, weighted)
        sums["cross"] += mean.T @ x
        sums["square"] += x.square().sum(0)


@torch.no_grad()
def update_prior_and_noise(model: Model, totals: Totals) -> None:
    """Eq. (5), kept off the borders."""
    model.pi.copy_((totals["active"] / totals["n_points"]).clamp(PI_MIN, 1 - PI_MIN))
    model.sigma2.copy_((totals["error"] / totals["n_observed"]).clamp(min=SIGMA2_MIN))


@torch.no_grad()
def solve_linear(model: Model, totals: Totals) -> None:
    """The W and b that maximise F for these q, and the squared error they leave in `totals`.

    What is solved for is the change of the weights, with a small ridge: latents that were never on keep theirs.
    """
    weight, bias = model.decoder.weights[0], model.decoder.biases[0]
    gram, cross = totals["gram"], totals["cross"]
    old = torch.cat([weight, bias[None]]).to(gram.dtype)  # (H+1, D)
    columns = old.T[..., None] if len(gram) > 1 else old[None]  # (D, H+1, 1) or (1, H+1, D)
    target = cross.T[..., None] if len(gram) > 1 else cross[None]
    ridge = torch.finfo(gram.dtype).eps ** 0.5 * totals["n_points"] / weight.shape[0]
    identity = torch.eye(len(old), dtype=gram.dtype, device=gram.device)
    columns = columns + torch.linalg.solve(gram + ridge * identity, target - gram @ columns)
    new = columns[..., 0].T if len(gram) > 1 else columns[0]
    weight.copy_(new[:-1])
    bias.copy_(new[-1])
    fitted = (columns * (gram @ columns - 2 * target)).sum()
    totals.sums["error"] = (totals["square"].sum() + fitted).clamp(min=0)


def make_schedule(
    optimiser: torch.optim.Optimizer, lr: LrConfig, n_batches: int, n_epochs: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate over minibatch steps, `n_batches` to each of `n_epochs`."""
    assert lr.max is not None
    if lr.kind == "cyclic":
        half = max(1, round((lr.epochs_per_cycle or n_epochs) * n_batches / 2))
        return torch.optim.lr_scheduler.CyclicLR(
            optimiser, base_lr=lr.min, max_lr=lr.max, step_size_up=half, cycle_momentum=False
        )
    if lr.kind == "decay":
        gamma = 0.5 ** (1 / (lr.epochs_to_half * n_batches))
        return torch.optim.lr_scheduler.ExponentialLR(optimiser, gamma)
    return torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0)
