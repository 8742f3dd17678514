"""The options a search varies: a YAML file that names each with its range or its choices.

lr.max: {low: 0.001, high: 0.05, log: true}       # a number; log: even in its logarithm
model.n_latents: {low: 64, high: 512, step: 64}   # whole numbers, as low and high are
ea.selection: {choices: [posterior, fitness]}
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from tvae.config.checks import flat, load_yaml
from tvae.config.every_option import did_you_mean
from tvae.config.messages import one_line
from tvae.config.schema import FREE
from tvae.errors import UserError

Space = dict[str, BaseDistribution]
SPACES = Path(__file__).with_name("spaces")
NOT_VARIED = (*FREE, "run", "init_from")
RANGE = ("low", "high", "log", "step")


def find_space(name: str) -> Path:
    """The file of that name, or one of those that come with the program."""
    path = Path(name) if Path(name).is_file() else SPACES / f"{name}.yaml"
    if not path.is_file():
        here = ", ".join(sorted(file.stem for file in SPACES.glob("*.yaml")))
        raise UserError(f"space={name}: no such file, and not one of {here}")
    return path


def read_space(name: str, cfg: DictConfig, check: Callable[[str], object]) -> Space:
    """The space in a file, with a line for every problem; `check` composes an override, or raises."""
    path = find_space(name)
    try:
        content = OmegaConf.to_container(load_yaml(path), resolve=True)
    except Exception as error:  # YAML's and OmegaConf's have no base of their own
        raise UserError(f"{path}: not readable as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: must map options to ranges or choices, such as lr.max: {{low: 0.001, high: 0.05}}")
    known = list(flat(OmegaConf.to_container(cfg)))
    space, problems = {}, []
    for option, given in content.items():
        try:
            if option in NOT_VARIED:
                raise UserError("is not for a space; give it on the command line, to all trials")
            if any(name.startswith(f"{option!s}.") for name in known):
                raise UserError("is a group of options; name one of them")
            if option not in known:
                raise UserError(f"no such option{did_you_mean(str(option))}")
            space[option] = distribution(given)
            for value in extremes(space[option]):
                check(f"{option}={value}")
        except UserError as error:
            problems.append(f"{path}: {option!s}: {error.problems[0]}")
        except (HydraException, OmegaConfBaseException) as error:
            problems.append(f"{path}: {option!s}: {one_line(error)}")
    if problems:
        raise UserError(*problems)
    return space


def distribution(given: Any) -> BaseDistribution:
    """One entry of the file, or `UserError` that says what is wrong with it."""
    if not isinstance(given, dict):
        raise UserError("must be {low: ..., high: ...} or {choices: [...]}")
    if "choices" in given:
        choices = given["choices"]
        if len(given) > 1 or not isinstance(choices, list) or not choices:
            raise UserError("choices must be a list, and stand alone")
        return CategoricalDistribution([as_override(choice) for choice in choices])
    unknown = [key for key in given if key not in RANGE]
    if unknown or "low" not in given or "high" not in given:
        raise UserError(
            f"must have low and high, and may have {', '.join(RANGE[2:])}; got {', '.join(map(str, given))}"
        )
    low, high, log, step = given["low"], given["high"], given.get("log", False), given.get("step")
    numbers = [low, high] if step is None else [low, high, step]
    if not all(type(n) in (int, float) and math.isfinite(n) for n in numbers) or not isinstance(log, bool):
        raise UserError("low, high and step must be numbers, log must be true or false")
    if low >= high or (log and low <= 0) or (step is not None and (log or step <= 0)):
        raise UserError("low must be below high, above 0 with log, and a step must be above 0 and go without log")
    if step is not None and not math.isclose((high - low) / step, max(1, round((high - low) / step))):
        raise UserError(f"high={high} cannot be reached from low={low} in steps of {step}")
    if all(isinstance(n, int) for n in numbers):
        return IntDistribution(low, high, log=log, step=step or 1)
    return FloatDistribution(low, high, log=log, step=step)


def extremes(values: BaseDistribution) -> list[Any]:
    """The ends of a range, or all choices."""
    if isinstance(values, CategoricalDistribution):
        return list(values.choices)
    assert isinstance(values, (IntDistribution, FloatDistribution))
    return [values.low, values.high]


def as_override(value: Any) -> str | int | float | bool:
    """A choice as the command line would have it."""
    if value is None:
        return "null"
    return value if isinstance(value, (str, int, float, bool)) else str(value).replace(" ", "")
