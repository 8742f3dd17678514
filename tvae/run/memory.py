"""How much memory a picture takes, and whether there is as much.

Restoration holds some values for every pixel of the picture, and for the rest a bounded number of patches and rows.
"""

from __future__ import annotations

import math
import os
import resource
import sys

from tvae.core.errors import UserError
from tvae.data.dataset import Dataset
from tvae.data.picture import Picture, size_of
from tvae.options.schema import Config
from tvae.restore.bands import ROWS_MAX
from tvae.restore.refinement import N_FITTED, N_GROUPS

PER_VALUE = 48  # bytes: of the first estimate, of both estimates that follow in single precision, and of the result
PER_BAND_VALUE = 60  # bytes: sums, their places, and what becomes of them
AT_ONCE = 3 << 26  # bytes: of patches and groups that are worked on together
COPIES = 3  # of the patches that the mixture is fitted to
PLENTY = 0.95  # of what is free


def bytes_needed(config: Config, dataset: Dataset) -> int:
    """By the process at most: what it has taken, states, which are saved in copies, and what a picture takes."""
    assert config.model.n_latents is not None
    states = dataset.source.n_points * config.states.n_states * math.ceil(config.model.n_latents / 8)
    more = 2 * states
    if dataset.picture is not None:
        more = max(more, states + bytes_of_restoration(dataset.picture, dataset.source.n_values))
    return max(bytes_taken(), bytes_resident() + more)


def bytes_of_restoration(picture: Picture, n_values: int) -> int:
    """On top of the picture itself; `n_values`: of a patch."""
    height, width, n_channels = picture.noisy.shape
    n_fitted = min(height * width, N_FITTED)
    fitted = 4 * n_values * n_fitted * COPIES + 3 * 8 * N_GROUPS * n_values**2
    band = PER_BAND_VALUE * min(picture.page_height, ROWS_MAX) * width * n_channels
    return PER_VALUE * picture.noisy.size + max(fitted, band + AT_ONCE)


def bytes_taken() -> int:
    """The most that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def bytes_resident() -> int:
    """What this process has now; where the system does not say, the most it has had."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return bytes_taken()


def bytes_free() -> int | None:
    """What the machine has for a process, this one's included; None: it does not say."""
    try:
        with open("/proc/meminfo") as file:
            available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    return 1024 * available + bytes_resident()


def check_memory(config: Config, dataset: Dataset) -> None:
    """Raise `UserError` for a picture that cannot fit, naming what would."""
    picture, free = dataset.picture, bytes_free()
    if picture is None or free is None:
        return
    needed = bytes_needed(config, dataset)
    if needed <= PLENTY * free:
        return
    fixed = needed - PER_VALUE * picture.noisy.size
    per_pixel = PER_VALUE * picture.noisy.shape[2]
    fitting = max(0, (PLENTY * free - fixed) / per_pixel)
    pages = " (pages= chooses some)" if picture.n_pages > 1 else ""
    raise UserError(
        f"{config.image or config.dataset.name}: {size_of(picture.image)} pixels need about {needed / 2**30:.1f} GB of "
        f"memory, and {free / 2**30:.1f} GB are free; about {fitting / 1e6:.1f} megapixels would fit{pages}"
    )
