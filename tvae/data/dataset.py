"""A data set: its options, and what a run trains on.

Each data set is a module of `tvae.data.sets` with a subclass of `DatasetConfig`: its options, how it fills in those
that were left open, and how its data are made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Optional, TypeVar

import torch

from tvae.data.picture import Picture, hash_of, scale_problem
from tvae.data.whitening import Whitening
from tvae.errors import UserError
from tvae.fields import fill, option
from tvae.inference.states import all_states
from tvae.model.units import Units
from tvae.model.vae import Model, log_likelihood
from tvae.noise.model import KINDS as NOISE_KINDS
from tvae.training.points import Source
from tvae.training.trainer import FitConfig

TASKS = ("train", "denoise", "inpaint")
EFFORTS = ("fast", "default", "best")
RESTORATIONS = ("posterior_mean", "nonlocal")  # the model alone, and the second stages
SEARCH = {"selection": "posterior", "n_parents": 10, "n_children": 6, "mutation": "uniform"}  # docs/quality.md
# Messages about options that are only for data sets of this schema, where another one is used.
NOT_FOR = {"image": "dataset={} is not an image", "natural": "is for patches of natural images, not for dataset={}"}


@dataclass(frozen=True)
class Dataset:
    """Training data of a run, in their own units, and how to show them."""

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

    @torch.no_grad()
    def facts(self, config: DataConfig) -> dict[str, float]:
        """Values of metrics.json that are known of the true model behind the data."""
        if self.picture is not None and config.noise is not None and config.corruption not in ("poisson", "jpeg"):
            return {"sigma_true": config.noise * self.picture.image.peak / 255}
        if self.truth is None:
            return {}
        truth = self.truth
        everything = self.source.reader(range(self.source.n_points), Units(), truth.pi.device, truth.pi.dtype)
        x, observed = everything.take(torch.arange(self.source.n_points))
        z = all_states(truth.n_latents).to(truth.pi.dtype)
        exact = log_likelihood(truth, x, z, observed).mean().item()
        return {"log_likelihood_true": exact, "sigma_true": truth.likelihood.sigma(Units())}

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
    schema: ClassVar[str] = "base"  # what its YAML files extend, and options with `only_for` name

    name: str = option("", "the data set")
    standardise: bool = option(False, "train on (x - mean) / std; everything reported stays in the data's own units")

    def open(self, config: DataConfig) -> Any:
        """Read, once, whatever the choice of options depends on; it is handed to `complete` and `make`."""

    def look(self, config: DataConfig, opened: Any) -> Any:
        """Data that were read, or are in memory, with findings about them."""
        return opened

    def complete(self, config: DataConfigT, opened: Any) -> DataConfigT:
        """A copy of the configuration in which options that this data set decides are no longer open (None)."""
        raise NotImplementedError

    def make(self, config: DataConfig, opened: Any) -> Dataset:
        raise NotImplementedError

    def recovered(self, model: Model) -> dict[str, int]:
        """Values of metrics.json that say how much of the truth a trained model has found."""
        return {}

    @property
    def is_image(self) -> bool:
        return self.schema == "image"

    def problems(self, config: DataConfig) -> list[str]:
        """Mistakes in the options, a line each."""
        foreign = [f for f in fields(DataConfig) if f.metadata.get("only_for", self.schema) != self.schema]
        given = [(f, getattr(config, f.name)) for f in foreign if getattr(config, f.name) != f.default]
        method = config.restoration.method
        return [f"{f.name}={value}: {NOT_FOR[f.metadata['only_for']].format(self.name)}" for f, value in given] + [
            f"restoration={method}: dataset={self.name} is not an image"
        ] * (config.restoration.has_second_stage and not self.is_image)


@dataclass
class RestorationConfig:
    """Options of the restoration of a picture by a trained model."""

    method: Optional[str] = option(
        None, "posterior_mean: the model alone; nonlocal: a second stage of patch Gaussians and NL-Ridge on top of it; "
        "null: the former in train, the latter in denoise and inpaint", choices=RESTORATIONS,
    )  # fmt: skip
    n_rounds: int = option(2, "posterior_mean: E-steps with fixed parameters before the last restoration", ge=0)
    keep_unexplained: Optional[bool] = option(
        None, "put back what the noise does not explain (stars, thin lines); null: not in train"
    )

    @property
    def has_second_stage(self) -> bool:
        """True if the model's picture is refined, see `restoration.second_stage`."""
        return self.method not in (None, RESTORATIONS[0])


picture_option = partial(option, only_for="image")
input_option = partial(picture_option, of_data=True, for_arrays=False)  # of a picture that is read or made here


@dataclass
class PictureConfig:
    """Options of pictures: how one is made noisy or incomplete, which one it is, and how it is restored."""

    noise: Optional[float] = input_option(
        None, "standard deviation of noise added to the image, in grey levels of 0..255", ge=0, lt=math.inf
    )
    missing: Optional[float] = input_option(None, "fraction of the image's pixels that is dropped", ge=0, lt=1)
    missing_per: str = input_option(
        "pixel", "what is dropped: whole pixels, or each channel's values", choices=("pixel", "channel")
    )
    corruption: str = input_option(
        "none", "benchmark made of the image: white noise, photon counts, correlated noise, salt and pepper, JPEG",
        choices=("none", "gaussian", "poisson", "correlated", "saltpepper", "jpeg"),
    )  # fmt: skip
    peak: Optional[float] = input_option(None, "poisson: photons where the image is white", gt=0, lt=math.inf)
    correlation: float = input_option(1.0, "correlated: deviation in pixels of the blur of the noise", gt=0, le=16)
    outlier_share: Optional[float] = input_option(None, "saltpepper: fraction of the values", ge=0, lt=1)
    quality: Optional[int] = input_option(None, "jpeg: quality of the file", ge=1, le=95)
    corruption_seed: int = input_option(0, "seed of noise and missing pixels, apart from the run's seed", ge=0)
    keep_known: Optional[bool] = picture_option(
        None, "keep known pixels of an incomplete image; null: unless noise was added, and never in denoise"
    )
    noise_model: str = picture_option(
        "auto", "kind of noise; auto: chosen by the bound", choices=("auto", *NOISE_KINDS), of_data=True
    )
    outliers: str = picture_option(
        "keep", "isolated pixels that look like salt and pepper or hot pixels: keep or fill them",
        choices=("keep", "fill"), of_data=True,
    )  # fmt: skip
    sigma: Optional[float] = picture_option(
        None, "standard deviation of the noise that the image has, in the image's own units (8 bit: of 0..255), where "
        "it is known; null: estimated", gt=0, lt=math.inf, of_data=True,
    )  # fmt: skip
    sigma_map: Optional[str] = picture_option(
        None, "file of the image's size: the noise's standard deviation at every pixel", is_path=True, of_data=True
    )
    effort: str = picture_option(
        "default", "how long an image may take, by choice of the open options", choices=EFFORTS
    )
    image: Optional[str] = input_option(
        None, "picture or stack to restore, or folder or pattern of many, instead of the data set's own picture",
        is_path=True,
    )  # fmt: skip
    axes: Optional[str] = input_option(
        None, "axes of an array or stack, as in TYX, TYXC or CYX; null: as the file says", has_commas=True
    )
    pages: Optional[str] = input_option(
        None, "pages of a stack to restore, as in 0,5,7 or 0-9; null: all", has_commas=True
    )
    clean: Optional[str] = picture_option(
        None, "file with the clean version of `image`, to compare with", is_path=True, beside_image=True,
        for_arrays=False,
    )  # fmt: skip
    mask: Optional[str] = input_option(
        None, "file of the image's size, nonzero where a pixel is missing", is_path=True, beside_image=True
    )


@dataclass
class DataConfig(PictureConfig, FitConfig):
    """Training, and what is trained on."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    restoration: RestorationConfig = field(default_factory=RestorationConfig)
    task: str = option("train", "the command; every command sets its own", choices=TASKS, for_arrays=False)
    n_patches: Optional[int] = option(
        None, "patches of natural images to train on; null: 100,000", ge=1, only_for="natural", of_data=True,
        for_arrays=False,
    )  # fmt: skip
    data_dir: Optional[str] = option(
        None, "folder of the images that go by a name; null: TVAE_DATA_DIR", changes_result=False, is_path=True,
        for_arrays=False,
    )  # fmt: skip


DataConfigT = TypeVar("DataConfigT", bound=DataConfig)


def with_paper_model(config: DataConfigT, n_latents: int, **of_model: Any) -> DataConfigT:
    """Fill in the open options of model, states and search: the paper's model, and what suits real data.

    A slab model that was chosen has one direction for each latent, as in spike-and-slab sparse coding; a linear one
    has its exact M-step and search (docs/quality.md).
    """
    model, is_slab = config.model, config.model.likelihood == "slab"
    solves = is_slab and model.hidden == []
    search = {"selection": "best", "n_parents": 1, "n_children": min(4, n_latents), "mutation": "residual"}
    ea = fill(config.ea, **(search if solves else SEARCH))
    return replace(
        config,
        model=fill(
            model, n_latents=n_latents, likelihood="gaussian", prior="bernoulli", slab=int(is_slab),
            solver="exact" if solves else "adam", fixed_sigma2=False, capped_sigma2=False, **of_model,
        ),
        states=fill(config.states, n_states=64),
        ea=fill(ea, most_on=2) if ea.mutation == "residual" else ea,
    )  # fmt: skip
