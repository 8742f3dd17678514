"""A picture in bands of rows, each computed apart from the others: memory is that of a band, and ranks share them out.

Patches that reach over the edge of a band are computed for both sides. They are always taken in the same chunks and
added in the same order, so that bands change nothing: the result is that of the whole picture to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tvae.training.team import ALONE, Team

ROWS_MAX = 512
ROWS_MIN = 64  # what reaches over the edges would otherwise be most of the work
VALUES_MAX = 1 << 23  # of a band


@dataclass(frozen=True)
class Band:
    """Some rows of a page, pages standing one above the other."""

    page: slice  # rows of the page among all
    rows: range  # within the page

    @property
    def place(self) -> slice:
        """The rows of the band among all rows."""
        return slice(self.page.start + self.rows.start, self.page.start + self.rows.stop)


def split(height: int, n_pages: int, row_values: int, n_ranks: int = 1) -> list[Band]:
    """The bands of `n_pages` pages of `height` rows with `row_values` values; as many as ranks, if they can be."""
    most = min(ROWS_MAX, max(ROWS_MIN, VALUES_MAX // row_values))
    needed = math.ceil(height / most)
    for_all = math.ceil(math.ceil(needed * n_pages / n_ranks) * n_ranks / n_pages)  # ranks have as many each
    n_bands = max(needed, min(for_all, height // ROWS_MIN))
    edges = [height * i // n_bands for i in range(n_bands + 1)]
    return [
        Band(slice(page * height, (page + 1) * height), range(edges[i], edges[i + 1]))
        for page in range(n_pages)
        for i in range(n_bands)
    ]


Watch = Callable[[str, float], None]  # told a stage of the work, and the share of it that is done


def nobody(stage: str, share: float) -> None:
    """Ignore progress."""


class Bands:
    """The bands of a picture, shared out among ranks. `runs.kept_bands` keeps finished ones in files."""

    def __init__(self, team: Team = ALONE, watch: Watch = nobody):
        self.team, self.watch = team, watch
        self.stage, self.n_done, self.n_bands = "", 0, 1

    def fill(
        self, stage: str, out: Tensor, n_pages: int, compute: Callable[[Band], Tensor], is_joint: bool = False
    ) -> None:
        """Put into `out` (K, H, W, C) what `compute` finds for each band, (K, rows, W, C). To be called on all ranks.

        `is_joint`: all ranks compute every band together; else each has some of them.
        """
        _, height, width, n_channels = out.shape
        out.zero_()
        bands = split(height // n_pages, n_pages, width * n_channels, self.team.size)
        for i, band in enumerate(bands):
            if i % self.team.size == 0:
                self.tell(stage, i, len(bands))
            self.stage, self.n_done, self.n_bands = stage, i, len(bands)
            self.within(0.0)
            if is_joint or i % self.team.size == self.team.rank:
                name = f"{stage}-{band.place.start}-{band.place.stop}"
                out[:, band.place] = self.one(name, lambda band=band: compute(band), is_joint)  # type: ignore[misc]
        if not is_joint:
            self.team.add([out])

    def one(self, name: str, compute: Callable[[], Tensor], is_joint: bool) -> Tensor:
        """The result of `compute`."""
        return compute()

    def within(self, share: float) -> None:
        """Report the share of the current band that is done."""
        self.watch(self.stage, (self.n_done + share) / self.n_bands)

    def tell(self, stage: str, n_done: int, n_bands: int) -> None:
        """Hook, called on all ranks before each of them starts a band."""


def overlapping(places: Tensor, patch_size: int, rows: range) -> range:
    """Numbers of the patches beginning at `places` (n,), in ascending order, that reach into `rows`."""
    first, last = torch.searchsorted(places, torch.tensor([rows.start - patch_size + 1, rows.stop])).tolist()
    return range(first, last)


def chunks(wanted: range, size: int, n: int) -> Iterator[Tensor]:
    """The numbers below n in chunks of `size`, of which those are left out that hold none of `wanted`."""
    for start in range(wanted.start // size * size, wanted.stop, size):
        yield torch.arange(start, min(start + size, n))
