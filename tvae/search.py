"""`python -m tvae.search`: look for good options by Gaussian-process optimisation, as the paper's authors did.

    python -m tvae.search experiment=house_50 space=denoise [n_trials=20] [objective=elbo]

Every other word is an override that all trials share. The study, in SQLite, and the trials' run directories are in the
search's own directory (`hydra.run.dir`). The same command goes on with a search that was stopped, and with the trials
that were under way in it; started more than once at a time, it shares the work. Trials whose ELBO is below the median
of the others at the same epoch are given up. `experiment/best.yaml` holds the best options found:

    python -m tvae.train --config-dir DIRECTORY experiment=best
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from tvae import app, datasets
from tvae.check import resolve
from tvae.checkpoint import DamagedCheckpoint, write_atomically
from tvae.config import Config, UserError, conf_dir
from tvae.figures import save_figure
from tvae.fit import Epoch, TrainingFailed
from tvae.recipe import complete
from tvae.rundir import FREE, Busy
from tvae.train import train

try:
    import optuna
    from optuna.trial import FrozenTrial, Trial, TrialState

    from tvae.space import Space, read_space
except ImportError:
    print("error: the search needs optuna: pip install 'tvae[search]'", file=sys.stderr)
    sys.exit(2)

log = logging.getLogger("tvae.search")

OBJECTIVES = ("elbo", "elbo_test", "psnr")
OF_THE_DATA = (
    "dataset.",
    "noise",
    "missing",
    "n_patches",
    "image",
    "mask",
    "corruption_seed",
)  # ELBOs of different data cannot be compared
ENDED = "ended"  # what is noted of trials that did not finish, and how
STARTUP = 5  # trials drawn at random before the Gaussian process takes over, and before any is given up


@dataclass(frozen=True)
class Options:
    """The search's own options, which stand among the overrides of the command line."""

    space: str
    n_trials: int = 20
    objective: str = "elbo"


def take_options(words: Sequence[str]) -> tuple[Options, list[str]]:
    """(the search's options, all other words), or `UserError` with a line for every problem."""
    names = ("space", "n_trials", "objective")
    mine = dict(word.split("=", 1) for word in words if word.startswith(tuple(f"{name}=" for name in names)))
    others = [word for word in words if word.split("=", 1)[0] not in mine]
    n_trials, objective = mine.get("n_trials", "20"), mine.get("objective", "elbo")
    problems = []
    if "space" not in mine:
        problems.append("space: no value was given; a YAML file of the options to vary, or space=denoise")
    if not n_trials.isdecimal() or int(n_trials) < 1:
        problems.append(f"n_trials={n_trials}: must be a whole number above 0")
    if objective not in OBJECTIVES:
        problems.append(f"objective={objective}: must be one of {', '.join(OBJECTIVES)}")
    if problems:
        raise UserError(*problems)
    return Options(mine["space"], int(n_trials), objective), others


class Search:
    """A study in `path`, whose trials differ from the `shared` overrides by what the space varies."""

    def __init__(self, path: Path, options: Options, shared: list[str], space: Space):
        self.path, self.options, self.shared, self.space = path, options, shared, space
        if (path / "config.yaml").exists():
            raise UserError(f"{path}: is the directory of a run; name another hydra.run.dir")
        path.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with locked(path / "search.lock"):
            self.study = optuna.create_study(
                storage=f"sqlite:///{path / 'study.db'}",
                study_name="tvae",
                direction="maximize",
                load_if_exists=True,
                sampler=optuna.samplers.GPSampler(n_startup_trials=STARTUP, warn_independent_sampling=False),
                pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
            )
            self._check_owner()

    def _check_owner(self) -> None:
        """A directory belongs to one search: what it varies, what all its trials share, what it looks for."""
        mine = {
            "shared": sorted(word for word in self.shared if word.split("=")[0] not in FREE),
            "objective": self.options.objective,
            "space": {name: optuna.distributions.distribution_to_json(d) for name, d in sorted(self.space.items())},
        }
        theirs = self.study.user_attrs.get("search")
        if theirs is None:
            self.study.set_user_attr("search", mine)
        elif theirs != mine:
            differing = ", ".join(key for key in mine if mine[key] != theirs.get(key))
            raise UserError(f"{self.path}: holds another search (other {differing}); name another hydra.run.dir")

    def run(self) -> None:
        """Work until there are `n_trials`: on what was left over first, then on new ones."""
        busy: set[int] = set()
        while True:
            with locked(self.path / "search.lock"):  # other processes ask as well
                trial = self._left_over(busy) or self._new()
            if trial is None:
                break
            try:
                self._run_trial(trial)
            except Busy:
                busy.add(trial.number)
        finished = [t for t in self.study.trials if t.state == TrialState.COMPLETE and ENDED not in t.user_attrs]
        if finished:
            self._write(max(finished, key=lambda trial: trial.value or -math.inf), finished)
        elif not busy:
            raise TrainingFailed(f"{self.path}: no trial has finished; see the lines above")

    def _new(self) -> Trial | None:
        n_trials = sum(bool(trial.params) for trial in self.study.trials)
        return self.study.ask(self.space) if n_trials < self.options.n_trials else None

    def _left_over(self, busy: set[int]) -> Trial | None:
        """A trial that was begun and not ended, unless it is known to be another process's."""
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            trial = Trial(self.study, frozen._trial_id)
            if not frozen.params:  # whoever asked for it, alone as we are here, ended before it was chosen
                self.study.tell(trial, state=TrialState.FAIL)
            elif frozen.number not in busy:
                return trial
        return None

    def _run_trial(self, trial: Trial) -> None:
        """Train, and tell the study how it went; an interruption leaves the trial to be gone on with.

        The Gaussian process learns from completed trials alone, and would propose others again and again. So a trial
        that was given up counts with the ELBO it had, one that failed with the lowest so far; both are marked. Another
        process may be quicker with a trial that seemed left over, hence `skip_if_finished`.
        """
        values = [f"{name}={value}" for name, value in trial.params.items()]
        log.info("trial %d: %s", trial.number, "  ".join(values))
        last = None

        def give_up(epoch: Epoch) -> bool:
            nonlocal last
            if self.options.objective == "psnr" or epoch.epoch % config.restore_every:
                return False  # the ELBO does not rank models by PSNR
            last = epoch.elbo if self.options.objective == "elbo" else epoch.elbo_test
            assert last is not None
            if self._has_ended(trial):
                return True
            trial.report(last, epoch.epoch)
            return trial.should_prune()

        try:
            config = compose_trial([*self.shared, *values])
            metrics = train(config, self.path / "trials" / f"{trial.number:04d}", give_up=give_up)
        except app.GivenUp:
            log.info("trial %d: given up", trial.number)
            self._end(trial, last, "given up")
        except Busy:
            raise
        except (TrainingFailed, DamagedCheckpoint, UserError, MemoryError, RuntimeError) as error:
            log.warning("trial %d: %s", trial.number, str(error).partition("\n")[0] or type(error).__name__)
            self._end(trial, min((t.value for t in self.study.trials if t.value is not None), default=None), "failed")
        else:
            self.study.tell(trial, metrics[self.options.objective], skip_if_finished=True)

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
        title = f"{self.options.objective} {best.value:.6g}, trial {best.number} of {len(self.study.trials)}"
        content = as_experiment(self.shared, best.params)
        write_atomically(folder / "best.yaml", f"# @package _global_\n# {title}\n{content}".encode())
        save_figure(self.path / "figures" / "history.png", draw_history(finished, self.options.objective))
        save_figure(self.path / "figures" / "options.png", draw_options(finished, self.options.objective))
        log.info("best: %s: %s", title, "  ".join(f"{name}={value}" for name, value in best.params.items()))
        log.info("to run it: python -m tvae.train --config-dir %s experiment=best", self.path)


def compose_trial(overrides: list[str]) -> Config:
    return resolve(compose("config", overrides))


def as_experiment(shared: list[str], params: dict[str, Any]) -> str:
    """Overrides and values as the YAML of an experiment: groups in its defaults, values below."""
    values = OmegaConf.create()
    base, groups = [], []
    wanted = [word for word in shared if word.split("=")[0] not in FREE]
    for override in OverridesParser.create().parse_overrides(wanted):
        name, value = override.key_or_group, override.value()
        if not GlobalHydra.instance().config_loader().get_group_options(name):
            OmegaConf.update(values, name, value)
        elif name == "experiment":
            base.append(value)
        else:
            groups.append({f"override /{name}": value})
    for name, value in params.items():
        (parsed,) = OverridesParser.create().parse_overrides([f"{name}={value}"])
        OmegaConf.update(values, name, parsed.value())
    return OmegaConf.to_yaml(OmegaConf.create({"defaults": [*base, *groups, "_self_"]})) + OmegaConf.to_yaml(values)


def draw_history(finished: list[FrozenTrial], objective: str) -> Figure:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    numbers, values = [trial.number for trial in finished], [float(trial.value or 0) for trial in finished]
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
            given if isinstance(given[0], (int, float)) else list(map(str, given)), [t.value for t in finished], "o"
        )
        if getattr(finished[0].distributions[name], "log", False):
            axes.set_xscale("log")
        axes.set_xlabel(name)
        if i == 0:
            axes.set_ylabel(objective)
    return figure


def search(cfg: DictConfig, path: Path, options: Options) -> None:
    """Search in `path`; `cfg` is what all trials have in common."""
    shared = list(HydraConfig.get().overrides.task)
    if cfg.restart:
        raise UserError("restart=true: a search does not start over; remove its directory, or name another")
    space = read_space(options.space, cfg, lambda override: compose_trial([*shared, override]))
    of_data = [name for name in space if name.startswith(OF_THE_DATA)]
    if of_data and options.objective != "psnr":
        raise UserError(
            f"{of_data[0]}: changes the data, and ELBOs of different data do not compare; objective=psnr does"
        )
    dataset = datasets.load(complete(compose_trial(shared)))  # a mistake in what all share is one mistake
    has_clean = dataset.picture is not None and dataset.picture.clean is not None
    if (options.objective == "psnr" and not has_clean) or (
        options.objective == "elbo_test" and dataset.held_out is None
    ):
        raise UserError(f"objective={options.objective}: there is none for these data; take objective=elbo")
    Search(path, options, shared, space).run()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Within, no other process is in a block locked by the same file."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start() -> None:
    asks = any(word.startswith("-") for word in sys.argv[1:])  # for help, or for the configuration
    options, sys.argv[1:] = take_options([*sys.argv[1:], "space="] if asks else sys.argv[1:])

    @hydra.main(version_base="1.3", config_path=conf_dir(), config_name="config")
    def job(cfg: DictConfig) -> None:
        app.run(lambda config, path: search(cfg, path, options), cfg)

    job()


def main() -> None:
    app.launch(start)


if __name__ == "__main__":
    main()
