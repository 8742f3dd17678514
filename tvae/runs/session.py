"""One run, from a configuration to its results: prepare -> resume -> loop -> finish.

Commands, `run=DIR`, the search and the Python calls all come this way. A session with a `path` keeps what it does in
that run directory and is resumed from there; one without keeps nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from tvae.backends.native.threads import own_settings
from tvae.config.recipe import tell_choices
from tvae.config.schema import Config
from tvae.data.dataset import Dataset
from tvae.data.picture import Picture
from tvae.errors import refuse
from tvae.io.atomic import DiskFull
from tvae.restoration.cost import stages
from tvae.restoration.memory import check_memory
from tvae.restoration.pipeline import restore_as_trained, restore_picture
from tvae.restoration.posterior_mean import Restored
from tvae.restoration.tiling import Bands
from tvae.runs import checkpoint
from tvae.runs.callbacks.output_pictures import changed_pictures
from tvae.runs.callbacks.progress import restoring, training
from tvae.runs.callbacks.record import Record, WrittenRecord
from tvae.runs.distributed.connection import join
from tvae.runs.distributed.ranks import LostRank, Ranks
from tvae.runs.files import LOG, STATES
from tvae.runs.initialise import check_source, resume, start_from_run
from tvae.runs.kept_bands import KeptBands
from tvae.runs.log_lines import closing, log_to_file, opening, summary, tell_noise, warn_of_blind_patches
from tvae.runs.result import SHOWN, check_kind, check_output, deliver, is_complete
from tvae.runs.run_directory import check_ranks, claimed, read_metrics
from tvae.runs.setup import make_fit, prepared, take_best_start
from tvae.runs.signals import Interrupted, Stop, StoppedEarly, queue_again, stop_on_signal
from tvae.training.trainer import Epoch, Fit

log = logging.getLogger("tvae.train")


def train(
    config: Config,
    path: Path,
    stops_early: Callable[[Epoch], bool] = lambda epoch: False,
) -> dict[str, Any]:
    """Train in the run directory `path`, or resume what was begun there; returns what metrics.json holds.

    `stops_early`: asked after every epoch, and ends the run like an interruption.
    """
    ranks = join()
    refuse(config.run is not None, f"run={config.run}: is for tvae.denoise and tvae.inpaint")
    if ranks.is_leader:
        check_output(config, path)
    given, (config, dataset) = config, ranks.in_turn(lambda: prepared(config))
    config.working_dir = os.getcwd()
    fingerprint = dataset.fingerprint()
    check_source(config, dataset, path)
    check_ranks(config, dataset, fingerprint, ranks)
    check_kind(config, dataset.picture)
    with claimed(path, config, fingerprint, ranks, given):
        (done, is_kept), *_ = ranks.gather((read_metrics(path), is_complete(path, dataset.picture)))
        is_finished = done is not None and (done.get("status"), done.get("epochs")) == ("finished", config.epochs)
        if is_finished and is_kept:
            log.info("%s is finished already; restart=true starts over", path)
            if ranks.is_leader and config.task == "train":
                log.info("%s", summary(done, path))
            for file in changed_pictures(path, done.get("sha256")):
                log.warning("%s: changed after the run; remove %s to make the pictures again", file, SHOWN)
        else:
            with log_to_file(path / LOG) if ranks.is_leader else nullcontext():
                tell_choices(given, config)
                session = Session(config, dataset, path, ranks)
                session.resume(fingerprint)
                if not is_finished:  # else its picture has gone, and is made again
                    session.loop(stops_early)
                done = session.finish()
        if ranks.is_leader:
            deliver(config, path, dataset.picture)
        assert done is not None
        return done


def train_in_memory(config: Config, picture: Picture) -> Restored:
    """Train on a picture and restore it; nothing is written."""
    with own_settings():
        given, (config, dataset) = config, prepared(config, picture)
        tell_choices(given, config)
        session = Session(config, dataset)
        session.try_starts()
        session.loop()
        session.finish()
    assert session.record.restored is not None
    return session.record.restored


@dataclass
class Cadence:
    """The epochs and times at which a run saves itself and restores its picture."""

    fit: Fit
    restore_every: int  # epochs
    checkpoint_seconds: float  # 0: after every epoch
    saved_at: float = field(default_factory=time.monotonic)
    place: tuple[int, int] = (-1, -1)  # epoch and batch of the last checkpoint

    def __post_init__(self) -> None:
        self.note_saved()

    def note_saved(self) -> None:
        self.saved_at, self.place = time.monotonic(), (self.fit.epoch, self.fit.batch)

    def saves_within_epoch(self) -> bool:
        """True if a checkpoint is due in the middle of an epoch: never twice at the same place."""
        is_late = 0 < self.checkpoint_seconds <= time.monotonic() - self.saved_at
        return is_late and self.place != (self.fit.epoch, self.fit.batch)

    def saves_after_epoch(self) -> bool:
        return self.checkpoint_seconds == 0

    def restores(self) -> bool:
        """True if the picture is to be restored after the epoch that has just ended."""
        return self.fit.epoch % self.restore_every == 0 or self.fit.epoch == self.fit.n_epochs


class Session:
    """Training and restoration of prepared data; after `resume`, at the place where the run in `path` stopped."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        path: Path | None = None,
        ranks: Ranks = Ranks(),  # noqa: B008
    ):
        self.config, self.dataset, self.path, self.ranks = config, dataset, path, ranks
        check_memory(config, dataset)
        self.fit = make_fit(config, dataset, path, ranks)
        self.record = self._new_record([])
        warn_of_blind_patches(self.fit, dataset)

    def _new_record(self, history: list[dict[str, Any]]) -> Record:
        about = (self.config, self.fit, self.dataset, history, self.dataset.facts(self.config))
        if self.path is None or not self.ranks.is_leader:
            return Record(*about)
        return WrittenRecord(self.path, *about)

    def resume(self, fingerprint: str) -> None:
        """Start from the newest checkpoint in `path`, the run that `init_from` names, or the best of `n_starts`."""
        assert self.path is not None
        saved = checkpoint.load_newest(self.path, self.ranks)
        if saved is not None:
            self.record = self._new_record(resume(self.fit, saved))
            if self.ranks.is_leader:
                checkpoint.reinstate(saved)
            self.ranks.meet()
            log.info("%s: resumed after epoch %d", self.path, self.fit.epoch)
        elif self.config.init_from is not None:
            start_from_run(self.fit, Path(self.config.init_from), fingerprint)
        else:
            self.try_starts()

    def try_starts(self) -> None:
        if self.config.n_starts > 1:
            units = self.fit.units
            take_best_start(self.fit, self.config, lambda c: make_fit(c, self.dataset, None, self.ranks, units))

    def loop(self, stops_early: Callable[[Epoch], bool] = lambda epoch: False) -> None:
        """Train to the last epoch; raises `Interrupted` if it is stopped before."""
        fit, ranks = self.fit, self.ranks
        if ranks.is_leader:
            tell_noise(self.config, self.dataset.picture)
            log.info("%s", opening(self.config, self.fit, self.dataset))
        cadence = Cadence(fit, self.config.restore_every, self.config.checkpoint_seconds)
        is_early = is_over = False
        at_work = fit.backend.at_work()
        with self._noting_failure(), self._stop() as stop, training(fit, self.path is not None) as shown, at_work:
            while not is_over:
                for epoch in fit.epochs(lambda: shown.moves() or stop() or self._is_due(cadence)):
                    shown.end_epoch(self.record.add_epoch(epoch, self._look() if cadence.restores() else None))
                    is_early = fit.epoch < fit.n_epochs and stops_early(epoch)
                    if is_early or cadence.saves_after_epoch():
                        break
                self._save()
                cadence.note_saved()
                is_over = is_early or fit.epoch == fit.n_epochs or ranks.any(stop())
            is_at_limit = ranks.any(stop.is_at_limit)
        if is_early:
            raise StoppedEarly(f"stopped early after epoch {fit.epoch}")
        if fit.epoch < fit.n_epochs:
            if is_at_limit:
                queue_again(ranks)
            raise Interrupted(f"interrupted in epoch {fit.epoch + 1}; the same command resumes from there")

    def finish(self) -> dict[str, Any]:
        """Restore the picture, if the data are patches of one, and report the metrics."""
        with self._noting_failure(), self._stop() as stop, self.fit.backend.at_work():
            self.record.add_bound(self.fit.bound(), self.config.dataset.recovered(self.fit.model))
            self._restore(stop)
        if self.path is not None and self.ranks.is_leader:
            deliver(self.config, self.path, self.dataset.picture)  # figures can wait
        metrics = self.record.finish()
        self.ranks.meet()
        if self.path is not None:
            if self.ranks.is_leader:
                for file in self.path.glob(STATES.format("*")):  # the checkpoint has them
                    file.unlink()
            log.info("%s", self._closing(metrics, self.path))
        return metrics

    def _closing(self, metrics: dict[str, Any], path: Path) -> str:
        """The closing line: about the picture in `denoise` and `inpaint`, about the model in `train`."""
        picture, restored = self.dataset.picture, self.record.restored
        if self.config.task == "train" or picture is None or restored is None:
            return summary(metrics, path)
        return closing(self.config, picture, restored, metrics, path)

    def _restore(self, stop: Stop) -> None:
        picture = self.dataset.picture
        if picture is None:
            return
        with restoring(self.fit, stages(self.config, self.fit, picture), self.path is not None) as watch:
            kept = None if self.path is None else KeptBands(self.path, self.fit, stop, self.ranks, watch)
            bands = kept or Bands(self.ranks, watch)
            self.record.add_restored(restore_picture(self.fit, picture, self.config, bands))
        if kept is not None:
            kept.clear()

    def _look(self) -> Restored | None:
        """The picture as of now, if its quality is known, or if `train` shows it on TensorBoard."""
        picture = self.dataset.picture
        if self.path is None or picture is None or (picture.clean is None and self.config.task != "train"):
            return None
        return restore_as_trained(self.fit, picture, self.config, Bands(self.ranks))

    def _is_due(self, cadence: Cadence) -> bool:
        return self.path is not None and cadence.saves_within_epoch()

    def _save(self) -> None:
        if self.path is None:
            return
        content = {"fit": self.fit.state_dict(), "history": self.record.history}
        checkpoint.save(self.path, content, self._parts(), self.ranks)
        self.record.write("interrupted")  # which is true if the process ends before the next save
        self.ranks.meet()

    def _parts(self) -> Iterator[dict[str, Tensor]]:
        for name, points in self.fit.sets_by_name().items():
            for states in points.parts():
                yield {name: states}

    @contextmanager
    def _stop(self) -> Iterator[Stop]:
        """Handle signals: a run that can be resumed stops, any other ends at once."""
        with stop_on_signal() if self.path is not None else nullcontext(Stop()) as stop:
            yield stop

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            with suppress(DiskFull, OSError):
                self.record.write("interrupted" if isinstance(error, (LostRank, Interrupted)) else "failed")
            raise
