"""How much refinement does, by `effort`. Chosen on the development pictures (docs/quality.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refinement:
    """How much is done."""

    local: tuple[tuple[int, int], ...] = ((5, 45), (6, 60), (8, 90))  # patch size and group size, averaged
    is_repeated: bool = False  # local groups once more, found on the picture that they gave
    step: int = 3  # pixels between the patches that groups are formed around
    radius: int = 15  # pixels: how far away alike patches are looked for
    n_fill_passes: int = 8  # of filling from local groups, each on the result of the one before
    fill_size: int = 5  # pixels along a side of their patches
    n_fill_similar: int = 30  # patches of such a group


REFINEMENTS = {
    "fast": Refinement(local=((6, 60),), n_fill_passes=2),
    "default": Refinement(),
    "best": Refinement(is_repeated=True, step=2, n_fill_passes=16),
}
