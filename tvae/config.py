"""Every option there is, with its meaning, unit and range; and the one check that lists all problems at once.

The dataclasses are the schema that the YAML files under `conf/` extend. Hydra and OmegaConf check names and types while
composing; `resolve` checks the rest and turns the composed configuration into plain dataclass objects.
"""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Optional

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict

from tvae.decoder import ACTIVATIONS
from tvae.device import choose_device, device_problems
from tvae.evolution import MUTATIONS, SELECTIONS
from tvae.patches import AVERAGES

EXACT_LATENTS_MAX = 20  # 2^20 states of a data point are as many as can be listed


class UserError(ValueError):
    """A mistake in what the user gave: one line for each problem, exit code 2."""

    def __init__(self, *problems: str):
        super().__init__("\n".join(problems))
        self.problems = problems


def option(default: Any, meaning: str, **limits: Any) -> Any:
    """A field with its meaning and limits: `ge`, `gt`, `le`, `lt` or `choices`."""
    metadata = {"meaning": meaning, **limits}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class DatasetConfig:
    name: str = option(MISSING, "the data set")
    standardise: bool = option(False, "train on (x - mean) / std; everything reported stays in the data's own units")


@dataclass
class BarsConfig(DatasetConfig):
    name: str = option("bars", "bars", choices=("bars",))
    n_points: int = option(500, "images", ge=1)
    size: int = option(4, "pixels along a side; there are 2 * size bars", ge=2, le=EXACT_LATENTS_MAX // 2)
    mean_bars: float = option(2.0, "bars in an image, on average", gt=0)
    sigma2: float = option(0.01, "variance of the noise", gt=0)
    correlated: bool = option(False, "the first bar suppresses the second, the last one the last but one")
    seed: int = option(0, "of the images; apart from the run's seed, so that runs see the same data", ge=0)


PICTURES = ("house", "barbara", "castle", "camera", "file")


@dataclass
class ImageConfig(DatasetConfig):
    name: str = option(MISSING, "the picture, or file: the one in `image`", choices=PICTURES)
    patch_size: Optional[int] = option(None, "pixels along a side of a patch; null: by the noise", ge=1)
    stride: int = option(1, "pixels between the patches that are averaged into the restored image", ge=1)
    train_stride: Optional[int] = option(None, "pixels between the patches trained on; null: by the image's size", ge=1)
    average: str = option("uniform", "how overlapping patches are weighted: all alike, or by centre", choices=AVERAGES)


@dataclass
class ModelConfig:
    n_latents: Optional[int] = option(None, "H; null: by the data", ge=1)
    hidden: Optional[list[int]] = option(None, "units of each hidden layer, []: linear; null: one of n_latents", ge=1)
    activation: str = option("relu", "of the hidden layers", choices=tuple(ACTIVATIONS))
    pi: Optional[float] = option(None, "prior at the start; null: 1/H", gt=0, lt=1)
    sigma2: Optional[float] = option(
        0.01, "noise variance at the start, in the data's units; null: the data's variance", gt=0
    )
    solver: str = option(
        "adam", "of the decoder: adam by minibatch, or (linear only) exact once an epoch", choices=("adam", "exact")
    )
    impute: bool = option(True, "adam: missing values stand at their posterior mean in the gradient, else are left out")


@dataclass
class StatesConfig:
    n_states: int = option(64, "S: states of each data point", ge=1)
    shared: bool = option(True, "all data points start from the same states, else each from its own")
    memmap: bool = option(False, "states live in a file of the run directory, for more than fit into memory (CPU)")


@dataclass
class EaConfig:
    selection: str = option("fitness", "which states become parents", choices=SELECTIONS)
    n_parents: int = option(5, "parents in a generation", ge=1)
    n_children: int = option(4, "children of each parent", ge=1)
    n_generations: int = option(1, "generations in a visit", ge=1)
    mutation: str = option("uniform", "which latents flip: any, or towards the prior's activity", choices=MUTATIONS)
    n_flips: int = option(1, "latents that flip in a child (sparse: on average)", ge=1)
    crossover: bool = option(False, "one-point crossover before mutation")


@dataclass
class LrConfig:
    kind: str = option(MISSING, "schedule of the learning rate", choices=("cyclic", "decay", "constant"))
    min: float = option(1e-4, "cyclic: lowest rate", gt=0)
    max: float = option(1e-2, "cyclic: highest rate; else the rate at the start", gt=0)
    epochs_per_cycle: Optional[float] = option(20, "cyclic: epochs from lowest to highest and back; null: all", gt=0)
    epochs_to_half: float = option(20, "decay: epochs in which the rate halves", gt=0)


@dataclass
class Config:
    dataset: DatasetConfig = MISSING
    model: ModelConfig = MISSING
    states: StatesConfig = field(default_factory=StatesConfig)
    ea: EaConfig = MISSING
    lr: LrConfig = MISSING
    noise: Optional[float] = option(
        None, "standard deviation of noise added to the image, in grey levels of 0..255", ge=0, lt=math.inf
    )
    missing: Optional[float] = option(None, "fraction of the image's pixels that is dropped", ge=0, lt=1)
    corruption_seed: int = option(0, "of noise and missing pixels; apart from the run's seed", ge=0)
    image: Optional[str] = option(None, "PNG, JPEG or TIFF file to restore, instead of the data set's own picture")
    clean: Optional[str] = option(None, "file with the clean version of `image`, to compare with")
    mask: Optional[str] = option(None, "file of the image's size, nonzero where a pixel is missing")
    data_dir: Optional[str] = option(None, "folder of the named pictures; null: the one in TVAE_DATA_DIR, if any")
    run: Optional[str] = option(None, "denoise and inpaint: run directory to restore from, instead of training")
    epochs: Optional[int] = option(None, "visits of all data points; null: by the data", ge=1)
    batch_size: int = option(32, "data points in a minibatch", ge=1)
    prune: float = option(1e-3, "share of q left out of the M-step, 0: exact", ge=0, lt=1)
    seed: int = option(0, "of weights, initial states and search", ge=0)
    precision: str = option("float32", "of all computation", choices=("float32", "float64"))
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps")
    compile: bool = option(False, "torch.compile what lies behind the decoder's first layer")
    threads: Optional[int] = option(None, "of the CPU; null: one for small models, else all cores", ge=1)
    init_from: Optional[str] = option(None, "run directory whose parameters and states this run starts from")
    restore_every: int = option(10, "epochs between restorations of the image while training", ge=1)
    restore_rounds: int = option(2, "E-steps with fixed parameters before the last restoration", ge=0)
    picture_every: int = option(10, "epochs between pictures of the decoder", ge=1)
    checkpoint_seconds: float = option(30.0, "time between checkpoints, 0: after every epoch", ge=0)
    restart: bool = option(False, "throw away what the run directory holds and start over")


DATASETS: dict[str, type[DatasetConfig]] = {"bars": BarsConfig} | dict.fromkeys(PICTURES, ImageConfig)


def register() -> None:
    """Put the schema where the YAML files find it."""
    store = ConfigStore.instance()
    store.store(group="schema", name="config", node=Config, package="_global_")
    for group, schema in (("dataset", DatasetConfig), ("model", ModelConfig), ("ea", EaConfig), ("lr", LrConfig)):
        store.store(group=f"schema/{group}", name="base", node=schema)
    store.store(group="schema/dataset", name="bars", node=BarsConfig)
    store.store(group="schema/dataset", name="image", node=ImageConfig)


def conf_dir() -> str:
    """The folder of the YAML files: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")


def resolve(cfg: DictConfig) -> Config:
    """The composed configuration as dataclass objects; raises `UserError` with a line for every problem."""
    problems = _take_unknown(cfg := copy.deepcopy(cfg), "")
    missing = [f"{key}: no value was given" for key in sorted(OmegaConf.missing_keys(cfg))]
    if missing:
        raise UserError(*problems, *missing)
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    if isinstance(config.dataset, ImageConfig) and config.image is not None:
        config.dataset.name = "file"
    out_of_range = _out_of_range(config, "")
    named = [line.partition("=")[0] + "=" for line in out_of_range]
    others = inconsistencies(config) + _wrong_image(config)
    problems += out_of_range + [line for line in others if not any(name in line for name in named)]
    problems += device_problems(config.device)
    if problems:
        raise UserError(*problems)
    return config


def read_config(path: Path) -> Config:
    """What an earlier run wrote as its config.yaml."""
    try:
        written = OmegaConf.load(path)
        schema = OmegaConf.structured(Config(dataset=DATASETS[written.dataset.name]()))
        config = OmegaConf.to_object(OmegaConf.merge(schema, written))
    except Exception as error:  # missing, not YAML, or of another version
        raise UserError(f"{path}: not readable as the configuration of a run") from error
    assert isinstance(config, Config)
    return config


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
            problems.append(f"{path}{key}: no such option{did_you_mean(key, known, path)}")
            with open_dict(cfg):
                del cfg[key]
        elif not OmegaConf.is_missing(cfg, key) and isinstance(cfg[key], DictConfig):
            problems += _take_unknown(cfg[key], f"{path}{key}.")
    return problems


def did_you_mean(key: str, known: Sequence[str], path: str = "") -> str:
    close = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {path}{close[0]}?" if close else ""


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
        if "choices" in f.metadata and value not in f.metadata["choices"]:
            problems.append(f"{path}{f.name}={value}: must be one of {', '.join(f.metadata['choices'])}")
        for name, (word, holds) in COMPARISONS.items():
            values = value if isinstance(value, list) else [value]
            if name in f.metadata and not all(v is None or holds(v, f.metadata[name]) for v in values):
                problems.append(f"{path}{f.name}={value}: must be {word} {f.metadata[name]}")
    return problems


def inconsistencies(config: Config) -> list[str]:
    """Values that do not go together; options that are still open (null) go with everything."""
    model, ea, lr, n_states = config.model, config.ea, config.lr, config.states.n_states
    n_latents = math.inf if model.n_latents is None else model.n_latents
    wrong = {
        f"states.n_states={n_states}: model.n_latents={n_latents} has fewer states than that": (
            n_latents < 62 and n_states > 2**n_latents
        ),
        f"ea.n_parents={ea.n_parents}: must be at most states.n_states={n_states}": ea.n_parents > n_states,
        f"ea.n_children={ea.n_children}: must be at most model.n_latents={n_latents}": ea.n_children > n_latents,
        f"ea.n_flips={ea.n_flips}: must be at most model.n_latents={n_latents}": ea.n_flips > n_latents,
        f"lr.min={lr.min}: must be at most lr.max={lr.max}": lr.kind == "cyclic" and lr.min > lr.max,
        "model.solver=exact: needs a linear decoder (model=linear)": model.solver == "exact" and model.hidden != [],
        f"states.memmap=true: needs device=cpu, not {config.device}": (
            config.states.memmap and choose_device(config.device, config.precision).type != "cpu"
        ),
        f"init_from={config.init_from}: no checkpoint.pt there": (
            config.init_from is not None and not (Path(config.init_from) / "checkpoint.pt").is_file()
        ),
    }
    if isinstance(config.dataset, BarsConfig):
        n_bars = 2 * config.dataset.size
        wrong[f"dataset.mean_bars={config.dataset.mean_bars}: must be below the number of bars, {n_bars}"] = (
            config.dataset.mean_bars >= n_bars
        )
    return [problem for problem, is_wrong in wrong.items() if is_wrong]


def _wrong_image(config: Config) -> list[str]:
    """What does not go together in the options about images."""
    dataset = config.dataset
    if not isinstance(dataset, ImageConfig):
        given = [name for name in ("noise", "missing", "image", "clean", "mask") if getattr(config, name) is not None]
        return [f"{name}={getattr(config, name)}: dataset={dataset.name} is no image" for name in given]
    wrong = {
        "image: no value was given; dataset=file needs it": dataset.name == "file" and config.image is None,
        f"clean={config.clean}: goes with image=FILE; {dataset.name} itself is clean": (
            config.clean is not None and config.image is None and dataset.name != "file"
        ),
        f"dataset.stride={dataset.stride}: must be at most dataset.patch_size={dataset.patch_size}": (
            dataset.patch_size is not None and dataset.stride > dataset.patch_size
        ),
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]
