"""What was found out about the noise of a picture: variance against brightness, and correlation between neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvae.noise.diagnosis import NoiseModel
from tvae.runs.callbacks.canvas import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_noise(model: NoiseModel) -> Figure:
    line, correlation = model.line, model.shape.correlation
    figure = canvas(8, 3.5)
    left, right = figure.subplots(1, 2)
    left.plot(line.mean, line.variance, "o", label="flattest blocks")
    ends = np.array([line.mean.min(), line.mean.max()])
    left.plot(ends, line.gain * ends + line.offset, label=f"{line.gain:.3g} x {line.offset:+.3g}")
    left.set_ylim(bottom=0)
    left.set_xlabel("brightness")
    left.set_title("variance of the noise")
    left.legend()
    lags = np.arange(len(correlation))
    right.plot(lags, correlation[0], marker="o", label="across")
    right.plot(lags, correlation[:, 0], marker="o", label="down")
    right.axhline(0, color="k", linewidth=0.5)
    right.set_xticks(lags)
    right.set_xlabel("pixels apart")
    right.set_title(f"correlation: {model.kind.replace('_', '-')}")
    right.legend()
    return figure
