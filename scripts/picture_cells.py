"""Cells of the development set's tables: one picture, corruption and effort, over seeds, ours beside other systems."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from statistics import mean
from typing import NamedTuple, TypeVar

from scripts.development_set import HALF_OF, ROLES
from scripts.picture_peers import SYSTEMS, Found, Measured
from scripts.picture_runs import Case, Corruption, PictureRun
from tvae.data.dataset import EFFORTS

Key = TypeVar("Key")


class Group(NamedTuple):
    """The pictures of a half, restored with one effort: what means are taken over."""

    half: str
    effort: str

    def __str__(self) -> str:
        return f"half {self.half} ({ROLES[self.half]}), effort={self.effort}"


@dataclass(frozen=True)
class Cell:
    group: Group
    corruption: Corruption
    picture: str
    runs: dict[int, PictureRun]  # by seed
    others: dict[str, dict[int, Measured]]  # by system and seed

    def psnr(self) -> list[float]:
        return [run.psnr for run in self.runs.values()]

    def psnr_of(self, system: str) -> list[float]:
        return [measured.psnr for measured in self.others.get(system, {}).values()]

    def seconds_of(self, system: str) -> list[float]:
        return [measured.seconds for measured in self.others.get(system, {}).values()]

    def difference(self) -> float | None:
        """Of ours to the first of the other systems, over the seeds that both have."""
        (theirs, *_) = self.others.values()
        found = [run.psnr - theirs[seed].psnr for seed, run in self.runs.items() if seed in theirs]
        return mean(found) if found else None


def arrange(runs: list[PictureRun], found: Found) -> list[Cell]:
    """By half, effort, corruption and picture, in the order in which these are listed where they are defined."""

    def order(run: PictureRun) -> tuple[str, int, int, float, int, int]:
        picture, (kind, level), seed = run.case
        return (
            HALF_OF[picture], EFFORTS.index(run.effort), [*SYSTEMS].index(kind), level, [*HALF_OF].index(picture), seed
        )  # fmt: skip

    def key(run: PictureRun) -> tuple[Group, Corruption, str]:
        return Group(HALF_OF[run.case.picture], run.effort), run.case.corruption, run.case.picture

    cells = []
    for (group, corruption, picture), same in groupby(sorted(runs, key=order), key=key):
        by_seed = {run.case.seed: run for run in same}
        cases = {seed: Case(picture, corruption, seed) for seed in by_seed}
        others = {
            system: {seed: found[case, system] for seed, case in cases.items() if (case, system) in found}
            for system in SYSTEMS[corruption.kind]
        }
        cells.append(Cell(group, corruption, picture, by_seed, others))
    return cells


def grouped(cells: Iterable[Cell], key: Callable[[Cell], Key]) -> list[tuple[Key, list[Cell]]]:
    """Of cells in their order, those that follow each other with the same key."""
    return [(name, list(same)) for name, same in groupby(cells, key=key)]


def runs_of(cells: Iterable[Cell]) -> list[PictureRun]:
    return [run for cell in cells for run in cell.runs.values()]
