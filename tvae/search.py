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
import sys
from collections.abc import Sequence
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

from tvae import app
from tvae.check import resolve
from tvae.checkpoint import write_atomically
from tvae.config import Config, UserError, conf_dir
from tvae.figures import save_figure
from tvae.fit import Epoch, TrainingFailed
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
OF_THE_DATA = ("dataset.", "noise", "missing", "n_patches", "image")  # ELBOs of different data cannot be compared
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
        self.busy: set[int] = set()  # trials that another process is working on
        self.prunes = not any(name.startswith(OF_THE_DATA) for name in space)
        if (path / "config.yaml").exists():
            raise UserError(f"{path}: is the directory of a run; name another hydra.run.dir")
        path.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
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
        while (trial := self._left_over() or self._new()) is not None:
            self._run_trial(trial)
        finished = [trial for trial in self.study.trials if trial.state == TrialState.COMPLETE]
        if not finished:
            raise TrainingFailed(f"{self.path}: no trial has finished; see the run.log of each")
        self._write(self.study.best_trial, finished)

    def _new(self) -> Trial | None:
        return self.study.ask(self.space) if len(self.study.trials) < self.options.n_trials else None

    def _left_over(self) -> Trial | None:
        """A trial that was begun and not ended, unless it is known to be another process's."""
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if frozen.number not in self.busy:
                return Trial(self.study, frozen._trial_id)
        return None

    def _run_trial(self, trial: Trial) -> None:
        """Train, and tell the study how it went; an interruption leaves the trial to be gone on with.

        Another process may be quicker with a trial that seemed left over: `skip_if_finished`.
        """
        values = [f"{name}={value}" for name, value in trial.params.items()]
        log.info("trial %d: %s", trial.number, "  ".join(values))
        given_up = False

        def give_up(epoch: Epoch) -> bool:
            nonlocal given_up
            if self.prunes and epoch.epoch % config.restore_every == 0:
                trial.report(epoch.elbo, epoch.epoch)
                given_up = trial.should_prune()
            return given_up

        try:
            config = compose_trial([*self.shared, *values])
            metrics = train(config, self.path / "trials" / f"{trial.number:04d}", give_up=give_up)
        except Busy:
            self.busy.add(trial.number)
        except app.Interrupted:
            if not given_up:
                raise
            log.info("trial %d: given up", trial.number)
            self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        except (TrainingFailed, UserError) as error:  # such as options that do not go together
            log.warning("trial %d: %s", trial.number, error)
            self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
        else:
            self._tell(trial, metrics)

    def _tell(self, trial: Trial, metrics: dict[str, Any]) -> None:
        value = metrics[self.options.objective]
        if value is None:
            raise UserError(f"objective={self.options.objective}: there is none for these data; take objective=elbo")
        self.study.tell(trial, value, skip_if_finished=True)

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
    for override in OverridesParser.create().parse_overrides(shared):
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
    space = read_space(options.space, cfg, lambda override: compose_trial([*shared, override]))
    of_data = [name for name in space if name.startswith(OF_THE_DATA)]
    if of_data and options.objective != "psnr":
        raise UserError(
            f"{of_data[0]}: changes the data, and ELBOs of different data do not compare; objective=psnr does"
        )
    Search(path, options, shared, space).run()


def start() -> None:
    options, sys.argv[1:] = take_options(sys.argv[1:])

    @hydra.main(version_base="1.3", config_path=conf_dir(), config_name="config")
    def job(cfg: DictConfig) -> None:
        app.run(lambda config, path: search(cfg, path, options), cfg)

    job()


def main() -> None:
    app.launch(start)


if __name__ == "__main__":
    main()
