"""The restoration of a run's picture, band by band; what is done is kept in the run directory until it is finished.

A restoration that was stopped, by whatever, is resumed by the same command: bands that were kept are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

import tvae
from tvae.config.schema import Config
from tvae.data.picture import Picture
from tvae.data.sets.image import ImageConfig
from tvae.io.sealed import DamagedCheckpoint, read, write
from tvae.restoration.cost import stride_of_states
from tvae.restoration.metrics import quality
from tvae.restoration.non_local.stage import refine_restored
from tvae.restoration.posterior_mean import Plan, Restored, restore, take_back
from tvae.restoration.tiling import Bands, Watch, nobody
from tvae.restoration.unexplained import keep_unexplained
from tvae.runs.distributed.ranks import Ranks
from tvae.runs.files import BANDS
from tvae.runs.signals import Interrupted, Stop, queue_again
from tvae.training.trainer import Fit


def restore_by_states(fit: Fit, picture: Picture, config: Config, n_rounds: int, bands: Bands) -> Restored:
    """The model's estimate of `picture.seen`, after `n_rounds` further E-steps."""
    options = config.dataset
    assert isinstance(options, ImageConfig)
    assert options.patch_size is not None
    assert options.train_stride is not None
    keeps = bool(config.keep_known)
    stride = stride_of_states(config, picture)
    plan = Plan(options.patch_size, options.train_stride, stride, options.average, n_rounds, keeps)
    return restore(fit, picture.seen, plan, bands)


def restore_picture(fit: Fit, picture: Picture, config: Config, bands: Bands) -> Restored:
    """The picture that is delivered, with the quality of the model's own estimate in `psnr_model`."""
    found: dict[str, float | None] = {}

    def by_model(n_rounds: int) -> Restored:
        restored = restore_by_states(fit, picture, config, n_rounds, bands)
        found["psnr"] = quality(picture, take_back(picture, restored))["psnr"]
        return restored

    if config.restoration.method == "posterior_mean":
        restored = by_model(config.restoration.n_rounds)
    else:
        keeps_known = bool(config.keep_known)
        options = config.dataset
        assert isinstance(options, ImageConfig)
        is_thinned = config.model.likelihood == "slab" and options.train_stride != 1  # whose states are searched for
        restored = refine_restored(picture.seen, lambda: by_model(int(is_thinned)), keeps_known, config.effort, bands)
    if config.restoration.keep_unexplained:
        restored = with_unexplained(picture.seen, restored)
    return replace(take_back(picture, restored), psnr_model=found["psnr"])


def with_unexplained(seen: Picture, restored: Restored) -> Restored:
    """Put back the differences to `seen` that its noise does not explain."""
    sigma = seen.noise if restored.noise_level is None else restored.noise_level
    pixels = keep_unexplained(seen.noisy, restored.pixels, sigma, seen.known, seen.n_pages, seen.covariance)
    return replace(restored, pixels=pixels)


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
