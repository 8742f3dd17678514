"""Overlapping patches of a picture as data points, cut when they are asked for."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from tvae.data.patches import extract, page_positions, positions, windows
from tvae.data.picture import Picture
from tvae.data.smoothness import completed
from tvae.model.parts import Places
from tvae.model.units import Units
from tvae.training.points import Batch, Reader, Source, to_model


class PatchSource(Source):
    """All patches of `patch_size` every `stride` pixels, numbered row by row, page by page."""

    def __init__(self, picture: Picture, patch_size: int, stride: int):
        self.pixels = torch.from_numpy(picture.noisy)  # (H, W, C)
        self.known = None if picture.known is None else torch.tensor(picture.known)
        self.patch_size, self.stride, self.n_pages = patch_size, stride, picture.n_pages
        height, width, n_channels = self.pixels.shape
        self.rows = page_positions(height, self.n_pages, patch_size, stride)
        self.columns = positions(width, patch_size, stride)
        self.n_points, self.n_values = len(self.rows) * len(self.columns), patch_size**2 * n_channels
        self.is_masked = self.known is not None
        if picture.covariance is not None:
            self.whitening = picture.covariance.whitening(patch_size)
            self.log_volume = -self.whitening.log_det / 2

    def known_values(self) -> Tensor:
        data = self._cut(self.pixels)
        return data if self.known is None else data[self._cut(self.known)]

    def _cut(self, image: Tensor) -> Tensor:
        """(N, D): all patches."""
        return extract(image, self.patch_size, self.stride, self.n_pages)

    def reader(self, part: range, units: Units, device: torch.device, dtype: torch.dtype) -> Reader:
        known = None if self.known is None else self.known.to(device)
        pixels = to_model(self.pixels, known, units, device, dtype)
        inverse = None if self.whitening is None else self.whitening.inverse.to(device, dtype)
        return PatchReader(pixels, known, self.patch_size, self.rows, self.columns, part.start, inverse)

    def completed(self) -> Source:
        if self.known is None:
            return self
        whole = copy(self)
        whole.pixels = completed(self.pixels, self.known, self.n_pages)
        whole.known, whole.is_masked = None, False
        return whole

    def places(self) -> Places:
        height, n_columns = self.pixels.shape[0] // self.n_pages, len(self.columns)
        row = self.rows.repeat_interleave(n_columns)
        at = (row // height, row % height, self.columns.repeat(len(self.rows)))
        return Places(at, (self.n_pages, height, self.pixels.shape[1]))

    def n_blind(self, part: range) -> int:
        if self.known is None:
            return 0
        return int((~self._cut(self.known)[part.start : part.stop].any(1)).sum())


class PatchReader(Reader):
    """Patches of standardised pixels (H, W, C) by rows and columns; number 0 is patch `first` of the picture."""

    def __init__(
        self,
        pixels: Tensor,
        known: Tensor | None,
        patch_size: int,
        rows: Tensor,
        columns: Tensor,
        first: int,
        inverse: Tensor | None = None,
    ):
        """`inverse` (D, D): R^-1/2, by which patches with correlated noise are multiplied."""
        self.windows = windows(pixels, patch_size)
        self.known = None if known is None else windows(known, patch_size)
        self.first, self.inverse = first, inverse
        self.rows, self.columns = rows.to(pixels.device), columns.to(pixels.device)

    def take(self, index: Tensor) -> Batch:
        number = index + self.first
        row = self.rows[number.div(len(self.columns), rounding_mode="floor")]
        column = self.columns[number % len(self.columns)]
        x = self.windows[row, column].flatten(1)
        x = x if self.inverse is None else x @ self.inverse
        return x, None if self.known is None else self.known[row, column].flatten(1)
