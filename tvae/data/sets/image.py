"""Images as data: a named picture or a file, made noisy or incomplete on request, and cut into patches.

What is corrupted here is known, so that restoration can be judged. A user's file is taken unchanged, and counts as
its own clean picture only if missing pixels or a `corruption` are asked for on top.

The recipe for open options: what an image needs depends on its noise, which is estimated from the image itself and
never told. More noise takes larger patches, hardly any (as in images that are only incomplete) a lower learning rate.
Small images get fewer latents and more epochs, large ones are thinned out for training.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect
from dataclasses import dataclass, replace
from functools import reduce
from typing import Optional

import numpy as np

from tvae.data.corruption import corrupt, corruption_problems
from tvae.data.dataset import DataConfig, DataConfigT, Dataset, DatasetConfig, with_paper_model
from tvae.data.named import read_named
from tvae.data.patch_source import PatchSource
from tvae.data.patches import AVERAGES
from tvae.data.picture import (
    Picture,
    check_content,
    check_missing,
    drop_values,
    read_mask,
    size_of,
)
from tvae.errors import UserError, refuse
from tvae.fields import fill, option
from tvae.io.image_file import Image, without_holes
from tvae.io.stack_file import read_picture
from tvae.model.vae import ModelConfig
from tvae.noise.choice import with_noise_model
from tvae.noise.level import diagonal_details, known_values

log = logging.getLogger(__name__)

PATCHES_MAX = 150_000  # more than that are thinned out for training; restoration takes them all
N_VISITS = 2_500_000  # of data points, in all epochs: 40 epochs of a 256x256 image
# For the nonlocal stage the model's picture is only a pilot, and how good it is hardly matters (docs/quality.md).
N_VISITS_OF_FIRST = {"fast": 15_000, "default": 30_000, "best": 250_000}
STRIDE_OF_FIRST = {"fast": 3, "default": 2, "best": 1}


@dataclass(frozen=True)
class SlabSize:
    """Sizes of the slab model for pictures of some noise, chosen on half A of the pictures (docs/quality.md)."""

    patch_size: int
    patch_size_of_colour: int
    n_latents: int
    rank: int


SLAB_SIZES = (SlabSize(8, 6, 200, 16), SlabSize(8, 6, 200, 12), SlabSize(12, 6, 150, 8))  # below 20, 35, above
# For correlated noise, whose slow part needs large patches, unless the bound asked for much detail (docs/noise.md).
SLAB_OF_SLOW, SLAB_OF_DETAIL, MUCH_DETAIL = SlabSize(12, 8, 60, 16), SlabSize(10, 6, 150, 24), 0.02
# Epochs, and how many of them are thinned: all patches count for the parameters, but the first epochs need only some.
SLAB_EPOCHS = {"train": (25, 0), "fast": (7, 6), "default": (12, 0), "best": (40, 34)}
SLAB_PATCHES_MAX = 600_000  # as PATCHES_MAX
N_LARGE = 100_000  # patches; of more two thirds of the epochs are thinned, but those of `train`
SLAB_CANDIDATES = 40
# Pictures whose known pixels are exact (docs/quality.md). Directions of different latents are told apart by what is
# known of a patch, which is little: one latent is on.
FILLED_SIZE = SlabSize(10, 6, 200, 16)
FILLED_EPOCHS = {"train": (12, 0), "fast": (3, 2), "default": (5, 0), "best": (8, 0)}
FILLED_CANDIDATES = 10
SIGMA_OF_ROUNDING = 12**-0.5  # steps: what whole numbers leave of a picture without noise
N_STEPS_MAX = 4095  # from black to white: of finer ones the sums of squares lose too much in single precision
SIGMA_OF_KNOWN = 2.0  # grey levels of 0..255
SLAB_BATCH = 65_536  # the M-step is exact, once an epoch: minibatches only divide the work
N_PER_LATENT = 100  # patches that a latent needs, on average


def is_slab(model: ModelConfig) -> bool:
    """True if pictures get the slab model: they do, unless another one was chosen."""
    if model.likelihood is not None:
        return model.likelihood == "slab" and not model.hidden
    return model.slab != 0 and model.hidden in (None, []) and model.solver is None


@dataclass
class ImageConfig(DatasetConfig):
    names = ("house", "barbara", "castle", "camera", "file")
    schema = "image"

    name: str = option("", "the picture, or file: the one in `image`", choices=names)
    patch_size: Optional[int] = option(None, "pixels along a side of a patch; null: by the noise", ge=1)
    stride: int = option(1, "pixels between the patches that are averaged into the restored image", ge=1)
    train_stride: Optional[int] = option(None, "pixels between the patches trained on; null: by the image's size", ge=1)
    average: str = option(
        "uniform", "weights of overlapping patches: uniform, or Gaussian around the centre", choices=tuple(AVERAGES)
    )

    def open(self, config: DataConfig) -> Picture:
        """The picture to be restored, and what is known about it."""
        image = _read(config, config.image) if config.image is not None else read_named(self.name, config.data_dir)
        missing = _missing(config, image)
        if config.task == "inpaint":
            check_missing(missing, config.mask or config.image or self.name)
            image = without_holes(image)
        clean, peak = _clean(config, image)
        noisy = corrupt(image.pixels, config, image.peak)
        if missing is not None:
            noisy = np.where(known_values(missing, noisy.shape), noisy, 0)
        check_content(noisy, missing, config.image or self.name)
        return Picture(image, noisy, clean, missing, peak)

    def look(self, config: DataConfig, opened: Picture) -> Picture:
        """The picture with its noise model, and the treatment of that noise."""
        keeps_known = _keeps_known(config) if config.keep_known is None else config.keep_known
        if keeps_known and opened.missing is not None:  # whose known values count as exact
            told = f"sigma={config.sigma}: known pixels stay as they are; keep_known=false denoises them"
            refuse(config.sigma is not None, told)
            return opened
        kind = config.noise_model if config.sigma is None else "gaussian"
        opened = replace(opened, sigma=config.sigma)
        return with_noise_model(opened, kind, config.sigma_map, config.outliers == "fill")

    def complete(self, config: DataConfigT, opened: Picture) -> DataConfigT:
        if is_slab(config.model):
            return self._complete_slab(config, opened)
        sides, seen = (opened.page_height, opened.noisy.shape[1]), opened.seen
        level = diagonal_details(seen.noisy, seen.missing) if config.sigma is None else config.sigma
        noise = level * 255 / seen.grey_range
        by_noise = 12 if noise > 35 else 10 if noise > 20 else 8
        patch_size = self.patch_size or min(by_noise, *sides)
        n_places = math.prod(max(1, side - patch_size + 1) for side in sides) * opened.n_pages
        train_stride = self.train_stride or max(_stride_of_first(config), math.ceil(math.sqrt(n_places / PATCHES_MAX)))
        n_points = n_places / train_stride**2
        n_latents = config.model.n_latents or (256 if n_points > 20_000 else 128 if n_points > 5_000 else 64)
        return replace(
            with_paper_model(config, n_latents, impute=False),
            dataset=replace(self, patch_size=patch_size, train_stride=train_stride),
            lr=fill(config.lr, max=0.005 if noise > 10 else 0.0025),
            epochs=config.epochs or _epochs(config, n_points),
            keep_known=_keeps_known(config) if config.keep_known is None else config.keep_known,
        )

    def _complete_slab(self, config: DataConfigT, opened: Picture) -> DataConfigT:
        """Choose sizes of the slab model by the noise and the picture (docs/quality.md)."""
        sides, seen, model = (opened.page_height, opened.noisy.shape[1]), opened.seen, config.model
        keeps_known = _keeps_known(config) if config.keep_known is None else config.keep_known
        is_exact = keeps_known and opened.known is not None
        told = seen.sigma if config.sigma is None else config.sigma
        if is_exact:
            sigma, size = SIGMA_OF_KNOWN * seen.grey_range / 255, FILLED_SIZE
        else:
            sigma = seen.noise if told is None else told
            sigma = max(sigma, SIGMA_OF_ROUNDING * _step(seen)) if told is None else sigma
            size = SLAB_SIZES[bisect([20, 35], sigma * 255 / seen.grey_range)]
            if seen.covariance is not None:
                size = SLAB_OF_DETAIL if seen.covariance.detail > MUCH_DETAIL else SLAB_OF_SLOW
        is_colour = opened.noisy.shape[2] > 1
        patch_size = self.patch_size or min(size.patch_size_of_colour if is_colour else size.patch_size, *sides)
        n_places = math.prod(max(1, side - patch_size + 1) for side in sides) * opened.n_pages
        kind = "train" if config.restoration.method == "posterior_mean" else config.effort
        n_most = PATCHES_MAX if is_exact else SLAB_PATCHES_MAX
        train_stride = self.train_stride or math.ceil(math.sqrt(n_places / n_most))
        epochs, n_thinned = (FILLED_EPOCHS if is_exact else SLAB_EPOCHS)[kind]
        if n_places / train_stride**2 > N_LARGE and kind != "train":
            n_thinned = max(n_thinned, 2 * epochs // 3)
        epochs = config.epochs or epochs
        n_thinned = min(n_thinned, epochs - 1) if config.n_thinned is None else config.n_thinned
        least = max(2, math.ceil(math.log2(config.states.n_states or 1)))
        n_latents = model.n_latents or max(least, min(size.n_latents, round(n_places / train_stride**2 / N_PER_LATENT)))
        rank = max(1, min(size.rank, patch_size**2 * opened.noisy.shape[2] - 1))
        return replace(
            config,
            dataset=replace(self, patch_size=patch_size, train_stride=train_stride),
            model=fill(
                replace(model, n_latents=n_latents), likelihood="slab", slab=rank, prior="local", solver="exact",
                hidden=[], sigma2=sigma**2, fixed_sigma2=config.sigma is not None or seen.covariance is not None,
                capped_sigma2=told is model.sigma2 is None and not is_exact, impute=False,
            ),
            states=fill(config.states, n_states=max(min(8, n_latents), config.ea.n_parents or 1)),
            ea=fill(
                config.ea, selection="best", mutation="residual", n_parents=1, n_children=min(4, n_latents),
                n_candidates=min(FILLED_CANDIDATES if is_exact else SLAB_CANDIDATES, n_latents),
                most_on=1 if is_exact or seen.covariance is not None else 2,
            ),
            lr=fill(config.lr, max=0.005),
            batch_size=config.batch_size or SLAB_BATCH,
            epochs=epochs,
            n_thinned=n_thinned,
            keep_known=keeps_known,
        )  # fmt: skip

    def make(self, config: DataConfig, opened: Picture) -> Dataset:
        """All patches at `train_stride`, and the picture they are from."""
        size, stride = self.patch_size, self.train_stride
        assert size is not None
        assert stride is not None
        _, width, n_channels = opened.noisy.shape
        if size > min(opened.page_height, width):
            raise UserError(
                f"{config.image or self.name}: {size_of(opened.image)} pixels are smaller than a patch of "
                f"{size}x{size} (dataset.patch_size)"
            )
        return Dataset(PatchSource(opened.seen, size, stride), (size, size, n_channels), picture=opened)

    def problems(self, config: DataConfig) -> list[str]:
        wrong = {
            "image: no value was given; dataset=file needs it": self.name == "file" and config.image is None,
            f"axes={config.axes}: goes with image=FILE": config.axes is not None and config.image is None,
            f"pages={config.pages}: goes with image=FILE": config.pages is not None and config.image is None,
            f"sigma={config.sigma}: is of white noise; it does not go with sigma_map": (
                config.sigma is not None and config.sigma_map is not None
            ),
            f"sigma={config.sigma}: is of white noise; it does not go with noise_model={config.noise_model}": (
                config.sigma is not None and config.noise_model not in ("auto", "gaussian")
            ),
            f"missing_per={config.missing_per}: goes with missing=FRACTION": (
                config.missing_per != "pixel" and config.missing is None
            ),
            f"clean={config.clean}: goes with image=FILE; {self.name} itself is clean": (
                config.clean is not None and config.image is None and self.name != "file"
            ),
            f"dataset.stride={self.stride}: must be at most dataset.patch_size={self.patch_size}": (
                self.patch_size is not None and self.stride > self.patch_size
            ),
        }
        return (
            super().problems(config)
            + corruption_problems(config)
            + [problem for problem, is_wrong in wrong.items() if is_wrong]
        )


def _step(picture: Picture) -> float:
    """The least difference between values that counts: of 255 in a range, or of more in integers of more bits."""
    is_deep = picture.image.dtype.kind in "iu" and picture.image.dtype.itemsize > 1
    n_steps = min(max(picture.grey_range, 255), N_STEPS_MAX) if is_deep else 255
    return picture.grey_range / n_steps


def _epochs(config: DataConfig, n_points: float) -> int:
    if config.restoration.method == "posterior_mean":
        return round(min(max(N_VISITS / n_points, 15), 200))
    return round(min(max(N_VISITS_OF_FIRST[config.effort] / n_points, 2), 200))


def _stride_of_first(config: DataConfig) -> int:
    return 1 if config.restoration.method == "posterior_mean" else STRIDE_OF_FIRST[config.effort]


def _keeps_known(config: DataConfig) -> bool:
    return config.noise is None and config.corruption == "none" and config.task != "denoise"


def _read(config: DataConfig, path: str) -> Image:
    return read_picture(path, config.axes, config.pages)


def _missing(config: DataConfig, image: Image) -> np.ndarray | None:
    """(H, W) bool: pixels that are NaN in the file, marked in the mask, or dropped; None: there are none.

    To fill in a picture is also to fill in what is transparent; to denoise it is not. (H, W, C) where each channel's
    values are dropped.
    """
    is_by_channel = config.missing_per == "channel" and config.missing is not None and image.pixels.shape[2] > 1
    shape = image.pixels.shape if is_by_channel else image.pixels.shape[:2]
    masks = [] if image.missing is None else [image.missing]
    holes = image.holes()
    if holes is not None and config.task == "inpaint":
        log.info("%d pixels are transparent: they count as missing, and will be opaque", holes.sum())
        masks.append(holes)
    elif holes is not None:
        log.info("%d pixels are transparent: they are treated as any others, and stay transparent", holes.sum())
    if config.mask is not None:
        masks.append(read_mask(config.mask, image))
    if is_by_channel:
        masks = [mask[..., None] for mask in masks]
    if config.missing is not None:
        masks.append(drop_values(shape, config.missing, config.corruption_seed))
    missing = reduce(np.logical_or, masks, np.zeros(1, dtype=bool))
    return missing if missing.any() else None


def _clean(config: DataConfig, image: Image) -> tuple[np.ndarray | None, float]:
    """The clean picture in the units of `image`, if it is known, and the peak for comparing with it."""
    if config.clean is not None:
        clean = _read(config, config.clean)
        if clean.n_channels == image.n_channels > clean.pixels.shape[2]:  # a clean one without colours
            clean = replace(clean, pixels=np.repeat(clean.pixels, image.pixels.shape[2], axis=2), n_equal=image.n_equal)
        if clean.pixels.shape != image.pixels.shape:
            raise UserError(f"{config.clean}: {size_of(clean)} pixels, but the image has {size_of(image)}")
        if clean.missing is not None:
            raise UserError(f"{config.clean}: has missing pixels (NaN), so nothing can be compared with it")
        if image.dtype == clean.dtype and image.is_bounded and clean.is_bounded:
            return clean.pixels, max(image.peak, clean.peak)  # one of them may use more bits than the other
        if image.is_bounded and clean.is_bounded:
            return clean.pixels * (image.peak / clean.peak), image.peak
        return clean.pixels, clean.peak if clean.is_bounded else image.peak
    if config.image is None:
        return image.pixels, image.peak
    is_corrupted_here = config.corruption != "none" or any(v is not None for v in (config.noise, config.missing))
    is_whole = image.missing is None and config.mask is None
    return image.pixels if is_corrupted_here and is_whole else None, image.peak
