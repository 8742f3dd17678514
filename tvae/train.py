"""`python -m tvae.train`: train a model on a data set; where the data are patches of an image, restore it as well."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from tvae.config.schema import conf_dir
from tvae.runs import command
from tvae.runs.pictures import train_on_any


@hydra.main(version_base="1.3", config_path=conf_dir(), config_name="config")
def job(cfg: DictConfig) -> None:
    command.run(train_on_any, cfg)


def main() -> None:
    command.launch(job, __doc__)


if __name__ == "__main__":
    main()
