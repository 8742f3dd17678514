"""A slab for every spike: each latent that is on brings r Gaussian directions beside its share of the mean.

    p(x | z) = N(x; mu(z; W), C(z)),       C(z) = sigma2 I + sum_h z_h U_h U_h^T,       U_h (D, r)
             = integral N(x; mu(z) + U a, sigma2 I) N(a; 0, I) da,       U (D, k r): the directions of the k latents on

By Woodbury's formula everything is done on the k r coefficients a, with M = I + U^T U / sigma2:

    E[a | x, z] = M^-1 U^T (x - mu) / sigma2,      Cov[a | x, z] = M^-1
    log |C| = D log sigma2 + log |M|,      r^T C^-1 r = |r|^2 / sigma2 - c^T M^-1 c,      c = U^T r / sigma2

Where x is observed in part, the rows of U of what is not are left out. M-step: for latent h, with the coefficients of
the others given, what they leave is y = x - mu(z) - sum_{j != h} U_j a_j ~ N(shift_h, sigma2 I + U_h U_h^T), whose
maximum likelihood is closed (probabilistic PCA): U_h from the leading eigenvectors of the covariance of y. A sample
covariance of n vectors has too large eigenvalues: a spike l + sigma2 appears at

    v = (l + sigma2) (1 + g sigma2 / l),      g = D / n,      if l > sqrt(g) sigma2,   and otherwise not at all

(Baik and Silverstein 2006), so l is solved for; `shrinks=False` takes l = v - sigma2 instead, which is the M-step that
never lowers the bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tvae.model.likelihood import Gaussian, standard_normal
from tvae.model.packed import unpack
from tvae.model.parts import Start, Visited

N_MIN = 12.0  # data points that a latent needs to keep directions of its own


class Coefficients(NamedTuple):
    """The posterior of a given x and z, for n = k r coefficients; k: the most latents that are on in any state."""

    directions: Tensor  # (..., n, D): U^T of the latents that are on, zero beyond them
    mean: Tensor  # (..., n)
    cholesky: Tensor  # (..., n, n): of M
    projected: Tensor  # (..., n): c
    latent: Tensor  # (..., k): which they are
    is_on: Tensor  # (..., k) bool


class Slab(Gaussian):
    """N(x; mu(z), sigma2 I + sum_h z_h U_h U_h^T); sigma2 and U in closed form."""

    name = "slab"
    sigma2_min = 1e-5  # of the data's variance: products over sigma2 stay exact in single precision
    directions: Tensor  # (H, r, D), orthogonal rows

    def __init__(self, sigma2: Tensor, directions: Tensor):
        super().__init__(sigma2)
        self.register_buffer("directions", directions)
        self.shrinks = True

    @classmethod
    def start(cls, start: Start) -> Slab:
        options = start.options
        shape = options.n_latents, options.slab, start.n_outputs
        found = cls(cls.sigma2_at_start(start), torch.zeros(shape, dtype=torch.float64))
        found.limit(start)
        return found

    def coefficients(self, residual: Tensor, z: Tensor, observed: Tensor | None) -> Coefficients:
        """Residual (..., D) = x - mu(z), zero where not observed, z (..., H), observed (..., D) bool."""
        n_on = max(1, int(z.sum(-1).max())) if z.numel() else 1
        is_on, latent = z.topk(n_on, dim=-1)
        directions = self.directions[latent] * is_on[..., None, None]  # (..., k, r, D)
        directions = directions.flatten(-3, -2)
        known = directions if observed is None else directions * observed[..., None, :]
        matrix = known @ known.transpose(-1, -2) / self.sigma2
        matrix = matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        cholesky = torch.linalg.cholesky(matrix)
        projected = (known @ residual[..., None])[..., 0] / self.sigma2
        mean = torch.cholesky_solve(projected[..., None], cholesky)[..., 0]
        return Coefficients(directions, mean, cholesky, projected, latent, is_on > 0)

    def error(self, x: Tensor, mu: Tensor, z: Tensor, observed: Tensor | None = None) -> Tensor:
        """(B, S): sigma2 [r^T C^-1 r + log |M|], so that `log_prob` is the Gaussian's."""
        mu = mu.expand(len(x), -1, -1)
        known = None if observed is None else observed[:, None].expand_as(mu)
        residual = x[:, None] - mu if known is None else (x[:, None] - mu) * known
        found = self.coefficients(residual, z.expand(*mu.shape[:-1], -1), known)
        inside = (found.projected * found.mean).sum(-1)
        log_det = 2 * found.cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return residual.square().sum(-1) + self.sigma2 * (log_det - inside)

    def slope(self, x: Tensor, mu: Tensor, z: Tensor, weight: Tensor, observed: Tensor | None, n_points: int) -> Tensor:
        """C(z)^-1 (mu - x), weighted: what the coefficients explain does not pull at the mean."""
        residual, found = self._of_rows(x, mu, z, observed)
        left = residual - (found.mean[:, None] @ found.directions)[:, 0]
        left = left if observed is None else left * observed
        return -(weight / (self.sigma2 * n_points))[:, None] * left

    def _of_rows(self, x: Tensor, mu: Tensor, packed: Tensor, observed: Tensor | None) -> tuple[Tensor, Coefficients]:
        """(R, D): x - mu(z) where observed, and the coefficients of rows."""
        residual = x - mu if observed is None else (x - mu) * observed
        z = unpack(packed, len(self.directions), x.dtype)
        return residual, self.coefficients(residual, z, observed)

    def statistics_shapes(self) -> dict[str, tuple[int, ...]]:
        n_latents, _, n_values = self.directions.shape
        shift, spread = (n_latents, n_values), (n_latents, n_values, n_values)
        return {"error": (), "n_on": (n_latents,), "n_together": (n_latents,), "shift": shift, "spread": spread}

    def add_statistics(self, sums: dict[str, Tensor], batch: Visited) -> None:
        """Add for each latent q-weighted sums of what the others leave: count, first and second moments.

        `n_together` counts each state by the number of latents that are on in it.
        """
        rows, sigma2 = batch.rows, self.sigma2
        known = None if batch.observed is None else batch.observed[rows.point]
        residual, found = self._of_rows(batch.x[rows.point], batch.mu(), rows.packed, known)
        rank, weight = self.directions.shape[1], rows.weight
        covariance = torch.cholesky_inverse(found.cholesky)  # (R, n, n)
        parts = found.mean[:, :, None] * found.directions  # (R, n, D)
        left = residual - parts.sum(1) if known is None else (residual - parts.sum(1)) * known
        inside = covariance.diagonal(dim1=1, dim2=2).sum(1)
        n_coefficients = covariance.shape[-1]
        sums["error"] += (weight * (left.square().sum(1) + sigma2 * (n_coefficients - inside))).sum()
        for i in range(found.latent.shape[1]):  # the i-th latent that is on
            own = slice(i * rank, (i + 1) * rank)
            rest = left + parts[:, own].sum(1)  # (R, D): what the others leave
            signed = -found.directions  # d(y) / d(a): what the others contribute is taken off
            signed[:, own] = 0
            if known is not None:  # a missing value is what the latent itself contributes, and noise
                own_part = torch.zeros_like(signed)
                own_part[:, own] = found.directions[:, own]
                signed = torch.where(known[:, None], signed, own_part)
            spread = signed.transpose(1, 2) @ covariance @ signed  # (R, D, D)
            if known is not None:
                spread = spread + torch.diag_embed(~known * sigma2)
            spread = spread + rest[:, :, None] * rest[:, None]
            on, latent = found.is_on[:, i] * weight, found.latent[:, i]
            sums["n_on"].index_add_(0, latent, on.to(sums["n_on"].dtype))
            sums["n_together"].index_add_(0, latent, (on * found.is_on.sum(1)).to(sums["n_on"].dtype))
            sums["shift"].index_add_(0, latent, (on[:, None] * rest).to(sums["shift"].dtype))
            sums["spread"].index_add_(0, latent, (on[:, None, None] * spread).to(sums["spread"].dtype))

    @torch.no_grad()
    def update(self, sums: dict[str, Tensor]) -> None:
        """U from the covariance of what the others leave around the mean, then sigma2.

        All U move at once, so that latents that are on together would all take the same variance. A latent that is on
        with k - 1 others on average goes 1 / k of the way.
        """
        n_on = sums["n_on"].clamp(min=1e-3)
        share = (n_on / torch.maximum(sums["n_together"], n_on))[:, None, None]
        old = (self.directions.transpose(1, 2) @ self.directions).to(n_on.dtype)
        old = old + self.sigma2.to(n_on.dtype) * torch.eye(old.shape[1], dtype=n_on.dtype, device=n_on.device)
        covariance = share * sums["spread"] / n_on[:, None, None] + (1 - share) * old  # (H, D, D)
        values, vectors = torch.linalg.eigh((covariance + covariance.transpose(1, 2)) / 2)
        rank, sigma2 = self.directions.shape[1], self.sigma2.to(values.dtype)
        values, vectors = values.flip(1)[:, :rank], vectors.flip(2)[:, :, :rank]
        aspect = (covariance.shape[1] * share[:, 0, 0] / n_on)[:, None]  # so that the share changes no fixed point
        length = _unspiked(values, sigma2, aspect) if self.shrinks else (values - sigma2).clamp(min=0)
        if self.shrinks:
            length = length * (n_on > N_MIN)[:, None]
        self.directions.copy_((vectors * length.sqrt()[:, None]).transpose(1, 2))
        super().update(sums)

    def sample(self, mu: Tensor, rng: torch.Generator, z: Tensor | None = None) -> Tensor:
        noisy = super().sample(mu, rng)
        if z is None:
            return noisy
        a = standard_normal(mu.new_empty(*z.shape, self.directions.shape[1]), rng)
        return noisy + torch.einsum("...h,...hr,hrd->...d", z, a, self.directions)

    def clean(
        self, x: Tensor, mu: Tensor, z: Tensor, observed: Tensor | None = None, root: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """mu(z) + U E[a], and the diagonal of U Cov[a] U^T."""
        _, found = self._of_rows(x, mu, z, observed)
        if root is None:
            directions = found.directions
        else:  # all directions once, for there are fewer than rows have
            mu = mu @ root
            directions = ((self.directions @ root)[found.latent] * found.is_on[..., None, None]).flatten(1, 2)
        mean = mu + (found.mean[:, None] @ directions)[:, 0]
        return mean, (directions * torch.cholesky_solve(directions, found.cholesky)).sum(1)

    def spec(self) -> dict[str, Any]:
        return {"likelihood": self.name}

    def problem(self, state: dict[str, Tensor]) -> str | None:
        return None if state["sigma2"] > 0 else "sigma2 not above 0"


def _unspiked(values: Tensor, sigma2: Tensor, aspect: Tensor) -> Tensor:
    """Solve v = (l + s) (1 + g s / l) for l; zero below the edge of pure noise, s (1 + sqrt(g))^2."""
    half = values - sigma2 * (1 + aspect)
    root = (half.square() - 4 * aspect * sigma2.square()).clamp(min=0).sqrt()
    return torch.where(values > sigma2 * (1 + aspect.sqrt()).square(), (half + root) / 2, 0)
