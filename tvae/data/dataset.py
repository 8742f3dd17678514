"""A data set: its options, and what a run trains on.

Each data set is a module of `tvae.data.sets` with a subclass of `DatasetConfig`: its options, how it fills in those
that were left open, and how its data are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional, TypeVar

import torch

from tvae.data.picture import Picture, hash_of, scale_problem
from tvae.data.whitening import Whitening
from tvae.errors import UserError
from tvae.fields import option
from tvae.model.vae import Model
from tvae.noise.diagnosis import KINDS as NOISE_KINDS
from tvae.training.source import Source
from tvae.training.trainer import FitConfig

TASKS = ("train", "denoise", "inpaint")
EFFORTS = ("fast", "default", "best")
RESTORATIONS = ("posterior_mean", "nonlocal")


@dataclass(frozen=True)
class Dataset:
    """What a run trains on, in the data's own units, and how to show it."""

    source: Source
    shape: tuple[int, ...]  # of one data point as a picture
    truth: Model | None = None  # the generating parameters, where they are known
    picture: Picture | None = None  # the image the data are patches of
    held_out: Source | None = None  # data that nothing is learned from
    whitening: Whitening | None = None  # what was done to the data, to show them as they were
    made_of: str | None = None  # a hash of what the data were made from, where they themselves may differ by rounding

    def fingerprint(self) -> str:
        """A hash of what is trained on, so that a run notices when a file has changed under its name."""
        if self.made_of is not None:
            return self.made_of
        return hash_of([self.source.known_values()]) if self.picture is None else self.picture.fingerprint()

    def check(self, name: str) -> Dataset:
        """Itself, or `UserError` if there are values that nothing can be learned from."""
        values = self.source.known_values()
        if not torch.isfinite(values).all():
            raise UserError(f"dataset={name}: the data hold NaN or infinite values")
        problem = scale_problem(values.min().item(), values.max().item()) if values.min() < values.max() else None
        if problem is not None:
            raise UserError(f"dataset={name}: {problem}")
        return self


@dataclass
class DatasetConfig:
    """Options of a data set, and what it does with them."""

    names: ClassVar[tuple[str, ...]] = ()  # what `dataset=` calls it
    schema: ClassVar[str] = "base"  # what its YAML files extend
    takes: ClassVar[tuple[str, ...]] = ()  # options of `DataConfig` that mean something to it

    name: str = option("", "the data set")
    standardise: bool = option(False, "train on (x - mean) / std; everything reported stays in the data's own units")

    def open(self, config: DataConfig) -> Any:
        """What has to be read before options can be chosen; it is handed to `complete` and `make`, and read once."""

    def look(self, config: DataConfig, opened: Any) -> Any:
        """What was read, or was in memory, together with what can be found out about it."""
        return opened

    def complete(self, config: DataConfigT, opened: Any) -> DataConfigT:
        """A copy of the configuration in which options that this data set decides are no longer open (None)."""
        raise NotImplementedError

    def make(self, config: DataConfig, opened: Any) -> Dataset:
        raise NotImplementedError

    def problems(self, config: DataConfig) -> list[str]:
        """What is wrong with the options, a line each."""
        method, is_image = config.restoration.method, "image" in self.takes
        given = {name: getattr(config, name) for name in ONLY_FOR_SOME if name not in self.takes}
        return [
            f"{name}={value}: {ONLY_FOR_SOME[name].format(self.name)}"
            for name, value in given.items()
            if value != getattr(DataConfig, name)
        ] + [f"restoration={method}: dataset={self.name} is no image"] * (method == "nonlocal" and not is_image)


@dataclass
class RestorationConfig:
    """How a trained model becomes a picture."""

    method: Optional[str] = option(
        None, "posterior_mean: the model alone; nonlocal: a second stage of patch Gaussians and NL-Ridge on top of it; "
        "null: the former in train, the latter in denoise and inpaint", choices=RESTORATIONS,
    )  # fmt: skip
    n_rounds: int = option(2, "posterior_mean: E-steps with fixed parameters before the last restoration", ge=0)
    keep_unexplained: Optional[bool] = option(
        None, "put back what the noise does not explain (stars, thin lines); null: not in train"
    )


@dataclass
class DataConfig(FitConfig):
    """Training, and what is trained on."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    restoration: RestorationConfig = field(default_factory=RestorationConfig)
    noise: Optional[float] = option(
        None, "standard deviation of noise added to the image, in grey levels of 0..255", ge=0, lt=math.inf
    )
    missing: Optional[float] = option(None, "fraction of the image's pixels that is dropped", ge=0, lt=1)
    missing_per: str = option(
        "pixel", "what is dropped: whole pixels, or each channel's values", choices=("pixel", "channel")
    )
    corruption: str = option(
        "none",
        "of the image, for a benchmark: white noise, photon counts, correlated noise, salt and pepper, JPEG",
        choices=("none", "gaussian", "poisson", "correlated", "saltpepper", "jpeg"),
    )
    peak: Optional[float] = option(None, "poisson: photons where the image is white", gt=0, lt=math.inf)
    correlation: float = option(1.0, "correlated: pixels that the noise is blurred by", gt=0, le=16)
    outlier_share: Optional[float] = option(None, "saltpepper: fraction of the values", ge=0, lt=1)
    quality: Optional[int] = option(None, "jpeg: of the file", ge=1, le=95)
    task: str = option("train", "what was asked for; every command sets its own", choices=TASKS)
    keep_known: Optional[bool] = option(
        None, "known pixels of an incomplete image stay as they are; null: unless noise was added, never in denoise"
    )
    noise_model: str = option("auto", "of what kind the noise is; auto: found out", choices=("auto", *NOISE_KINDS))
    outliers: str = option(
        "keep", "isolated pixels that look like salt and pepper or hot ones: stay, or are filled in",
        choices=("keep", "fill"),
    )  # fmt: skip
    sigma: Optional[float] = option(
        None, "standard deviation of the noise that the image has, in the image's own units (8 bit: of 0..255), where "
        "it is known; null: found out", gt=0, lt=math.inf,
    )  # fmt: skip
    sigma_map: Optional[str] = option(None, "file of the image's size: the noise's standard deviation at every pixel")
    effort: str = option("default", "how long an image may take, by choice of the open options", choices=EFFORTS)
    corruption_seed: int = option(0, "of noise and missing pixels; apart from the run's seed", ge=0)
    n_patches: Optional[int] = option(None, "patches of natural images to train on; null: 100,000", ge=1)
    image: Optional[str] = option(
        None,
        "picture or stack to restore, or folder or pattern of many, instead of the data set's own picture",
    )
    axes: Optional[str] = option(None, "of an array or stack, as in TYX, TYXC or CYX; null: as the file says")
    pages: Optional[str] = option(None, "of a stack to restore, as in 0,5,7 or 0-9; null: all")
    clean: Optional[str] = option(None, "file with the clean version of `image`, to compare with")
    mask: Optional[str] = option(None, "file of the image's size, nonzero where a pixel is missing")
    data_dir: Optional[str] = option(
        None, "folder of the images that go by a name; null: TVAE_DATA_DIR", changes_result=False
    )


DataConfigT = TypeVar("DataConfigT", bound=DataConfig)

# Options that only some data sets take, and what to say where one does not.
ONLY_FOR_SOME = {
    "n_patches": "is for patches of natural images, not for dataset={}",
    **dict.fromkeys(
        (
            *("noise", "missing", "missing_per", "corruption", "peak", "correlation", "outlier_share", "quality"),
            *(
                "noise_model",
                "outliers",
                "sigma",
                "sigma_map",
                "image",
                "axes",
                "pages",
                "clean",
                "mask",
                "keep_known",
                "effort",
            ),
        ),
        "dataset={} is no image",
    ),
}
