"""The smoothest picture through the known pixels: its second differences are as small as they can be.

    minimise |L x|^2 over the missing pixels,        L x: for each pixel, the sum of its neighbours less itself

by conjugate gradients, from averages over blocks of 2, 4, 8, ... pixels, the smallest that hold a known one. Few steps
close small gaps; pixels far from all known ones stay what they are to begin with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

REACH = 4  # pixels: how far away, in rows and columns, a known pixel may be
N_STEPS = 30
CONVERGED = 1e-10  # of the first squared residual


def laplacian(x: Tensor) -> Tensor:
    """(H, W, C) -> the same: differences from the neighbours, added up; there are none beyond the edges."""
    found = torch.zeros_like(x)
    for axis in (0, 1):
        length = x.shape[axis] - 1
        difference = x.diff(dim=axis)
        found.narrow(axis, 0, length).add_(difference)
        found.narrow(axis, 1, length).sub_(difference)
    return found


def smoothest(y: Tensor, known: Tensor, start: Tensor, n_steps: int = N_STEPS) -> Tensor:
    """(H, W, C) each: values, which of them are known, and what the others are to begin with."""
    x = torch.where(known, y, start)
    known = known | ~is_near(known)
    residual = -laplacian(laplacian(x)).masked_fill(known, 0)
    direction = residual.clone()
    size = residual.square().sum()
    enough = CONVERGED * size
    for _ in range(n_steps):
        if size <= enough:
            break
        image = laplacian(laplacian(direction)).masked_fill(known, 0)
        step = size / (direction * image).sum()
        x = x + step * direction
        residual -= step * image
        before, size = size, residual.square().sum()
        direction = residual + size / before * direction
    return x


def is_near(known: Tensor) -> Tensor:
    """(H, W, C) bool -> the same: which pixels are within reach of a known one."""
    planes = known.permute(2, 0, 1)[None].to(torch.float32)
    return F.max_pool2d(planes, 2 * REACH + 1, 1, REACH)[0].permute(1, 2, 0) > 0


def block_means(y: Tensor, known: Tensor) -> Tensor:
    """(H, W, C) -> the same: y where known, else the mean of the smallest block around that holds a known pixel."""
    weight = known.permute(2, 0, 1)[None].to(y.dtype)
    value = y.permute(2, 0, 1)[None] * weight
    found = _filled(value, weight)
    return torch.where(known, y, found[0].permute(1, 2, 0))


def _filled(value: Tensor, weight: Tensor) -> Tensor:
    """(1, C, H, W): sums of known values and how many they are -> means; zero where there are none at all."""
    mean = value / weight.clamp(min=1)
    if bool((weight > 0).all()) or value[0, 0].numel() == 1:
        return mean
    height, width = value.shape[2:]
    even = (0, width % 2, 0, height % 2)
    coarse = _filled(*(4 * F.avg_pool2d(F.pad(each, even), 2) for each in (value, weight)))
    wide = coarse.repeat_interleave(2, 2).repeat_interleave(2, 3)[..., :height, :width]
    return torch.where(weight > 0, mean, wide)


def completed(y: Tensor, known: Tensor, n_pages: int = 1) -> Tensor:
    """(H, W, C): the picture with its missing pixels closed smoothly, page by page."""
    pages = zip(y.chunk(n_pages), known.chunk(n_pages), strict=True)
    return torch.cat([smoothest(values, at, block_means(values, at)) for values, at in pages])
