"""Hardware, versions and, in a checkout, the revision that results were made with."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from pathlib import Path

import torch

import tvae
from tvae.config.placement import n_cores


@lru_cache
def machine() -> dict[str, str]:
    """Values for `metrics.json`."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": str(n_cores()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tvae": tvae.__version__ + _revision(),
    }


def _revision() -> str:
    root = Path(tvae.__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        found = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f" ({found.stdout.strip()})"
