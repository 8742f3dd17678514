"""Missing pixels by conditional Gaussians: a mixture fitted by EM to patches of which only some values are known.

With m, C the mean and covariance of a patch's group and o its observed values,

    E[x | y_o]   = m + C_:o (C_oo + s I)^-1 (y_o - m_o)
    Cov[x | y_o] = C - C_:o (C_oo + s I)^-1 C_o:

The M-step takes first and second moments under these (Dempster, Laird and Rubin 1977), so that what is missing neither
counts as known nor shrinks the covariance. A patch is in the group under which its observed values are most likely,
among the groups that suit its current completion best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from tvae.data.patches import extract, uniform_weights, windows
from tvae.restoration.aggregation import Accumulator
from tvae.restoration.non_local.mixture import CHUNK, N_MIN, cluster
from tvae.restoration.tiling import Band, Bands, chunks, overlapping

CHUNK_VALUES = 1 << 22  # of the matrices at once
N_CANDIDATES = 3
N_FITTED, N_FILLED = 300_000, 3_000_000  # patches, about, that the groups are fitted to and pixels estimated from
THINNED = 2  # pixels, at least, between the patches that the groups are fitted to
RIDGE = 1e-3  # of the mean variance, added to every covariance


@dataclass(frozen=True, eq=False)
class Groups:
    """K Gaussians with full covariances."""

    size: Tensor  # (K,)
    mean: Tensor  # (K, D)
    covariance: Tensor  # (K, D, D)

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """(K, D), (K, D, D): eigenvalues and eigenvectors of the covariances."""
        values, vectors = torch.linalg.eigh(self.covariance)
        return values.clamp(min=0), vectors

    def candidates(self, x: Tensor, s: float) -> Tensor:
        """(N, D) -> (N, N_CANDIDATES): the groups that suit whole patches best."""
        values, vectors = self.spectrum
        score = torch.stack(
            [
                2 * torch.log(n) - ((x - m) @ v).square() @ (1 / d) - torch.log(d).sum()
                for n, m, v, d in zip(self.size, self.mean, vectors, values + s, strict=True)
            ],
            1,
        )
        return score.topk(min(N_CANDIDATES, len(self.size)), dim=1).indices


class Moments:
    """First and second moments of each group, added up."""

    def __init__(self, n_groups: int, n_values: int):
        self.size = torch.zeros(n_groups, dtype=torch.float64)
        self.first = torch.zeros(n_groups, n_values, dtype=torch.float64)
        self.second = torch.zeros(n_groups, n_values, n_values, dtype=torch.float64)

    def add(self, group: int, mean: Tensor, covariance: Tensor | None) -> None:
        """Patches (n, D) of one group, and the sum of their covariances (D, D)."""
        mean = mean.double()  # differences of the squares are what counts
        self.size[group] += len(mean)
        self.first[group] += mean.sum(0)
        self.second[group] += mean.T @ mean
        if covariance is not None:
            self.second[group] += covariance

    def merge(self, other: Moments) -> None:
        self.size += other.size
        self.first += other.first
        self.second += other.second

    def groups(self) -> Groups:
        """The M-step; groups that are too small are left out, but never the largest one."""
        is_kept = self.size >= self.size.max().clamp(max=N_MIN)
        size = self.size[is_kept]
        mean = self.first[is_kept] / size[:, None]
        covariance = self.second[is_kept] / size[:, None, None] - mean[:, :, None] * mean[:, None]
        variance = covariance.diagonal(dim1=1, dim2=2).mean()
        ridge = RIDGE * variance * torch.eye(mean.shape[1], dtype=mean.dtype)
        return Groups(size.float(), mean.float(), (covariance + ridge).float())


def evidence(y: Tensor, observed: Tensor, groups: Groups, which: Tensor, s: float) -> Tensor:
    """(N,): log of the size of group `which` (N,) times the density of the observed values, up to constants."""
    factor = torch.linalg.cholesky(observed_part(groups.covariance[which], observed, s))
    centred = ((y - groups.mean[which]) * observed)[..., None]
    distance = torch.linalg.solve_triangular(factor, centred, upper=False).square().sum((1, 2))
    log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    return torch.log(groups.size[which]) - 0.5 * (distance + log_det)


def conditional(y: Tensor, observed: Tensor, mean: Tensor, covariance: Tensor, s: float) -> tuple[Tensor, Tensor]:
    """y, observed (n, D) of one group -> (n, D), (n, D, D): mean and covariance given what is observed."""
    cross = covariance * observed[:, :, None]  # (n, D, D): rows of what is not observed are zero
    factor = torch.linalg.cholesky(observed_part(covariance.expand(len(y), -1, -1), observed, s))
    gain = torch.cholesky_solve(cross, factor)
    estimate = mean + (gain.transpose(1, 2) @ ((y - mean) * observed)[..., None])[..., 0]
    return estimate, covariance - cross.transpose(1, 2) @ gain


def observed_part(covariance: Tensor, observed: Tensor, s: float) -> Tensor:
    """(..., D, D) and (..., D): C_oo + s I for what is observed, the identity for the rest."""
    known = observed.to(covariance.dtype)
    masked = covariance * known[..., :, None] * known[..., None, :]
    return masked + torch.diag_embed(known * s + (1 - known))


def complete_patches(
    y: Tensor, observed: Tensor, groups: Groups, group: Tensor, s: float
) -> tuple[Tensor, Tensor, Moments]:
    """Mean and variance (N, D) of every patch under its group (N,), and the moments for the M-step."""
    n_values = y.shape[1]
    mean, variance = torch.empty_like(y), torch.empty_like(y)
    moments = Moments(len(groups.size), n_values)
    for k in range(len(groups.size)):
        for index in (group == k).nonzero()[:, 0].split(max(1, CHUNK_VALUES // n_values**2)):
            found, covariance = conditional(y[index], observed[index], groups.mean[k], groups.covariance[k], s)
            mean[index], variance[index] = found, covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
            moments.add(k, found, covariance.sum(0))
    return mean, variance, moments


def best_group(x: Tensor, y: Tensor, observed: Tensor, groups: Groups, s: float) -> Tensor:
    """(N,): by the evidence of the observed values y, among candidates for the completed patches x."""
    chosen = []
    for index in torch.arange(len(y)).split(max(1, CHUNK_VALUES // y.shape[1] ** 2)):
        candidates = groups.candidates(x[index], s)
        scores = [evidence(y[index], observed[index], groups, which, s) for which in candidates.T]
        chosen.append(candidates.gather(1, torch.stack(scores, 1).argmax(1, keepdim=True))[:, 0])
    return torch.cat(chosen)


def complete_band(
    images: tuple[Tensor, Tensor, Tensor],
    groups: Groups,
    s: float,
    patch_size: int,
    stride: int,
    moments: Moments,
    band: Band,
) -> Tensor:
    """(2, rows, W, C): mean and variance of the pixels of a band; its patches are added to `moments`.

    `images`, (H, W, C) each: values, which of them are known, and an estimate.
    """
    page, rows = [image[band.page] for image in images], band.rows
    height, width, n_channels = page[0].shape
    sums = Accumulator((height, width, n_channels), patch_size, stride, uniform_weights(patch_size), rows)
    n_columns, reach = len(sums.columns), overlapping(sums.rows, patch_size, rows)
    wanted = range(reach.start * n_columns, reach.stop * n_columns)
    for index in chunks(wanted, CHUNK, len(sums.rows) * n_columns):
        place = sums.rows[index // n_columns], sums.columns[index % n_columns]
        y, observed, x = (windows(each, patch_size)[place].flatten(1) for each in page)
        mean, variance, found = complete_patches(y, observed, groups, best_group(x, y, observed, groups, s), s)
        sums.add(index, mean, variance, 1 / (variance.mean(1) + s))
        if int(place[0][0]) in rows:  # else it counts in the rows where it begins
            moments.merge(found)
    return sums.result()


def strides_of_filling(n_places: int, patch_size: int) -> tuple[int, int]:
    """Pixels between the patches that the groups are fitted to, and between those that pixels are estimated from."""
    most = max(1, patch_size // 2)  # for every pixel to be in several
    fitted = min(most, max(THINNED, math.ceil((n_places / N_FITTED) ** 0.5)))
    return fitted, min(most, math.ceil((n_places / N_FILLED) ** 0.5))


def complete_pixels(
    y: Tensor,
    known: Tensor,
    pilot: Tensor,
    s: float,
    patch_size: int,
    n_groups: int,
    n_rounds: int,
    rng: torch.Generator,
    n_pages: int = 1,
    bands: Bands = Bands(),  # noqa: B008
) -> Tensor:
    """(2, H, W, C): mean and variance of every pixel.

    y, known, pilot (H, W, C): values, which of them are known, and a first estimate; `s`: variance of the noise. Of too
    many patches only some are taken: fewer to fit the groups than for the pixels in the end.
    """
    height, width, _ = y.shape
    n_places = (height // n_pages - patch_size + 1) * (width - patch_size + 1) * n_pages
    fitted, last = strides_of_filling(n_places, patch_size)
    first = extract(pilot, patch_size, fitted, n_pages)
    group = cluster(first, n_groups, rng)
    moments = Moments(n_groups, first.shape[1])
    for k in range(n_groups):
        moments.add(k, first[group == k], None)
    del first
    found = torch.zeros(2, *y.shape, dtype=torch.float64)
    for i in range(n_rounds):
        bands.watch("fit", i / n_rounds)
        groups, is_last = moments.groups(), i == n_rounds - 1
        moments, stride = Moments(len(groups.size), groups.mean.shape[1]), last if is_last else fitted
        of_band = partial(complete_band, (y, known, pilot), groups, s, patch_size, stride, moments)
        (bands if is_last else Bands()).fill("filled", found, n_pages, of_band)
        pilot = found[0].float()
    return found
