"""`python -m tvae.inpaint`: train on the known pixels of an image and fill in the missing ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from tvae import app
from tvae.config import Config, conf_dir, refuse
from tvae.ranks import join
from tvae.restore_run import restore_run
from tvae.train import train


def inpaint(config: Config, path: Path) -> dict[str, Any]:
    """As `denoise`, but known pixels stay as they are, unless noise was added to them."""
    if config.run is not None:
        return restore_run(config, path, keep_observed=None)
    problem = "nothing to fill in: give image=FILE with mask=FILE, or missing=FRACTION to drop pixels"
    join().together(lambda: refuse(config.image is config.missing is config.mask is None, problem))
    return train(config, path)


@hydra.main(version_base="1.3", config_path=conf_dir(), config_name="config")
def job(cfg: DictConfig) -> None:
    app.run(inpaint, cfg)


def main() -> None:
    app.launch(job)


if __name__ == "__main__":
    main()
else:
    app.callable_as(__name__, "inpaint")
