"""The configuration of a trial, and the best one as an experiment that can be run."""

from __future__ import annotations

from collections.abc import Container

from hydra import compose
from omegaconf import OmegaConf, open_dict
from optuna.trial import FrozenTrial, Trial

from tvae.config.checks import flat, resolve
from tvae.config.schema import FREE, Config

MACHINE = tuple(name for name in FREE if name != "data_dir")  # options that an experiment leaves open


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
