"""What a run shows while it trains: a progress bar, or a line per epoch if the output is not a terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from tvae.core.fit import Fit

log = logging.getLogger("tvae.train")


class Progress:
    def __init__(self, bar: tqdm, n_epochs: int, is_told: bool):
        self.bar, self.n_epochs, self.is_told = bar, n_epochs, is_told

    def show(self, row: dict[str, Any]) -> None:
        """An epoch, from its row of history."""
        shown = {"ELBO": f"{row['elbo']:.3f}", "sigma": f"{row['sigma']:.4g}"}
        if row["elbo_test"] is not None:
            shown["held-out"] = f"{row['elbo_test']:.3f}"
        if row.get("psnr") is not None:
            shown["PSNR"] = f"{row['psnr']:.2f} dB"
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update()
        if self.is_told and self.bar.disable:
            values = "  ".join(f"{name} {value}" for name, value in shown.items())
            values += f"  new states {row['n_accepted']:.2f}  {row['seconds']:.2f} s"
            log.info("epoch %d/%d  %s", row["epoch"], self.n_epochs, values)


@contextmanager
def progress(fit: Fit, is_told: bool) -> Iterator[Progress]:
    """`is_told`: epochs are logged if the bar cannot be shown."""
    is_hidden = None if fit.team.is_leader else True  # None: unless the output is a terminal
    with (
        logging_redirect_tqdm([logging.getLogger("tvae")]),
        tqdm(initial=fit.epoch, total=fit.n_epochs, unit="epoch", disable=is_hidden) as bar,
    ):
        yield Progress(bar, fit.n_epochs, is_told)


def summary(metrics: dict[str, Any], path: Path) -> str:
    """The last line of a finished run."""
    words = [f"finished in {metrics['seconds']:.0f} s: ELBO {metrics['elbo']:.4f}, sigma {metrics['sigma']:.4g}"]
    if metrics["psnr"] is not None:
        before = "" if metrics["psnr_input"] is None else f" (input {metrics['psnr_input']:.2f} dB)"
        words.append(f"PSNR {metrics['psnr']:.2f} dB{before}, SSIM {metrics['ssim']:.4f}")
    words.append(f"results in {path}")
    return "; ".join(words)
