"""The noise of a picture: variance against brightness, correlation between neighbours, and the candidates' bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tvae.noise.model import NoiseModel
from tvae.runs.callbacks.canvas import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_noise(model: NoiseModel) -> Figure:
    table = model.covariance.table.diagonal().mean(-1)  # over channels
    line, correlation = model.line, table / table[0, 0]
    figure = canvas(12, 3.5)
    left, right, last = figure.subplots(1, 3)
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
    white = model.bounds["white"]
    last.barh(list(model.bounds), [nats - white for nats in model.bounds.values()])
    last.axvline(0, color="k", linewidth=0.5)
    last.set_xlabel("nats per value above white noise")
    last.set_title("bounds")
    return figure
