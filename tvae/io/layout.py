"""Stacks of pictures: how the axes of their arrays lie, and the same as pages one above the other.

Axes are named as in microscopy: Y and X are those of a picture, C (or S, as TIFF files call it) its channels, and all
others, T, Z or whatever, number pages. A stack of T pages of (H, W, C) is treated as one picture (T * H, W, C) that no
patch crosses from page to page.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np

from tvae.errors import UserError, refuse

CHANNELS = "CS"
CHANNELS_AS_PAGES = "KJLMN"  # letters for channels that are no colours: the first that is free


@dataclass(frozen=True)
class Layout:
    """The axes of an array and their lengths."""

    axes: str
    shape: tuple[int, ...]

    @property
    def page_axes(self) -> list[int]:
        return [i for i, axis in enumerate(self.axes) if axis not in f"YX{CHANNELS}"]

    @property
    def n_pages(self) -> int:
        return math.prod(self.shape[i] for i in self.page_axes)

    @property
    def order(self) -> list[int]:
        """Numbers of the axes in the order pages, rows, columns, channels."""
        channels = [i for i, axis in enumerate(self.axes) if axis in CHANNELS]
        return [*self.page_axes, self.axes.index("Y"), self.axes.index("X"), *channels]

    def to_pages(self, array: np.ndarray) -> np.ndarray:
        """The array of this layout -> (T, H, W) or (T, H, W, C)."""
        ordered = array.transpose(self.order)
        return ordered.reshape(self.n_pages, *ordered.shape[len(self.page_axes) :])

    def to_tall(self, array: np.ndarray) -> np.ndarray:
        """The array of this layout -> (T * H, W) or (T * H, W, C)."""
        pages = self.to_pages(array)
        return pages.reshape(-1, *pages.shape[2:])

    def from_tall(self, tall: np.ndarray) -> np.ndarray:
        """The inverse of `to_tall`; a single channel may have no axis."""
        in_order = [self.shape[i] for i in self.order]
        return tall.reshape(in_order).transpose(np.argsort(self.order))

    def chosen(self, pages: list[int]) -> Layout:
        """The layout of some pages, along one axis."""
        kept = [i for i in range(len(self.axes)) if i not in self.page_axes[1:]]
        sizes = [len(pages) if i == self.page_axes[0] else self.shape[i] for i in kept]
        return Layout("".join(self.axes[i] for i in kept), tuple(sizes))

    def with_sides(self, height: int, width: int) -> Layout:
        """The same for pages of another size."""
        sides = {"Y": height, "X": width}
        shape = tuple(sides.get(axis, side) for axis, side in zip(self.axes, self.shape, strict=True))
        return replace(self, shape=shape)

    def with_channels(self, n_channels: int) -> Layout:
        """The same for so many channels; one is no axis."""
        place = next((i for i, axis in enumerate(self.axes) if axis in CHANNELS), None)
        if place is None:
            return self if n_channels == 1 else Layout(f"{self.axes}C", (*self.shape, n_channels))
        shape = tuple(n_channels if i == place else side for i, side in enumerate(self.shape))
        return replace(self, shape=shape)


def layout_of(axes: str, shape: tuple[int, ...]) -> Layout:
    """The layout of an array whose axes the user names; `UserError` if they do not fit."""
    named, sides = axes.upper(), "x".join(map(str, shape))
    refuse(not named.isalpha() or len({*named}) < len(named), f"axes={axes}: a letter for each axis, each once")
    refuse(len(named) != len(shape), f"axes={axes}: {len(named)} axes, but the array has {len(shape)} ({sides})")
    refuse("Y" not in named or "X" not in named, f"axes={axes}: Y and X must be among them")
    refuse("C" in named and "S" in named, f"axes={axes}: C and S both are channels")
    layout = Layout(named, shape)
    n_channels = next((side for axis, side in zip(named, shape, strict=True) if axis in CHANNELS), 1)
    if n_channels not in (1, 2, 3, 4):
        raise UserError(f"axes={axes}: {n_channels} channels; another letter than C takes them for pages")
    return layout


def parse_pages(text: str, n_pages: int) -> list[int]:
    """`0,5,7` or `0-9`, or both, as numbers of pages; `UserError` for others than there are."""
    found: list[int] = []
    for word in text.replace(" ", "").strip("[]").split(","):
        numbers = re.fullmatch(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", word)
        if numbers is None:
            raise UserError(f"pages={text}: must be numbers of pages, as in 0,5,7 or 0-9")
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        refuse(first > last, f"pages={text}: {word} goes backwards")
        refuse(last >= n_pages, f"pages={text}: the pages are 0 to {n_pages - 1}")
        found += range(first, last + 1)
    refuse(len({*found}) < len(found), f"pages={text}: a page is chosen twice")
    return found
