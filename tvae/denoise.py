"""`python -m tvae.denoise`: train on an image and replace every pixel by its estimate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from tvae.config.schema import Config, conf_dir
from tvae.errors import refuse
from tvae.runs import command
from tvae.runs.pictures import train_on_any
from tvae.runs.rerun import restore_run


def denoise(config: Config, path: Path) -> dict[str, Any]:
    """Train and restore in `path`, or restore from the run that `run` names; returns what metrics.json holds.

    An alpha channel stays as it is, and transparent pixels are treated as any others; missing ones are filled in.
    """
    config.task = "denoise"
    refuse(config.keep_known is True, "keep_known=true: is for inpaint; to denoise is to change known pixels")
    if config.run is not None:
        return restore_run(config, path)
    problem = "nothing to denoise: give image=FILE, or noise=LEVEL to add noise to the data set's picture"
    refuse(config.image is config.noise is None and config.corruption == "none", problem)
    return train_on_any(config, path)


@hydra.main(version_base="1.3", config_path=conf_dir(), config_name="config")
def job(cfg: DictConfig) -> None:
    command.run(denoise, cfg)


def main() -> None:
    command.launch(job, __doc__, shorthand=("image", "output"))


if __name__ == "__main__":
    main()
else:
    command.callable_as(__name__, "denoise")
