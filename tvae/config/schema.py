"""Every option there is: the schema that the YAML files under `conf/` extend.

Each option is described beside the code that uses it: training in `training.trainer` (`FitConfig` and its parts), data
in `data.dataset` (`DataConfig`) and the data sets. Here they are put together with the options of a run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from tvae.data.dataset import DataConfig, RestorationConfig
from tvae.data.sets import KINDS
from tvae.fields import opened, option
from tvae.inference.evolution import EaConfig
from tvae.inference.states import StatesConfig
from tvae.model.vae import ModelConfig
from tvae.training.trainer import LrConfig


@dataclass
class Config(DataConfig):
    output: Optional[str] = option(
        None, "denoise and inpaint: file for the restored picture; its ending tells the kind", changes_result=False,
        is_path=True, for_arrays=False,
    )  # fmt: skip
    overwrite: bool = option(False, "write `output` even if it exists", changes_result=False, for_arrays=False)
    run: Optional[str] = option(
        None, "denoise and inpaint: run directory to restore from, instead of training", is_path=True, for_arrays=False
    )
    shared: bool = option(False, "one model for all pictures of a folder, else one for each", for_arrays=False)
    precision: str = option("float32", "floating-point type of all computation", choices=("float32", "float64"))
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps", changes_result=False)
    compile: bool = option(False, "apply torch.compile to the decoder behind its first layer")
    threads: Optional[int] = option(
        None, "CPU threads; null: one for small models, else all cores", changes_result=False, ge=1
    )
    init_from: Optional[str] = option(
        None, "run directory whose parameters and states this run starts from", is_path=True, for_arrays=False
    )
    n_starts: int = option(1, "initialisations tried, of which the one with the highest ELBO is trained", ge=1)
    start_epochs: int = option(60, "n_starts above 1: epochs of each of them", ge=1)
    restore_every: int = option(5, "epochs between restorations of the image while training", ge=1, for_arrays=False)
    picture_every: int = option(10, "epochs between pictures of the decoder", ge=1, for_arrays=False)
    checkpoint_seconds: float = option(
        30.0, "time between checkpoints, 0: after every epoch", False, ge=0, for_arrays=False
    )
    working_dir: Optional[str] = option(
        None, "folder of a run's relative paths, set by the command", changes_result=False,
        for_arrays=False,
    )  # fmt: skip
    restart: bool = option(
        False, "throw away what the run directory holds and start over", changes_result=False, for_arrays=False
    )


# Options that do not change the result: a run may be resumed with other values of these.
FREE = tuple(f.name for f in fields(Config) if not f.metadata.get("changes_result", True))


def register() -> None:
    """Put the schema where the YAML files find it."""
    store = ConfigStore.instance()
    groups = {
        "model": ModelConfig,
        "states": StatesConfig,
        "ea": EaConfig,
        "lr": LrConfig,
        "restoration": RestorationConfig,
    }
    parts: dict[str, Any] = {group: opened(schema) for group, schema in groups.items()}
    store.store(group="schema", name="config", node=Config(**parts), package="_global_")
    for group, part in parts.items():
        store.store(group=f"schema/{group}", name="base", node=part)
    for kind in KINDS:
        store.store(group="schema/dataset", name=kind.schema, node=kind)
    OmegaConf.register_new_resolver("free_options", lambda: list(FREE), replace=True)


def conf_dir() -> str:
    """The folder of the YAML files: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")
