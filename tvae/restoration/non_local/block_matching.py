"""Groups of similar patches in the neighbourhood of each reference patch, found on a restored picture.

The picture is shifted by every offset of the neighbourhood; the squared difference to the unshifted one, summed over a
patch by two cumulative sums, is the distance of all patches to those at this offset. If there is a kernel, it does the
same in single precision (`backends.native.local_groups`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.backends.native import local_groups as native
from tvae.data.patches import positions
from tvae.restoration.tiling import chunks, overlapping

FAR = 1e18  # distance of a place outside the picture
ROWS = 16  # of reference patches at once: memory is theirs times the offsets


def similar_patches(
    pixels: Tensor, patch_size: int, step: int, radius: int, n_similar: int, rows: range | None = None
) -> Iterator[Tensor]:
    """(H, W, C) -> (G, n_similar) numbers of patches (at stride 1), nearest first, some groups at a time.

    The first patch of a group is its reference. Reference patches are those of the grid of `step` pixels, whose
    neighbourhood reaches `radius` pixels away; groups none of whose patches reach into `rows` may be left out.
    """
    places = positions(pixels.shape[0], patch_size, step)
    wanted = range(len(places))
    if rows is not None:
        wanted = overlapping(places, patch_size, range(rows.start - radius, rows.stop + radius))
    n_similar = min(n_similar, (2 * radius + 1) ** 2)
    columns = positions(pixels.shape[1], patch_size, step)
    is_native = native.is_usable(pixels)
    for part in chunks(wanted, ROWS, len(places)):
        if is_native:
            references = native.References(places[part], columns, step, patch_size, radius, n_similar)
            yield native.similar_patches(pixels, references)
        else:
            yield _of_rows(pixels, patch_size, radius, n_similar, places[part], columns)


def _of_rows(pixels: Tensor, patch_size: int, radius: int, n_similar: int, rows: Tensor, columns: Tensor) -> Tensor:
    height, width, _ = pixels.shape
    last_row, last_column = height - patch_size, width - patch_size
    top, bottom = int(rows[0]), int(rows[-1]) + patch_size
    here = pixels[top:bottom]
    above, below = max(0, top - radius), min(height, bottom + radius)
    margins = radius, radius, radius - top + above, radius + bottom - below
    around = F.pad(pixels[above:below].permute(2, 0, 1), margins).permute(1, 2, 0)
    offsets = [(dy, dx) for dy in range(-radius, radius + 1) for dx in range(-radius, radius + 1)]
    distance = pixels.new_empty(len(offsets), len(rows) * len(columns))
    for i, (dy, dx) in enumerate(offsets):
        there = around[radius + dy : radius + dy + bottom - top, radius + dx : radius + dx + width]
        difference = (here - there).square().sum(-1)
        down = F.pad(difference.cumsum(0), (0, 0, 1, 0))
        strips = down[rows - top + patch_size] - down[rows - top]  # (rows, W)
        across = F.pad(strips.cumsum(1), (1, 0))
        sums = across[:, columns + patch_size] - across[:, columns]
        is_outside = _is_outside(rows + dy, last_row)[:, None] | _is_outside(columns + dx, last_column)
        distance[i] = sums.masked_fill(is_outside, FAR).flatten()
    distance[offsets.index((0, 0))] = -1  # before any equal one
    nearest, chosen = distance.topk(n_similar, dim=0, largest=False)  # (n_similar, G)
    chosen = chosen.masked_fill(nearest >= FAR, offsets.index((0, 0))).T  # small pictures: the reference, repeated
    shift = torch.tensor([dy * (last_column + 1) + dx for dy, dx in offsets])
    reference = (rows[:, None] * (last_column + 1) + columns).flatten()
    return reference[:, None] + shift[chosen]


def _is_outside(place: Tensor, last: int) -> Tensor:
    return (place < 0) | (place > last)
