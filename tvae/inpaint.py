"""`python -m tvae.inpaint`: train on the known pixels of an image and fill in the missing ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from tvae import app
from tvae.config import Config, UserError, conf_dir
from tvae.restore_run import restore_run
from tvae.train import train


def inpaint(config: Config, path: Path) -> dict[str, Any]:
    """As `denoise`, but known pixels stay as they are, unless noise was added to them."""
    if config.run is not None:
        return restore_run(config, path, keep_observed=None)
    if config.image is None and config.missing is None and config.mask is None:
        raise UserError("nothing to fill in: give image=FILE with mask=FILE, or missing=FRACTION to drop pixels")
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
