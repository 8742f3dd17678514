"""A study: trials that vary some options, which of them comes next, how each went, and the best one as an experiment.

Optuna's study is in SQLite in the search's directory, each trial in a run directory below it. Any number of processes
work on it: who asks for a trial is alone while it does, and who trains holds the trial's run directory. A trial that is
under way in a directory that no process holds was left over by one that ended, and is resumed.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from hydra import compose
from matplotlib.figure import Figure
from omegaconf import OmegaConf, open_dict
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import DatabaseError

from tvae.config.checks import flat, resolve
from tvae.config.schema import FREE, Config
from tvae.errors import TrainingFailed, UserError
from tvae.inference.streams import derive
from tvae.io.atomic import write_atomically
from tvae.io.sealed import DamagedCheckpoint
from tvae.runs.callbacks.figures import save_figure
from tvae.runs.run_directory import Busy
from tvae.runs.session import train
from tvae.runs.signals import StoppedEarly
from tvae.search.space import Space
from tvae.training.trainer import Epoch

log = logging.getLogger("tvae.search")

ENDED = "ended"  # what is noted of trials that did not finish, and how
MACHINE = tuple(name for name in FREE if name != "data_dir")  # options that an experiment leaves open
STARTUP = 5  # trials drawn at random before the Gaussian process takes over, and before any is stopped early


def compose_trial(overrides: list[str]) -> Config:
    return resolve(compose("config", overrides))


def overrides_of(trial: Trial | FrozenTrial) -> list[str]:
    return [f"{name}={value}" for name, value in trial.params.items()]


def as_experiment(overrides: list[str], varied: Container[str]) -> str:
    """The YAML of an experiment that needs no other: the data set, all values unlike its own, and those varied."""
    cfg = compose("config", overrides, return_hydra_config=True)
    dataset = cfg.hydra.runtime.choices["dataset"]
    usual = flat(compose("config", [f"dataset={dataset}"]))
    with open_dict(cfg):
        del cfg.hydra
    OmegaConf.resolve(cfg)
    values = OmegaConf.create()
    for name, value in flat(cfg).items():
        if name in varied or (value != usual[name] and name not in MACHINE):
            OmegaConf.update(values, name, value)
    defaults = [{"override /dataset": dataset}, "_self_"]
    return OmegaConf.to_yaml(OmegaConf.create({"defaults": defaults})) + OmegaConf.to_yaml(values)


class Search:
    """A study in `path`, whose trials differ from the `shared` overrides by what the space varies."""

    def __init__(self, path: Path, objective: str, shared: list[str], space: Space, seed: int):
        self.path, self.objective, self.shared, self.space, self.seed = path, objective, shared, space, seed
        if (path / "config.yaml").exists():
            raise UserError(f"{path}: is the directory of a run; name another hydra.run.dir")
        path.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with locked(path / "search.lock"):
            self.study = open_study(path / "study.db")
            self._check_owner()

    def _check_owner(self) -> None:
        """A directory belongs to one search: what it varies, what all its trials share, what it looks for."""
        mine = {
            "shared": sorted(word for word in self.shared if word.split("=")[0] not in FREE),
            "objective": self.objective,
            "space": {name: optuna.distributions.distribution_to_json(d) for name, d in sorted(self.space.items())},
        }
        theirs = self.study.user_attrs.get("search")
        if theirs is None:
            self.study.set_user_attr("search", mine)
        elif theirs != mine:
            differing = ", ".join(key for key in mine if mine[key] != theirs.get(key))
            raise UserError(f"{self.path}: holds another search (different {differing}); name another hydra.run.dir")

    def run(self, n_trials: int) -> None:
        """Work until there are `n_trials`: on what was left over first, then on new ones."""
        busy: set[int] = set()
        while True:
            with locked(self.path / "search.lock"):  # other processes ask as well
                trial = self._left_over(busy) or self._new(n_trials)
            if trial is None:
                break
            try:
                self._run_trial(trial)
            except Busy:
                busy.add(trial.number)
        finished = [t for t in self.study.trials if t.state == TrialState.COMPLETE and ENDED not in t.user_attrs]
        if finished:
            self._write(max(finished, key=value_of), finished)
        elif not busy:
            raise TrainingFailed(f"{self.path}: no trial has finished; see the lines above")

    def _new(self, n_trials: int) -> Trial | None:
        if sum(bool(trial.params) for trial in self.study.trials) >= n_trials:
            return None
        self.study.sampler = optuna.samplers.GPSampler(
            seed=derive(self.seed, "trial", len(self.study.trials)) % 2**32,  # whichever process asks
            n_startup_trials=STARTUP,
            warn_independent_sampling=False,
        )
        return self.study.ask(self.space)

    def _left_over(self, busy: set[int]) -> Trial | None:
        """A trial that was begun and not ended, unless it is known to be another process's."""
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            trial = Trial(self.study, frozen._trial_id)
            if not frozen.params:  # the process that asked for it ended before its options were chosen
                self.study.tell(trial, state=TrialState.FAIL)
            elif frozen.number not in busy:
                return trial
        return None

    def _run_trial(self, trial: Trial) -> None:
        """Train, and tell the study how it went; an interruption leaves the trial to be resumed.

        The Gaussian process learns from completed trials alone, and would propose others again and again. So a trial
        that was stopped early counts with the ELBO it had, one that failed with the lowest so far; both are marked.
        Another process may be quicker with a trial that seemed left over, hence `skip_if_finished`.
        """
        values = overrides_of(trial)
        log.info("trial %d: %s", trial.number, "  ".join(values))
        last = None

        def stops_early(epoch: Epoch) -> bool:
            nonlocal last
            if self.objective == "psnr" or epoch.epoch % config.restore_every:
                return False  # the ELBO does not rank models by PSNR
            last = epoch.elbo if self.objective == "elbo" else epoch.elbo_test
            assert last is not None
            if self._has_ended(trial):
                return True
            trial.report(last, epoch.epoch)
            return trial.should_prune()

        try:
            config = compose_trial([*self.shared, *values])
            metrics = train(config, self.path / "trials" / f"{trial.number:04d}", stops_early=stops_early)
        except StoppedEarly:
            log.info("trial %d: stopped early", trial.number)
            self._end(trial, last, "stopped early")
        except Busy:
            raise
        except (TrainingFailed, DamagedCheckpoint, UserError, MemoryError, RuntimeError) as error:
            log.warning("trial %d: %s", trial.number, str(error).partition("\n")[0] or type(error).__name__)
            self._end(trial, min((t.value for t in self.study.trials if t.value is not None), default=None), "failed")
        else:
            self.study.tell(trial, metrics[self.objective], skip_if_finished=True)

    def _has_ended(self, trial: Trial) -> bool:
        return self.study.trials[trial.number].state.is_finished()

    def _end(self, trial: Trial, value: float | None, how: str) -> None:
        if not self._has_ended(trial):
            trial.set_user_attr(ENDED, how)
            self.study.tell(trial, value, state=TrialState.FAIL if value is None else None)

    def _write(self, best: FrozenTrial, finished: list[FrozenTrial]) -> None:
        """The best options as an experiment, and figures of how the search went."""
        folder = self.path / "experiment"
        folder.mkdir(exist_ok=True)
        (self.path / "figures").mkdir(exist_ok=True)
        title = f"{self.objective} {best.value:.6g}, trial {best.number} of {len(self.study.trials)}"
        content = as_experiment([*self.shared, *overrides_of(best)], self.space)
        write_atomically(folder / "best.yaml", f"# @package _global_\n# {title}\n{content}".encode())
        save_figure(self.path / "figures" / "history.png", draw_history(finished, self.objective))
        save_figure(self.path / "figures" / "options.png", draw_options(finished, self.objective))
        log.info("best: %s: %s", title, "  ".join(overrides_of(best)))
        log.info("to run it: python -m tvae.train --config-dir %s experiment=best", self.path)


def open_study(path: Path) -> optuna.Study:
    """The study in an SQLite file, which may be new."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=60, check_same_thread=False)

    try:
        # The file is named to SQLite itself: in an address some characters of its path would mean something else.
        storage = optuna.storages.RDBStorage("sqlite:///study.db", engine_kwargs={"creator": connect})
        return optuna.create_study(
            storage=storage,
            study_name="tvae",
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
        )
    except (DatabaseError, optuna.exceptions.StorageInternalError) as error:
        raise UserError(f"{path}: not readable as the study of a search ({error.__cause__ or error})") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Exclude other processes from blocks that are locked by the same file."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
