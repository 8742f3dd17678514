"""The M-step in closed form: the parameters of prior and likelihood, and a linear decoder.

    pi     = 1 / N sum_n sum_z q_n(z) z                                                                         Eq. (5)
    sigma2 = 1 / (number of observed values) sum_n sum_z q_n(z) |x_n - mu(z; W)|^2                              Eq. (5)

`Totals` adds up over an epoch what the closed forms need. For a linear decoder with `solver=exact` it also adds up the
normal equations, one set for all outputs or, where data are missing, one for each output. All other decoders learn by
Adam, from the gradient of Eq. (4) that a backend computes. With `counts_imputed` missing values stand at their
posterior mean and count as observed in sigma2, as in the published program (deviation 2 in the README).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from tvae.inference.posterior import EStep, outputs
from tvae.model.decoder import Mlp
from tvae.model.packed import Products, with_bias
from tvae.model.parts import Rows, Visited
from tvae.model.slab import Slab
from tvae.model.vae import Model


class Totals:
    """Sums over the data points visited so far in this epoch; in float64 where the device has it."""

    def __init__(self, model: Model, is_exact: bool, is_masked: bool, counts_imputed: bool = False):
        n_latents, n_outputs = model.n_latents, model.decoder.n_outputs
        self.device, self.is_exact = model.pi.device, is_exact
        self.dtype = torch.float32 if self.device.type == "mps" else torch.float64
        self.sums = {name: self._zeros() for name in ("n_points", "n_observed", "elbo", "n_accepted")}
        for part in (model.likelihood, model.prior):
            self.sums |= {name: self._zeros(*shape) for name, shape in part.statistics_shapes().items()}
        if is_masked and counts_imputed:
            self.sums["imputed_error"] = self._zeros()
        self.solves = is_exact and not isinstance(model.likelihood, Slab)
        if self.solves:  # normal equations for [W; b]: gram [W; b] = cross
            n_sets = n_outputs if is_masked else 1
            self.sums["gram"] = self._zeros(n_sets, n_latents + 1, n_latents + 1)
            self.sums["cross"] = self._zeros(n_latents + 1, n_outputs)
            self.sums["square"] = self._zeros(n_outputs)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def __getitem__(self, name: str) -> Tensor:
        return self.sums[name]

    @torch.no_grad()
    def add(
        self,
        model: Model,
        x: Tensor,
        step: EStep,
        rows: Rows,
        observed: Tensor | None,
        products: Products,
        index: Tensor | None = None,
    ) -> None:
        """Count in a batch: x (B, D) with its E-step, its significant states and the numbers (B,) of its points."""
        sums = self.sums
        sums["n_points"] += len(x)
        sums["n_observed"] += x.numel() if observed is None else observed.sum()
        sums["elbo"] += step.elbo.sum()
        sums["n_accepted"] += step.n_accepted
        mu = cache(lambda: outputs(model, rows, products))
        batch = Visited(x, observed, index, step.weights, step.error, rows, mu, products)
        model.likelihood.add_statistics(sums, batch)
        model.prior.add_statistics(sums, batch)
        if "imputed_error" in sums:
            assert observed is not None
            sums["imputed_error"] += _imputed_error(mu(), rows, observed)
        if self.solves:
            self._add_normal_equations(x, rows, observed, products)

    def _add_normal_equations(self, x: Tensor, rows: Rows, observed: Tensor | None, products: Products) -> None:
        sums = self.sums
        if observed is None:
            mean = products.add_moments(sums["gram"][0], rows.packed, rows.weight, rows.point, len(x))
        else:
            x = x * observed
            y = with_bias(rows.packed, len(sums["cross"]) - 1, x.dtype)
            weighted = y * rows.weight[:, None]
            of_output = observed[rows.point].T.to(y.dtype)  # (D, R)
            sums["gram"] += (of_output[:, None] * weighted.T) @ y  # (D, H+1, R) @ (R, H+1)
            mean = y.new_zeros(len(x), y.shape[1]).index_add_(0, rows.point, weighted)
        sums["cross"] += mean.T @ x
        sums["square"] += x.square().sum(0)


def _imputed_error(mu: Tensor, rows: Rows, observed: Tensor) -> Tensor:
    """Squared distances of missing values from their posterior mean, Eq. (15), expected under q; mu (R, D)."""
    weight = rows.weight[:, None]
    mean = mu.new_zeros(observed.shape).index_add_(0, rows.point, weight * mu)
    return (weight * (mu - mean[rows.point]).square() * ~observed[rows.point]).sum()


@torch.no_grad()
def update_closed_forms(model: Model, totals: Totals) -> None:
    """Eq. (5), and before it the exact decoder where its normal equations were added up."""
    if totals.solves:
        solve_linear(model, totals)
    sums = totals.sums
    if totals.is_exact and isinstance(model.likelihood, Slab):
        move_means(model, sums)
    model.prior.update(sums)
    if "imputed_error" in sums:
        n_values = sums["n_points"] * model.decoder.n_outputs
        sums = sums | {"error": sums["error"] + sums["imputed_error"], "n_observed": n_values}
    model.likelihood.update(sums)


@torch.no_grad()
def move_means(model: Model, sums: dict[str, Tensor]) -> None:
    """Add to each w_h its share of what the states with it leave, and take it out of the second moments.

    With r what a state z leaves, |r - sum_h z_h d_h|^2 <= sum_h z_h |r - |z| d_h|^2 / |z| is lowest at
    d_h = sum q z_h r / sum q z_h |z|. All w_h move at once, so with d_h = sum q z_h r / sum q z_h latents that are on
    together would overshoot.
    """
    assert isinstance(model.decoder, Mlp)
    n_on = sums["n_on"].clamp(min=1e-3)[:, None]
    mean = sums["shift"] / n_on  # (H, D)
    move = sums["shift"] / torch.maximum(sums["n_together"][:, None], n_on)
    model.decoder.weights[0].add_(move.to(model.decoder.weights[0].dtype))
    left = mean - move
    sums["spread"] += n_on[..., None] * (left[:, :, None] * left[:, None] - mean[:, :, None] * mean[:, None])
    sums["shift"].zero_()


@torch.no_grad()
def solve_linear(model: Model, totals: Totals) -> None:
    """The W and b that maximise F for these q, and the squared error they leave in `totals`.

    What is solved for is the change of the weights, with a small ridge: latents that were never on keep theirs.
    """
    assert isinstance(model.decoder, Mlp)
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
