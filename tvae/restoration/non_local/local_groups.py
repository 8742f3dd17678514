"""Local groups of similar patches: block matching and NL-Ridge, channel by channel.

    z = A x,    A = ((1, 1, 1) / sqrt 3, (1, 0, -1) / sqrt 2, (1, -2, 1) / sqrt 6)

Three channels are estimated in this orthonormal opponent space, in which white noise stays white. Groups are found on
the first of them, the luminance, where the signal is strongest; each has a gain of its own, for chroma is smoother than
luminance. Any other number of channels is estimated along the principal axes of the pilot's pixels, in groups found on
their sum; three as they are, without such a space, lose 0.3 to 0.8 dB, on their principal axes 0.01 (docs/quality.md).
The kernel does it where it can (`backends.native.local_groups`), else torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from tvae.backends.native import local_groups as native
from tvae.data.patches import positions
from tvae.restoration.non_local.block_matching import similar_patches
from tvae.restoration.non_local.nl_ridge import WEIGHT_FLOOR, refine

OPPONENT = torch.tensor([[1, 1, 1], [1, 0, -1], [1, -2, 1]], dtype=torch.float64)
OPPONENT /= OPPONENT.norm(dim=1, keepdim=True)
N_PIXELS = 1 << 20  # about, that axes are found on


def channels_for(pilot: Tensor) -> Tensor:
    """(C, C), orthonormal: the channels that are estimated, as sums of those of the pilot (H, W, C)."""
    n_channels = pilot.shape[2]
    if n_channels == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    if n_channels == len(OPPONENT):
        return OPPONENT
    pixels = pilot.flatten(0, 1)
    axes = torch.linalg.eigh(torch.cov(pixels[:: max(1, len(pixels) // N_PIXELS)].double().T)).eigenvectors
    return axes.T.contiguous()


def refine_locally(
    noisy: Tensor,
    pilot: Tensor,
    patch_size: int,
    step: int,
    radius: int,
    n_similar: int,
    sigma2: float | Tensor,
    rows: range,
    tell: Callable[[], None] = lambda: None,
) -> Tensor:
    """(2, rows, W, C): mean and variance of every pixel in `rows`, from groups of the pilot's patches.

    `noisy`, `pilot` (H, W, C); `sigma2`: variance of the noise, one value or (C,); `step`, `radius`, `n_similar` as for
    `similar_patches`; `tell` is called before each part of the work.
    """
    height, width, n_channels = noisy.shape
    mix = channels_for(pilot)
    guide = torch.ones(1, n_channels, dtype=torch.float64)
    sigma2 = mix.square() @ torch.as_tensor(sigma2, dtype=torch.float64).expand(n_channels)
    if native.is_usable(pilot):
        tops, columns = (positions(length, patch_size, step) for length in (height, width))
        n_similar = min(n_similar, (2 * radius + 1) ** 2)
        references = native.References(tops, columns, step, patch_size, radius, n_similar)
        found = native.refine(noisy, pilot, references, guide, mix, sigma2, WEIGHT_FLOOR, rows, tell)
    else:
        y, first, compared = (x @ sums.T.to(x) for x, sums in ((noisy, mix), (pilot, mix), (pilot, guide)))
        groups = similar_patches(compared, patch_size, step, radius, n_similar, rows)
        found = refine(y, first, _telling(groups, tell), patch_size, sigma2, rows)
    mean, variance = found
    return torch.stack([mean @ mix, variance @ mix.square()])


def _telling(parts: Iterable[Tensor], tell: Callable[[], None]) -> Iterator[Tensor]:
    for part in parts:
        tell()
        yield part
