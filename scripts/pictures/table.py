"""The development set restored, beside BM3D and biharmonic interpolation on the same arrays: Markdown and CSV.

    python -m scripts.pictures.table [outputs]

Takes whatever finished runs there are below outputs/pictures/runs (`make pictures`) and writes
outputs/tables/pictures.md and .csv, and PSNR against seconds in pictures.png; runs that cannot be read are left out and
named. What other systems reach is measured once and kept in outputs/pictures/peers.csv.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple, TypeVar

from matplotlib.figure import Figure

from scripts.pictures.development_set import HALF_OF, HALVES, ROLES
from scripts.pictures.runs import (
    N_DEVIATIONS,
    N_PARTS,
    NOT_INSTALLED,
    SYSTEMS,
    Case,
    Corruption,
    Found,
    Measured,
    PictureRun,
    collect_runs,
    is_installed,
    measure_peers,
)
from tvae.data.dataset import EFFORTS
from tvae.io.atomic import write_atomically
from tvae.runs.callbacks.figures import save_figure

LEGEND = (
    "PSNR in dB, neither rounded nor clipped: mean ± standard deviation (number) over seeds of both the corruption and "
    "the training. All systems see the same arrays. Ours is told nothing; BM3D (in colour CBM3D) is told the noise "
    "level, or, in grey, gets the one that `tvae.noise.level` estimates. Differences are to BM3D as told, or to "
    "biharmonic interpolation, seed by seed; summaries are means over pictures. Seconds are those of whole runs, but "
    "for the start of Python; with *: some are of the training alone, for the run was interrupted, or its files were "
    "copied."
)
CALIBRATION = (
    "Stated uncertainty: RMSE over the stated deviation in eighths of the estimated pixels, from the lowest stated to "
    f"the highest, and the share of errors within {N_DEVIATIONS} deviations; lowest..highest of all pictures and seeds."
)
KINDS = {"noise": "noise", "missing": "missing pixels"}
LEVELS = {"noise": "sigma {:g}", "missing": "{:.0%} missing"}
CSV_COLUMNS = (
    "half", "effort", "picture", "corruption", "n", "psnr_mean", "psnr_std",
    *(name for systems in SYSTEMS.values() for name in systems), "difference", "seconds_mean", "seconds_are",
    *(f"ratio_{part + 1}_{end}" for part in range(N_PARTS) for end in ("min", "max")), "coverage_min", "coverage_max",
)  # fmt: skip
CURVE_HALF = "B"
(OTHER, *_) = SYSTEMS["noise"]  # BM3D as it is told the noise level
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
        """Mean of ours minus the first of the other systems, over the seeds that both have."""
        (theirs, *_) = self.others.values()
        found = [run.psnr - theirs[seed].psnr for seed, run in self.runs.items() if seed in theirs]
        return mean(found) if found else None


def arrange(runs: list[PictureRun], found: Found) -> list[Cell]:
    """Cells ordered by half, effort, corruption and picture, each as listed where it is defined."""

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
    """Runs of consecutive cells with the same key."""
    return [(name, list(same)) for name, same in groupby(cells, key=key)]


def runs_of(cells: Iterable[Cell]) -> list[PictureRun]:
    return [run for cell in cells for run in cell.runs.values()]


def level_of(corruption: Corruption) -> str:
    return LEVELS[corruption.kind].format(corruption.level)


def with_spread(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{spread} ({len(values)})"


def mean_of_pictures(values: Iterable[list[float]]) -> str:
    """Every picture counts alike, whatever its number of seeds."""
    found = [mean(of_picture) for of_picture in values if of_picture]
    return f"{mean(found):.2f}" if found else ""


def seconds_of(runs: list[PictureRun]) -> str:
    seconds = [run.seconds for run in runs]
    return f"{min(seconds):.0f}..{max(seconds):.0f}" + ("" if all(run.is_whole for run in runs) else " *")


def threads_of(runs: list[PictureRun]) -> str:
    return " or ".join(sorted({str(run.n_threads or "all cores") for run in runs}))


def made_by(runs: list[PictureRun]) -> str:
    """A repeated command skips finished runs, so that a table may hold those of several revisions."""
    versions = Counter(run.made_by for run in runs).most_common()
    return "Runs by tvae " + ", ".join(f"{version}: {count}" for version, count in versions) + "."


def summary(cells: list[Cell], kind: str) -> list[list[str]]:
    """A line for each group and corruption of a kind: means over pictures, and the worst picture."""
    systems = [*SYSTEMS[kind]]
    lines = [
        [KINDS[kind], "", "pictures", "runs", "ours", *systems, "difference", "worst picture", "seconds", "threads"]
        + [f"seconds of {name}" for name in systems]
    ]
    for (group, corruption), same in grouped(of_kind(cells, kind), lambda cell: (cell.group, cell.corruption)):
        runs = runs_of(same)
        gaps = {cell.picture: gap for cell in same if (gap := cell.difference()) is not None}
        worst = min(gaps, key=lambda picture: gaps[picture], default=None)
        lines.append(
            [str(group), level_of(corruption), f"{len(same)} of {len(HALVES[group.half])}", str(len(runs))]
            + [mean_of_pictures(cell.psnr() for cell in same)]
            + [mean_of_pictures(cell.psnr_of(name) for cell in same) for name in systems]
            + [f"{mean(gaps.values()):+.2f}" if gaps else "", f"{worst} {gaps[worst]:+.2f}" if worst else ""]
            + [seconds_of(runs), threads_of(runs)]
            + [mean_of_pictures(cell.seconds_of(name) for cell in same) for name in systems]
        )
    return lines


def of_kind(cells: Iterable[Cell], kind: str) -> list[Cell]:
    return [cell for cell in cells if cell.corruption.kind == kind]


def calibration(cells: list[Cell]) -> list[list[str]]:
    """A line for each group and corruption."""
    parts = range(N_PARTS)
    lines = [["stated uncertainty", "", *(f"eighth {part + 1}" for part in parts), f"within {N_DEVIATIONS} deviations"]]
    for (group, corruption), same in grouped(cells, lambda cell: (cell.group, cell.corruption)):
        found = [run.calibration for run in runs_of(same)]
        by_part = [[each.ratios[part] for each in found] for part in parts]
        shares = [100 * each.coverage for each in found]
        lines.append(
            [str(group), level_of(corruption)]
            + [f"{min(ratios):.2f}..{max(ratios):.2f}" for ratios in by_part]
            + [f"{min(shares):.1f}..{max(shares):.1f} %"]
        )
    return lines


def by_picture(group: Group, cells: list[Cell], kind: str) -> list[list[str]]:
    """A line for each picture of a group, with all levels of a kind of corruption."""
    levels = sorted({cell.corruption for cell in cells})
    systems = [*SYSTEMS[kind]]
    head = [str(group)]
    for corruption in levels:
        head += [f"{level_of(corruption)}: ours", *systems, "difference"]
    lines = [[*head, "seconds"]]
    for picture in HALVES[group.half]:
        found = {cell.corruption: cell for cell in cells if cell.picture == picture}
        if found:
            line = [picture]
            for corruption in levels:
                cell = found.get(corruption)
                line += [""] * (len(systems) + 2) if cell is None else figures(cell)
            lines.append([*line, seconds_of(runs_of(found.values()))])
    return lines


def figures(cell: Cell) -> list[str]:
    """Ours, those of other systems, and the difference."""
    gap = cell.difference()
    others = [with_spread(cell.psnr_of(name)) for name in cell.others]
    return [with_spread(cell.psnr()), *others, "" if gap is None else f"{gap:+.2f}"]


def as_markdown(cells: list[Cell], notes: list[str]) -> str:
    shown = {cell.group.half for cell in cells}
    halves = [f"Half {half} ({role}): {', '.join(HALVES[half])}." for half, role in ROLES.items() if half in shown]
    kinds = [kind for kind in SYSTEMS if of_kind(cells, kind)]
    parts = [" ".join(halves), LEGEND, *notes]
    parts += [_table(summary(cells, kind)) for kind in kinds]
    parts += [CALIBRATION, _table(calibration(cells))]
    for (group, kind), same in grouped(cells, lambda cell: (cell.group, cell.corruption.kind)):
        parts.append(_table(by_picture(group, same, kind)))
    return "\n\n".join(parts) + "\n"


def _table(lines: list[list[str]]) -> str:
    rows = ["| " + " | ".join(line) + " |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]]]
    return "\n".join(rows)


def as_csv(cells: list[Cell]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        row: dict[str, float | str | None] = csv_row(cell)
        writer.writerow({name: f"{value:.4f}" if isinstance(value, float) else value for name, value in row.items()})
    return out.getvalue()


def csv_row(cell: Cell) -> dict[str, float | str | None]:
    """A picture, a corruption and an effort."""
    runs, psnr = runs_of([cell]), cell.psnr()
    row: dict[str, float | str | None] = {"half": cell.group.half, "effort": cell.group.effort, "picture": cell.picture}
    row |= {"corruption": str(cell.corruption), "n": str(len(runs)), "psnr_mean": mean(psnr)}
    row |= {"psnr_std": stdev(psnr) if len(psnr) > 1 else None, "difference": cell.difference()}
    row |= {name: mean(values) for name in cell.others if (values := cell.psnr_of(name))}
    row["seconds_mean"] = mean(run.seconds for run in runs)
    row["seconds_are"] = "whole" if all(run.is_whole for run in runs) else "training"
    for part in range(N_PARTS):
        ratios = [run.calibration.ratios[part] for run in runs]
        row |= {f"ratio_{part + 1}_min": min(ratios), f"ratio_{part + 1}_max": max(ratios)}
    coverage = [run.calibration.coverage for run in runs]
    return row | {"coverage_min": min(coverage), "coverage_max": max(coverage)}


def draw(cells: Iterable[Cell]) -> Figure | None:
    """PSNR against seconds of each effort and of BM3D, a panel for each noise level; None without runs.

    Every point is a mean over pictures, of the mean PSNR of each and of the median of its seconds.
    """
    shown = [cell for cell in cells if cell.group.half == CURVE_HALF and cell.corruption.kind == "noise"]
    levels = sorted({cell.corruption for cell in shown})
    if not levels:
        return None
    figure = Figure(figsize=(4 * len(levels), 3.4), layout="constrained")
    for axes, corruption in zip(figure.subplots(1, len(levels), squeeze=False)[0], levels, strict=True):
        at_level = [cell for cell in shown if cell.corruption == corruption]
        efforts = {group.effort: point(same) for group, same in grouped(at_level, lambda cell: cell.group)}
        axes.plot(*zip(*efforts.values(), strict=True), "o-", label="tvae, blind")
        for effort, where in efforts.items():
            axes.annotate(effort, where, xytext=(4, -12), textcoords="offset points")
        if others := [cell for cell in at_level if cell.psnr_of(OTHER)]:
            axes.plot(*other_point(others), "s", label=OTHER)
        axes.set(xscale="log", xlabel="seconds a picture", title=f"sigma {corruption.level:g}")
        axes.margins(0.2)
        axes.grid(alpha=0.3, which="both")
    figure.axes[0].set_ylabel(f"PSNR (dB), mean of half {CURVE_HALF}")
    figure.axes[0].legend(loc="lower right")
    return figure


def point(cells: list[Cell]) -> tuple[float, float]:
    """Seconds and PSNR of one effort."""
    seconds = mean(median(run.seconds for run in cell.runs.values()) for cell in cells)
    return seconds, mean(mean(cell.psnr()) for cell in cells)


def other_point(cells: list[Cell]) -> tuple[float, float]:
    """Seconds and PSNR of the other system; each picture counts once, whatever the number of efforts."""
    of_picture = {cell.picture: cell for cell in cells}.values()
    seconds = mean(median(cell.seconds_of(OTHER)) for cell in of_picture)
    return seconds, mean(mean(cell.psnr_of(OTHER)) for cell in of_picture)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="scripts.pictures.table", description=__doc__.splitlines()[0])
    parser.add_argument("outputs", type=Path, nargs="?", default=Path("outputs"))
    outputs = parser.parse_args(words).outputs
    folder = outputs / "pictures"
    runs = collect_runs(folder)
    if not runs:
        sys.exit(f"error: {folder / 'runs'}: no finished runs there; `make pictures` makes them")
    cases = sorted({run.case for run in runs})
    cells = arrange(runs, measure_peers(cases, folder / "clean", folder / "peers.csv"))
    notes = [NOT_INSTALLED] if of_kind(cells, "noise") and not is_installed("noise") else []
    markdown = as_markdown(cells, [made_by(runs), *notes])
    (outputs / "tables").mkdir(exist_ok=True)
    for ending, text in (("md", markdown), ("csv", as_csv(cells))):
        write_atomically(outputs / "tables" / f"pictures.{ending}", text.encode())
    figure = draw(cells)
    if figure is not None:
        save_figure(outputs / "tables" / "pictures.png", figure)
    print(markdown)
    print(f"written to {outputs}/tables/pictures.md, .csv and .png")


if __name__ == "__main__":
    main()
