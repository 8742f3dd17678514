"""Figures of a search: how it went, and the objective against each option."""

from __future__ import annotations

from matplotlib.figure import Figure
from optuna.trial import FrozenTrial


def value_of(trial: FrozenTrial) -> float:
    """The value of a finished trial."""
    assert trial.value is not None
    return trial.value


def draw_history(finished: list[FrozenTrial], objective: str) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    numbers, values = [trial.number for trial in finished], [value_of(trial) for trial in finished]
    axes.plot(numbers, values, "o", label="trials that finished")
    axes.step(numbers, [max(values[: i + 1]) for i in range(len(values))], where="post", label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel(objective)
    axes.legend()
    return figure


def draw_options(finished: list[FrozenTrial], objective: str) -> Figure:
    """The objective against each option."""
    names = list(finished[0].params)
    figure = Figure(figsize=(3.2 * len(names), 3.4), layout="constrained")
    for i, (axes, name) in enumerate(zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True)):
        given = [trial.params[name] for trial in finished]
        axes.plot(
            given if isinstance(given[0], (int, float)) else list(map(str, given)), [value_of(t) for t in finished], "o"
        )
        if getattr(finished[0].distributions[name], "log", False):
            axes.set_xscale("log")
        axes.set_xlabel(name)
        if i == 0:
            axes.set_ylabel(objective)
    return figure
