"""Overlapping patches of a picture as data points, cut when they are asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from tvae.core.source import Batch, Reader, Source, to_model
from tvae.core.units import Units
from tvae.data.patches import extract, positions, windows
from tvae.data.picture import Picture


class PatchSource(Source):
    """All patches of `patch_size` every `stride` pixels, numbered row by row."""

    def __init__(self, picture: Picture, patch_size: int, stride: int):
        self.pixels = torch.from_numpy(picture.noisy)  # (H, W, C)
        self.known = None if picture.known is None else torch.tensor(picture.known)
        self.patch_size, self.stride = patch_size, stride
        height, width, n_channels = self.pixels.shape
        self.n_rows = len(positions(height, patch_size, stride))
        self.n_columns = len(positions(width, patch_size, stride))
        self.n_points, self.n_values = self.n_rows * self.n_columns, patch_size**2 * n_channels
        self.is_masked = self.known is not None

    def known_values(self) -> Tensor:
        data = extract(self.pixels, self.patch_size, self.stride)
        return data if self.known is None else data[extract(self.known, self.patch_size, self.stride)]

    def reader(self, part: range, units: Units, device: torch.device, dtype: torch.dtype) -> Reader:
        known = None if self.known is None else self.known.to(device)
        pixels = to_model(self.pixels, known, units, device, dtype)
        return PatchReader(pixels, known, self.patch_size, self.stride, part.start)

    def n_blind(self, part: range) -> int:
        if self.known is None:
            return 0
        seen = extract(self.known, self.patch_size, self.stride)[part.start : part.stop].any(1)
        return int((~seen).sum())


class PatchReader(Reader):
    """Patches of standardised pixels (H, W, C); number 0 is patch `first` of the picture."""

    def __init__(self, pixels: Tensor, known: Tensor | None, patch_size: int, stride: int, first: int):
        self.windows = windows(pixels, patch_size)
        self.known = None if known is None else windows(known, patch_size)
        self.first = first
        self.rows = positions(pixels.shape[0], patch_size, stride).to(pixels.device)
        self.columns = positions(pixels.shape[1], patch_size, stride).to(pixels.device)

    def take(self, index: Tensor) -> Batch:
        number = index + self.first
        row = self.rows[number.div(len(self.columns), rounding_mode="floor")]
        column = self.columns[number % len(self.columns)]
        x = self.windows[row, column].flatten(1)
        return x, None if self.known is None else self.known[row, column].flatten(1)
