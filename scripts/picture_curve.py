"""PSNR against seconds: what each effort reaches on the pictures of half B, and BM3D beside it."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean, median

from matplotlib.figure import Figure

from scripts.picture_cells import Cell, grouped
from scripts.picture_peers import SYSTEMS

HALF = "B"
(OTHER, *_) = SYSTEMS["noise"]  # BM3D as it is told the noise level


def draw(cells: Iterable[Cell]) -> Figure | None:
    """A panel for each noise level; None where there is nothing to show.

    Every point is a mean over pictures, of the mean PSNR of each and of the median of its seconds.
    """
    shown = [cell for cell in cells if cell.group.half == HALF and cell.corruption.kind == "noise"]
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
    figure.axes[0].set_ylabel(f"PSNR (dB), mean of half {HALF}")
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
