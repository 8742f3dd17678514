"""Settings of the nonlocal stage for each `effort`, chosen on the development pictures (docs/quality.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refinement:
    """Patches, groups and passes of the nonlocal stage."""

    local: tuple[tuple[int, int], ...] = ((5, 45), (6, 60), (8, 90))  # patch size and group size, averaged
    is_repeated: bool = True  # local groups once more, with the picture that they gave as their pilot
    step: int = 3  # pixels between the patches that groups are formed around
    radius: int = 15  # pixels: how far away alike patches are looked for
    n_fill_passes: int = 8  # of filling from local groups, each on the result of the one before
    n_noisy_passes: int = 2  # the same where known pixels are noisy
    fill: tuple[tuple[int, int], ...] = ((5, 30), (6, 60))  # patch size and group size of a pass, averaged
    fill_of_colour: tuple[tuple[int, int], ...] = ((5, 45), (6, 90))  # the same


REFINEMENTS = {
    "fast": Refinement(
        local=((6, 60),), is_repeated=False, n_fill_passes=2, fill=((5, 30),), fill_of_colour=((5, 30),)
    ),
    "default": Refinement(),
    "best": Refinement(step=2, radius=21, n_fill_passes=16),
}
