"""Memory that a picture takes, and a check that there is as much.

Restoration holds some values for every pixel of the picture, and for the rest a bounded number of patches and rows.
"""

from __future__ import annotations

import math
import os
import resource
import sys

from tvae.config.schema import Config
from tvae.data.dataset import Dataset
from tvae.data.picture import Picture, size_of
from tvae.errors import UserError
from tvae.restoration.second_stage import SECOND_STAGES
from tvae.restoration.tiling import ROWS_MAX

PER_VALUE = 32  # bytes on top of the picture itself, by the model alone
PER_BAND_VALUE = 60  # bytes: sums, their places, and what becomes of them
AT_ONCE = 3 << 26  # bytes: of patches and groups that are worked on together
PLENTY = 0.95  # of what is free


def bytes_needed(config: Config, dataset: Dataset, has_states: bool = False) -> int:
    """Peak memory of the process: what it has taken, states, which are saved in copies, and what a picture takes.

    `has_states`: they are among what it has taken.
    """
    assert config.model.n_latents is not None
    states = dataset.source.n_points * config.states.n_states * math.ceil(config.model.n_latents / 8)
    own = 0 if has_states else states
    more = states
    if dataset.picture is not None:
        more = max(more, bytes_of_restoration(config, dataset.picture))
    return max(bytes_taken(), bytes_resident() + own + more)


def bytes_of_restoration(config: Config, picture: Picture) -> int:
    """Memory on top of the picture itself."""
    band = PER_BAND_VALUE * min(picture.page_height, ROWS_MAX) * picture.noisy[0].size + AT_ONCE
    return _bytes_per_value(config, picture) * picture.noisy.size + band


def _bytes_per_value(config: Config, picture: Picture) -> int:
    second = SECOND_STAGES.get(config.restoration.method or "")
    more = 0 if second is None else second.bytes_per_value(picture.seen, bool(config.keep_known), config.effort)
    return max(PER_VALUE, more)


def bytes_taken() -> int:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def bytes_resident() -> int:
    """Bytes that this process has now, or the most it has had if the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return bytes_taken()


def bytes_free() -> int | None:
    """Bytes that the machine has for a process, those of this one included; None: it does not say."""
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
    per_value = _bytes_per_value(config, picture)
    fixed, per_pixel = needed - per_value * picture.noisy.size, per_value * picture.noisy.shape[2]
    fitting = max(0, (PLENTY * free - fixed) / per_pixel)
    pages = " (pages= chooses some)" if picture.n_pages > 1 else ""
    raise UserError(
        f"{config.image or config.dataset.name}: {size_of(picture.image)} pixels need about {needed / 2**30:.1f} GB of "
        f"memory, and {free / 2**30:.1f} GB are free; about {fitting / 1e6:.1f} megapixels would fit{pages}"
    )
