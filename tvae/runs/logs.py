"""Destinations of log lines: the terminal, and the run's log file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvae.config.placement import rank_here

log = logging.getLogger("tvae")


def log_to_terminal(prefix: str = "") -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(prefix.replace("%", "%%") + "%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.WARNING if rank_here() else logging.INFO)


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append log lines to a file as well."""
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
