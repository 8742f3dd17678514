"""Bands of a restoration, kept in files of the run directory until the picture is finished.

A restoration that was stopped, for whatever reason, is resumed by the same command: bands that were kept are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

import tvae
from tvae.io.sealed import DamagedCheckpoint, read, write
from tvae.restoration.tiling import Bands, Watch, nobody
from tvae.runs.distributed.ranks import Ranks
from tvae.runs.files import BANDS
from tvae.runs.signals import Interrupted, Stop, queue_again
from tvae.training.trainer import Fit


class KeptBands(Bands):
    """Bands in files of the run directory, for the ranks of a run that may be asked to stop."""

    def __init__(self, directory: Path, fit: Fit, stop: Stop, ranks: Ranks, watch: Watch = nobody):
        super().__init__(ranks, watch)
        self.directory, self.stop, self.ranks = directory, stop, ranks
        digest = hashlib.sha256(tvae.__version__.encode())
        for name, value in fit.model.parameters_by_name().items():
            digest.update(name.encode() + value.cpu().numpy().tobytes())
        self.identity = digest.hexdigest()  # configuration and data are the directory's

    def one(self, name: str, compute: Callable[[], Tensor], is_joint: bool) -> Tensor:
        """The band from its file, if there is one; else it is computed and written."""
        path = self.directory / BANDS.replace("*", name)
        found = self._read(path)
        if is_joint and not all(self.ranks.gather(found is not None)):
            found = None
        if found is None:
            found = compute()
            if self.ranks.is_leader or not is_joint:
                write(path, {"identity": self.identity, "values": found})
        return found

    def _read(self, path: Path) -> Tensor | None:
        try:
            content = read(path)
        except DamagedCheckpoint:  # or there is none
            return None
        values = content.get("values")
        return values if content.get("identity") == self.identity and isinstance(values, Tensor) else None

    def tell(self, stage: str, n_done: int, n_bands: int) -> None:
        """Raise `Interrupted` if the run was asked to stop."""
        if self.ranks.any(self.stop()):
            if self.ranks.any(self.stop.is_at_limit):
                queue_again(self.ranks)
            raise Interrupted("interrupted while restoring; the same command resumes from there")

    def within(self, share: float) -> None:
        """Stop within a band, which is then computed again; several processes stop only between bands."""
        super().within(share)
        if self.ranks.is_alone:
            self.tell(self.stage, self.n_done, self.n_bands)

    def clear(self) -> None:
        """Remove the files."""
        if self.ranks.is_leader:
            for file in self.directory.glob(BANDS):
                file.unlink(missing_ok=True)
