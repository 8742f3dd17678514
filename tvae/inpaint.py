"""`python -m tvae.inpaint`: train on the known pixels of an image and fill in the missing ones."""

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


def inpaint(config: Config, path: Path) -> dict[str, Any]:
    """Fill in missing pixels; known ones stay as they are, unless noise was added to them or `keep_known` is false.

    Missing are the pixels that the mask marks, NaN in floating-point files, and fully transparent ones, which become
    opaque. That none is missing is a mistake.
    """
    config.task = "inpaint"
    if config.run is not None:
        return restore_run(config, path)
    problem = "nothing to fill in: give image=FILE with mask=FILE, or missing=FRACTION to drop pixels"
    refuse(config.image is config.missing is config.mask is None, problem)
    return train_on_any(config, path)


@hydra.main(version_base="1.3", config_path=conf_dir(), config_name="config")
def job(cfg: DictConfig) -> None:
    command.run(inpaint, cfg)


def main() -> None:
    command.launch(job, __doc__, shorthand=("image", "output"))


if __name__ == "__main__":
    main()
else:
    command.callable_as(__name__, "inpaint")
