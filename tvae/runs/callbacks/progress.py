"""Progress of a run: the share of its training and of its restoration that is done.

A bar on terminals and in notebooks, as plain text that needs nothing installed; elsewhere a line for the first and the
last epoch and for each stage of the restoration, and between them one in 10 s at most.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from tvae.training.trainer import Fit

log = logging.getLogger("tvae.train")

SECONDS_SILENT = 10.0  # between lines, where there is no bar


def has_bar() -> bool:
    """True for a terminal or a notebook, which show at once what is written and can be written over."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel") or sys.stderr.isatty()


class Stage:
    """A part of a run, and how much of it is done."""

    def __init__(self, bar: tqdm, name: str, is_told: bool):
        self.bar, self.name, self.is_told = bar, name, is_told
        self.told_at = time.monotonic()

    def move(self, done: float) -> None:
        """Move the bar to `done` of its total; cheap enough to call after every step."""
        self.bar.update(done - self.bar.n)
        if self.is_due():
            self.tell(f"{self.name} {self.shown(done)}")

    def is_due(self) -> bool:
        """True if the next line is due."""
        return self.is_told and self.bar.disable and time.monotonic() - self.told_at > SECONDS_SILENT

    def shown(self, done: float) -> str:
        return f"{done:.0%}"

    def tell(self, line: str) -> None:
        self.told_at = time.monotonic()
        log.info("%s", line)


class Training(Stage):
    """The stage whose steps are epochs."""

    def __init__(self, bar: tqdm, fit: Fit, is_told: bool):
        super().__init__(bar, "epoch", is_told)
        self.fit, self.has_told_epoch = fit, False

    def shown(self, done: float) -> str:
        return f"{int(done) + 1}/{self.fit.n_epochs}: {done % 1:.0%}"

    def moves(self) -> bool:
        """Move the bar; always returns False, so that it can be called as a condition to stop."""
        self.move(self.fit.epoch + self.fit.batch / self.fit.n_batches(self.fit.epoch))
        return False

    def end_epoch(self, row: dict[str, Any]) -> None:
        """`row`: what history has of it."""
        values = {"ELBO": f"{row['elbo']:.3f}", "sigma": f"{row['sigma']:.4g}"}
        if row["elbo_test"] is not None:
            values["held-out"] = f"{row['elbo_test']:.3f}"
        if row.get("psnr") is not None:
            values["PSNR"] = f"{row['psnr']:.2f} dB"
        self.bar.set_postfix(values, refresh=False)
        self.bar.update(row["epoch"] - self.bar.n)
        is_end = row["epoch"] == self.fit.n_epochs
        if self.is_due() or (self.is_told and self.bar.disable and (is_end or not self.has_told_epoch)):
            self.has_told_epoch = True
            words = "  ".join(f"{name} {value}" for name, value in values.items())
            words += f"  new states {row['n_accepted']:.2f}  {row['seconds']:.2f} s"
            self.tell(f"epoch {row['epoch']}/{self.fit.n_epochs}  {words}")


@contextmanager
def training(fit: Fit, is_told: bool) -> Iterator[Training]:
    """Show the training; `is_told`: in lines, where there can be no bar."""
    layout = "{desc}{percentage:3.0f}%|{bar}| {n:.4g}/{total:.0f} epochs [{elapsed}<{remaining}{postfix}]"
    with _bar(fit, fit.epoch, fit.n_epochs, layout) as bar:
        yield Training(bar, fit, is_told)


@contextmanager
def restoring(fit: Fit, stages: dict[str, float], is_told: bool) -> Iterator[Callable[[str, float], None]]:
    """Show the restoration, in `stages` with their times.

    Yields a function of the stage and the share of it that is done.
    """
    layout = "restoring: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}]"
    whole_time = sum(stages.values()) or 1.0
    share_of = {stage: seconds / whole_time for stage, seconds in stages.items()}
    before = dict(zip(stages, itertools.accumulate(share_of.values(), initial=0.0), strict=False))
    with _bar(fit, 0, 1, layout) as bar:
        whole, seen = Stage(bar, "restoring", is_told), set[str]()

        def watch(stage: str, share: float) -> None:
            if stage not in before:
                return
            done = before[stage] + share * share_of[stage]
            if stage not in seen and is_told and bar.disable:
                whole.tell(f"restoring {whole.shown(done)}: {stage}")
            seen.add(stage)
            whole.move(done)

        yield watch
        whole.bar.update(1 - whole.bar.n)


@contextmanager
def _bar(fit: Fit, done: float, total: float, layout: str) -> Iterator[tqdm]:
    is_hidden = not (fit.team.is_leader and has_bar())
    with (
        nullcontext() if is_hidden else logging_redirect_tqdm([logging.getLogger("tvae")]),
        tqdm(initial=done, total=total, bar_format=layout, disable=is_hidden) as bar,
    ):
        yield bar
