"""The one check of a configuration: it lists all problems at once.

Hydra and OmegaConf check types and group names while composing; `resolve` checks the rest (names given with `+`,
missing values, ranges, what does not go together) and turns the composed configuration into plain dataclass objects.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from tvae.config.every_option import did_you_mean
from tvae.config.paths_as_typed import change_paths
from tvae.config.placement import choose_device, device_problems, threads_problems
from tvae.config.schema import Config
from tvae.data.sets import DATASETS
from tvae.errors import UserError
from tvae.io.atomic import check_regular

BYTES_MAX, DEPTH_MAX = 1 << 18, 10  # of a YAML file


def resolve(cfg: DictConfig) -> Config:
    """The composed configuration as dataclass objects; raises `UserError` with a line for every problem."""
    problems = _take_unknown(cfg := copy.deepcopy(cfg), "")
    open_ones = _unresolved(cfg, "") or [f"{key}: no value was given" for key in sorted(OmegaConf.missing_keys(cfg))]
    if open_ones:
        raise UserError(*problems, *open_ones)
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    change_paths(config, os.path.expanduser)
    if config.image is not None and config.dataset.is_image:
        config.dataset.name = "file"
    problems += _problems(config) + device_problems(config.device) + threads_problems(config.threads)
    if problems:
        raise UserError(*problems)
    return config


def _problems(config: Config) -> list[str]:
    """Values out of range, and among the others those that do not go together."""
    out_of_range = _out_of_range(config, "")
    named = [line.partition("=")[0] + "=" for line in out_of_range]
    return out_of_range + [line for line in inconsistencies(config) if not any(name in line for name in named)]


def read_config(path: Path) -> Config:
    """Read the config.yaml of an earlier run."""
    return _as_config(lambda: load_yaml(path), path)


def parse_config(text: str, path: Path) -> Config:
    """Read such a configuration from a text that is a part of the file `path`."""
    return _as_config(lambda: parse_yaml(text), path)


def _as_config(load: Callable[[], Any], path: Path) -> Config:
    try:
        written = load()
        schema = OmegaConf.structured(Config(dataset=DATASETS[written.dataset.name]()))
        config = OmegaConf.to_object(OmegaConf.merge(schema, written))
    except Exception as error:  # missing, not YAML, or of another version
        raise UserError(f"{path}: not readable as the configuration of a run") from error
    assert isinstance(config, Config)
    problems = _problems(replace(config, device="cpu", init_from=None))  # which are not those of this command
    if problems:
        raise UserError(*(f"{path}: {problem}" for problem in problems))
    return config


# A few lines of aliases can stand for more values than fit into memory, and deep nesting takes for ever to read. Files
# of this program have neither, so both are refused before anything is made of them.
def load_yaml(path: Path) -> Any:
    """Read a file of plain values with OmegaConf; raises any exception for other content."""
    check_regular(path)
    if path.stat().st_size > BYTES_MAX:
        raise ValueError(f"more than {BYTES_MAX >> 10} kB")
    return parse_yaml(path.read_text("utf-8"))


def parse_yaml(text: str) -> Any:
    """Parse the content of such a file."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases are not read")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            raise ValueError("nested too deeply")
    return OmegaConf.create(text)


def flat(node: Any) -> dict[str, Any]:
    """Every option of a configuration (or of its YAML file) by its dotted name."""
    options: dict[str, Any] = {}

    def walk(content: Any, path: str) -> None:
        if isinstance(content, dict):
            for key, value in content.items():
                walk(value, f"{path}.{key}" if path else str(key))
        else:
            options[path] = content

    walk(OmegaConf.to_container(OmegaConf.create(node)), "")
    return options


def _take_unknown(cfg: DictConfig, path: str) -> list[str]:
    """Remove options that do not exist, and say so."""
    schema = OmegaConf.get_type(cfg)
    known = [f.name for f in fields(schema)] if schema is not None and is_dataclass(schema) else []
    problems = []
    for key in list(map(str, cfg)):
        if key not in known:
            problems.append(f"{path}{key}: no such option{did_you_mean(key, path)}")
            with open_dict(cfg):
                del cfg[key]
        elif not (OmegaConf.is_missing(cfg, key) or OmegaConf.is_interpolation(cfg, key)) and isinstance(
            cfg[key], DictConfig
        ):
            problems += _take_unknown(cfg[key], f"{path}{key}.")
    return problems


def _unresolved(cfg: DictConfig, path: str) -> list[str]:
    """Interpolations that lead nowhere, or to what the option cannot be."""
    problems = []
    given = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(given, dict)
    for key, typed in ((str(name), value) for name, value in given.items()):
        if isinstance(typed, dict):
            problems += _unresolved(cfg[key], f"{path}{key}.")
        elif "${" in str(typed):
            try:
                problem = _list_problem(cfg, key)
            except OmegaConfBaseException as error:
                problem = str(error).partition("\n")[0]
            problems += [f"{path}{key}={typed}: {problem}"] if problem else []
    return problems


def _list_problem(cfg: DictConfig, key: str) -> str | None:
    """The problem with an interpolation for a list, which OmegaConf does not check; raises if it does not resolve."""
    found, schema = cfg[key], OmegaConf.get_type(cfg)
    is_for_list = schema is not None and "list[" in str(get_type_hints(schema)[key]).lower()
    values = list(found) if isinstance(found, ListConfig) else None
    return "does not resolve to a list" if is_for_list and found is not None and values is None else None


COMPARISONS = {
    "ge": ("at least", lambda value, limit: value >= limit),
    "gt": ("above", lambda value, limit: value > limit),
    "le": ("at most", lambda value, limit: value <= limit),
    "lt": ("below", lambda value, limit: value < limit),
}


def _out_of_range(config: Any, path: str) -> list[str]:
    problems = []
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            problems += _out_of_range(value, f"{path}{f.name}.")
            continue
        if "choices" in f.metadata and value is not None and value not in f.metadata["choices"]:
            problems.append(f"{path}{f.name}={value}: must be one of {', '.join(f.metadata['choices'])}")
        values = value if isinstance(value, list) else [value]
        if any(isinstance(v, float) and not math.isfinite(v) for v in values):
            problems.append(f"{path}{f.name}={value}: must be a finite number")
            continue
        for name, (word, holds) in COMPARISONS.items():
            if name in f.metadata and not all(v is None or holds(v, f.metadata[name]) for v in values):
                problems.append(f"{path}{f.name}={value}: must be {word} {f.metadata[name]}")
    return problems


def inconsistencies(config: Config) -> list[str]:
    """Values that do not go together; options that are still open (null) go with everything."""
    model, ea, lr, n_states = config.model, config.ea, config.lr, config.states.n_states
    n_latents = math.inf if model.n_latents is None else model.n_latents
    wrong = {
        f"states.n_states={n_states}: model.n_latents={n_latents} has fewer states than that": (
            n_states is not None and n_latents < 62 and n_states > 2**n_latents
        ),
        f"ea.n_parents={ea.n_parents}: must be at most states.n_states={n_states}": (
            ea.n_parents is not None and n_states is not None and ea.n_parents > n_states
        ),
        f"ea.n_children={ea.n_children}: must be at most model.n_latents={n_latents}": (
            ea.n_children is not None and ea.n_children > n_latents
        ),
        f"ea.n_flips={ea.n_flips}: must be at most model.n_latents={n_latents}": ea.n_flips > n_latents,
        f"lr.min={lr.min}: must be at most lr.max={lr.max}": (
            lr.kind == "cyclic" and lr.max is not None and lr.min > lr.max
        ),
        "model.solver=exact: needs a linear decoder (model=linear)": (
            model.solver == "exact" and (model.decoder != "mlp" or model.hidden != [])
        ),
        f"n_thinned={config.n_thinned}: needs model.solver=exact": (bool(config.n_thinned) and model.solver == "adam"),
        f"n_thinned={config.n_thinned}: must be below epochs={config.epochs}": (
            config.epochs is not None and (config.n_thinned or 0) >= config.epochs
        ),
        "model.counts_imputed=true: needs model.impute=true, model.solver=adam and model.likelihood=gaussian": (
            model.counts_imputed
            and (model.impute is False or model.solver == "exact" or model.likelihood not in (None, "gaussian"))
        ),
        "model.solver=exact: needs model.likelihood=gaussian or slab": (
            model.solver == "exact" and model.likelihood == "known_variance"
        ),
        "model.likelihood=slab: needs model.slab above 0": model.likelihood == "slab" and model.slab == 0,
        f"model.slab={model.slab}: goes with model.likelihood=slab": (
            bool(model.slab) and model.likelihood not in (None, "slab")
        ),
        "model.likelihood=slab: a linear decoder needs model.solver=exact": (
            model.likelihood == "slab" and model.hidden == [] and model.solver == "adam"
        ),
        "ea.mutation=residual: needs a linear decoder": ea.mutation == "residual" and bool(model.hidden),
        "model.variances: go with model.likelihood=known_variance, which needs them": (
            (model.variances is None) == (model.likelihood == "known_variance")
        ),
        f"states.memmap=true: needs device=cpu, not {config.device}": config.states.memmap and not _is_cpu(config),
        f"n_starts={config.n_starts}: goes neither with init_from nor with states.memmap=true (n_starts=1 does)": (
            config.n_starts > 1 and (config.init_from is not None or config.states.memmap)
        ),
        f"init_from={config.init_from}: no checkpoint.pt there": (
            config.init_from is not None and not (Path(config.init_from) / "checkpoint.pt").is_file()
        ),
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong] + config.dataset.problems(config)


def _is_cpu(config: Config) -> bool:
    return choose_device(config.device, config.precision).type == "cpu"
