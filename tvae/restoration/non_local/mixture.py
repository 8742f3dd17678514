"""A Gaussian for each group of patches: a mixture of Gaussians, fitted to the noisy patches by EM.

    p(y) = sum_k w_k N(y; m_k, C_k + sigma2 I),          C_k = U_k diag(l_k) U_k^T
    E[x | y] = sum_k p(k | y) [m_k + C_k (C_k + sigma2 I)^-1 (y - m_k)]

Binary states alone quantise: structure that is worth less than a latent costs is not coded. A covariance for each group
of states codes it. The groups start from those of a first restoration.

The eigenvalues of a sample covariance are too large. A spike l + sigma2 of the true covariance appears at

    v = (l + sigma2) (1 + g sigma2 / l),       g = D / n_k,       if l > sqrt(g) sigma2

and otherwise not at all (Baik and Silverstein 2006), so that l is solved for, and is zero below the edge of pure noise,
sigma2 (1 + sqrt(g))^2 (Marchenko and Pastur 1967).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

N_PER_GROUP = 100  # patches, at least, on average: what limits the number of groups
N_MIN = 12.0  # patches that a group needs to keep a covariance of its own
SHARE_MIN = 1e-2  # of a patch; less of it does not count
CHUNK = 1 << 13  # patches at once
N_PER_VALUE = 3  # patches per dimension that a group needs to tell the noise
FLATTEST = 0.25  # share of the groups, those with the least noise, that sigma2 is taken from
CLIPPED = 1e-2  # of the first value of sigma2; groups with less variance than that are not noisy at all
NOISE_ROUNDS = 10
N_CLUSTERED = 20_000  # patches that the first groups are found on
CLUSTER_ROUNDS = 10


@dataclass(frozen=True, eq=False)
class Mixture:
    """K groups; the rank of each covariance is its own."""

    log_weight: Tensor  # (K,)
    mean: Tensor  # (K, D)
    basis: list[Tensor]  # (D, r_k) each: U_k
    spread: list[Tensor]  # (r_k,) each: l_k, above zero
    sigma2: float

    @cached_property
    def stacked(self) -> tuple[Tensor, Tensor, Tensor]:
        """All bases side by side (D, R), the projected means (R,), and what a squared projection counts (R, K)."""
        ranks = torch.tensor([len(spread) for spread in self.spread])
        group = torch.arange(len(ranks)).repeat_interleave(ranks)
        basis, spread = torch.cat(self.basis, 1), torch.cat(self.spread)
        counts = torch.zeros(len(group), len(ranks), dtype=basis.dtype)
        counts[torch.arange(len(group)), group] = spread / (self.sigma2 * (spread + self.sigma2))
        return basis, (self.mean[group] * basis.T).sum(1), counts

    def log_joint(self, y: Tensor) -> Tensor:
        """(N, D) -> (N, K): log w_k N(y; m_k, C_k + sigma2 I), up to a constant that all groups share."""
        basis, projected, counts = self.stacked
        shift = self.mean.mean(0)  # the squares below would lose digits far from zero
        mean = self.mean - shift
        distance = mean.square().sum(1) - 2 * (y - shift) @ mean.T  # |y - m_k|^2 without |y|^2, which all share
        inside = (y @ basis).sub_(projected).square_() @ counts  # in place: it is the largest array of all
        log_det = torch.stack([torch.log1p(spread / self.sigma2).sum() for spread in self.spread])
        return self.log_weight - 0.5 * (distance / self.sigma2 - inside + log_det)

    def shares(self, y: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Group by group: its number, the patches that are partly in it, and p(k | y) of those."""
        posterior = self.log_joint(y).softmax(1)
        largest = posterior.amax(1, keepdim=True)
        posterior = posterior * (posterior >= largest.clamp(max=SHARE_MIN))
        posterior = posterior / posterior.sum(1, keepdim=True)
        for k, share in enumerate(posterior.T.contiguous()):
            index = share.nonzero()[:, 0]
            if len(index):
                yield k, index, share[index]

    def moments(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D) each: mean and variance of the patches without noise."""
        mean, square = torch.zeros_like(y), torch.zeros_like(y)
        for k, index, share in self.shares(y):
            basis, spread = self.basis[k], self.spread[k]
            gain = spread / (spread + self.sigma2)
            estimate = self.mean[k] + (((y[index] - self.mean[k]) @ basis) * gain) @ basis.T
            variance = basis.square() @ (gain * self.sigma2)
            mean.index_add_(0, index, share[:, None] * estimate)
            square.index_add_(0, index, share[:, None] * (estimate.square() + variance))
        return mean, (square - mean.square()).clamp(min=0)


class Sums:
    """Sums for the M-step of each group: its size, and first and second moments."""

    def __init__(self, n_groups: int, like: Tensor):
        n_values = like.shape[1]
        self.size = like.new_zeros(n_groups, dtype=torch.float64)
        self.first = like.new_zeros(n_groups, n_values, dtype=torch.float64)
        self.second = like.new_zeros(n_groups, n_values, n_values, dtype=torch.float64)

    def add(self, group: int, y: Tensor, share: Tensor) -> None:
        """Count in the patches y (n, D), each by its share (n,)."""
        y = y.double()  # differences of the squares are what counts
        weighted = y * share[:, None]
        self.size[group] += share.sum()
        self.first[group] += weighted.sum(0)
        self.second[group] += weighted.T @ y

    def mixture(self, sigma2: float, dtype: torch.dtype) -> Mixture:
        """The M-step; groups that are too small are left out, but never the largest one."""
        is_kept = self.size >= self.size.max().clamp(max=N_MIN)
        size = self.size[is_kept]
        mean, covariance = self._moments(is_kept)
        values, vectors = torch.linalg.eigh(covariance)
        spread = spikes(values, sigma2, mean.shape[1] / size[:, None])
        return Mixture(
            torch.log(size / size.sum()).to(dtype),
            mean.to(dtype),
            [vector[:, each > 0].to(dtype) for vector, each in zip(vectors, spread, strict=True)],
            [each[each > 0].to(dtype) for each in spread],
            sigma2,
        )

    def noise_variance(self, sigma2: float) -> float:
        """sigma2 as the flattest groups have it, from a first value; that value where no group is large enough.

        In a group whose signal has rank r, the other D - r eigenvalues average sigma2 (1 - (r + 1) / n). Groups with
        next to no variance, as where a picture is clipped, say nothing.
        """
        least = CLIPPED * sigma2
        n_values = self.first.shape[1]
        is_kept = self.size >= N_PER_VALUE * n_values
        if not is_kept.any():
            return sigma2
        size = self.size[is_kept][:, None]
        values = torch.linalg.eigvalsh(self._moments(is_kept)[1])
        for _ in range(NOISE_ROUNDS):
            is_noise = values <= sigma2 * (1 + (n_values / size).sqrt()).square()
            n_noise = is_noise.sum(1)
            average = (values * is_noise).sum(1) / n_noise.clamp(min=1) / (1 - (n_values - n_noise + 1) / size[:, 0])
            usable = average[(n_noise > 0) & (average > least)]
            if not len(usable):
                break
            sigma2 = float(usable.quantile(FLATTEST))
        return sigma2

    def _moments(self, is_kept: Tensor) -> tuple[Tensor, Tensor]:
        """(K, D) and (K, D, D): means and covariances of the groups that are kept."""
        size = self.size[is_kept]
        mean = self.first[is_kept] / size[:, None]
        return mean, self.second[is_kept] / size[:, None, None] - mean[:, :, None] * mean[:, None]


def spikes(values: Tensor, sigma2: float, ratio: Tensor) -> Tensor:
    """The l behind the eigenvalues v of sample covariances; `ratio`: g, dimensions per sample."""
    v = values / sigma2
    half = (v - 1 - ratio) / 2  # l^2 - (v - 1 - g) l + g = 0, in units of sigma2
    root = half + (half.square() - ratio).clamp(min=0).sqrt()
    return torch.where(v > (1 + ratio.sqrt()).square(), root, 0) * sigma2


def sums_of_groups(y: Tensor, groups: Tensor, n_groups: int) -> Sums:
    """Sums over patches y (N, D) that are each in one group, groups (N,)."""
    sums = Sums(n_groups, y)
    for k in range(n_groups):
        own = y[groups == k]
        sums.add(k, own, own.new_ones(len(own)))
    return sums


def fit_mixture(y: Tensor, sums: Sums, sigma2: float, n_rounds: int) -> Mixture:
    """EM on noisy patches y (N, D) from the sums of the groups to begin with."""
    mixture = sums.mixture(sigma2, y.dtype)
    for _ in range(n_rounds):
        sums = Sums(len(mixture.mean), y)
        for part in y.split(CHUNK):
            for k, index, share in mixture.shares(part):
                sums.add(k, part[index], share)
        mixture = sums.mixture(sigma2, y.dtype)
    return mixture


def cluster(x: Tensor, n_groups: int, rng: torch.Generator) -> Tensor:
    """(N, D) -> (N,) int64: the nearest of `n_groups` centres, found by Lloyd's algorithm on some of the rows."""
    sample = x[torch.randperm(len(x), generator=rng)[:N_CLUSTERED]]
    centres = sample[torch.randperm(len(sample), generator=rng)[:n_groups]].clone()
    for _ in range(CLUSTER_ROUNDS):
        nearest = nearest_centre(sample, centres)
        count = torch.bincount(nearest, minlength=len(centres))
        total = torch.zeros_like(centres).index_add_(0, nearest, sample)
        other = sample[torch.randint(len(sample), (len(centres),), generator=rng)]  # for centres that lost all theirs
        centres = torch.where(count[:, None] > 0, total / count.clamp(min=1)[:, None], other)
    return torch.cat([nearest_centre(part, centres) for part in x.split(CHUNK)])


def nearest_centre(x: Tensor, centres: Tensor) -> Tensor:
    return (x @ centres.T - 0.5 * centres.square().sum(1)).argmax(1)
