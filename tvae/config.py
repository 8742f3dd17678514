"""Every option there is, with its meaning, unit and range: the schema that the YAML files under `conf/` extend."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from tvae.decoder import ACTIVATIONS
from tvae.evolution import MUTATIONS, SELECTIONS
from tvae.patches import AVERAGES

EXACT_LATENTS_MAX = 20  # 2^20 states of a data point are as many as can be listed


class UserError(ValueError):
    """A mistake in what the user gave: one line for each problem, exit code 2."""

    def __init__(self, *problems: str):
        super().__init__("\n".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.problems


def refuse(is_wrong: bool, problem: str) -> None:
    """Raise `UserError` if it is."""
    if is_wrong:
        raise UserError(problem)


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


NATURAL = ("vanhateren", "natural")


@dataclass
class NaturalConfig(DatasetConfig):
    name: str = option("vanhateren", "whose images: van Hateren's, or those of scikit-image", choices=NATURAL)
    images: Optional[list[str]] = option(None, "names of the images; null: all there are")
    patch_size: int = option(16, "pixels along a side of a patch", ge=2)
    n_test: Optional[int] = option(None, "held-out patches, on which nothing is learned; null: n_patches / 10", ge=0)
    clamp: float = option(0.02, "share of an image's pixels, the brightest, that are clamped", ge=0, lt=1)
    flat: float = option(0.0, "share of the patches drawn, the flattest, that are left out", ge=0, le=0.9)
    equalise: bool = option(True, "divide a patch by the root of its variance, plus a tenth of the mean one")
    retained: float = option(0.95, "share of the variance in the directions that are whitened fully", gt=0, le=1)
    seed: int = option(0, "of the positions; apart from the run's seed, so that runs see the same data", ge=0)


@dataclass
class ArrayConfig(DatasetConfig):
    name: str = option("array", "a NumPy file", choices=("array",))
    file: Optional[str] = option(None, "the file, .npy: (N, D), (N, height, width) or (N, height, width, channels)")


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
    max: Optional[float] = option(
        1e-2, "cyclic: highest rate; else the rate at the start; null: by the image's noise", gt=0
    )
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
    n_patches: Optional[int] = option(None, "patches of natural images to train on; null: 100,000", ge=1)
    image: Optional[str] = option(None, "PNG, JPEG or TIFF file to restore, instead of the data set's own picture")
    clean: Optional[str] = option(None, "file with the clean version of `image`, to compare with")
    mask: Optional[str] = option(None, "file of the image's size, nonzero where a pixel is missing")
    data_dir: Optional[str] = option(None, "folder of the images that go by a name; null: TVAE_DATA_DIR")
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


DATASETS: dict[str, type[DatasetConfig]] = {
    "bars": BarsConfig,
    "array": ArrayConfig,
    **dict.fromkeys(NATURAL, NaturalConfig),
    **dict.fromkeys(PICTURES, ImageConfig),
}


def register() -> None:
    """Put the schema where the YAML files find it."""
    store = ConfigStore.instance()
    store.store(group="schema", name="config", node=Config, package="_global_")
    for group, schema in (("dataset", DatasetConfig), ("model", ModelConfig), ("ea", EaConfig), ("lr", LrConfig)):
        store.store(group=f"schema/{group}", name="base", node=schema)
    store.store(group="schema/dataset", name="bars", node=BarsConfig)
    store.store(group="schema/dataset", name="natural", node=NaturalConfig)
    store.store(group="schema/dataset", name="array", node=ArrayConfig)
    store.store(group="schema/dataset", name="image", node=ImageConfig)


def conf_dir() -> str:
    """The folder of the YAML files: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "conf"
    return str(installed if installed.is_dir() else package.parent / "conf")
