"""`python -m tvae.search`: look for good options by Gaussian-process optimisation, as the paper's authors did.

    python -m tvae.search experiment=house_50 space=denoise [n_trials=20] [objective=elbo]

Every other word is an override that all trials share. The study, in SQLite, and the trials' run directories are in the
search's own directory (`hydra.run.dir`). The same command resumes a search that was stopped, and the trials that were
under way in it; started more than once at a time, it shares the work. Trials whose ELBO is below the median of the
others at the same epoch are stopped early. `experiment/best.yaml` holds the best options found:

    python -m tvae.train --config-dir DIRECTORY experiment=best
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from tvae.config.every_option import options_told
from tvae.config.recipe import prepare
from tvae.config.schema import conf_dir
from tvae.errors import UserError
from tvae.runs import command
from tvae.runs.distributed.connection import join

try:
    from tvae.search.space import read_space
    from tvae.search.trials import Search, compose_trial
except ImportError:
    print("error: the search needs optuna: pip install '.[search]'", file=sys.stderr)
    sys.exit(2)

OBJECTIVES = ("elbo", "elbo_test", "psnr")


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


def search(cfg: DictConfig, path: Path, options: Options) -> None:
    """Search in `path`; `cfg`: the configuration that all trials share."""
    shared = list(HydraConfig.get().overrides.task)
    if not join().is_alone:
        raise UserError("a search shares its trials, not its runs: start the command several times, without torchrun")
    if cfg.restart:
        raise UserError("restart=true: a search does not start over; remove its directory, or name another")
    space = read_space(options.space, cfg, lambda override: compose_trial([*shared, override]))
    of_data = [name for name in space if name.startswith("dataset.") or name in options_told("of_data", True)]
    if of_data and options.objective != "psnr":
        raise UserError(
            f"{of_data[0]}: changes the data, and ELBOs of different data do not compare; objective=psnr does"
        )
    _, dataset = prepare(compose_trial(shared))  # a mistake in what all share is one mistake
    has_clean = dataset.picture is not None and dataset.picture.clean is not None
    if (options.objective == "psnr" and not has_clean) or (
        options.objective == "elbo_test" and dataset.held_out is None
    ):
        raise UserError(f"objective={options.objective}: there is none for these data; take objective=elbo")
    Search(path, options.objective, shared, space, cfg.seed).run(options.n_trials)


def start() -> None:
    asks = any(word.startswith("-") for word in sys.argv[1:])  # for the configuration
    options, sys.argv[1:] = take_options(["space=", *sys.argv[1:]] if asks else sys.argv[1:])

    @hydra.main(version_base="1.3", config_path=conf_dir(), config_name="config")
    def job(cfg: DictConfig) -> None:
        command.run(lambda config, path: search(cfg, path, options), cfg)

    job()


def main() -> None:
    command.launch(start, __doc__)


if __name__ == "__main__":
    main()
