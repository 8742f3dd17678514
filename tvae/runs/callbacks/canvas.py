"""Empty figures. Matplotlib takes a third of a second to import, and is imported for the first figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def canvas(width: float, height: float) -> Figure:
    """A figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
