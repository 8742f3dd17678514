"""Whitened patches of natural images: van Hateren's, or the pictures that come with scikit-image.

Images are read one at a time (`natural_images`) and cut into patches (`natural_patches`). What is made is kept in the
download cache, under a hash of all that went into it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch

from tvae.data.dataset import DataConfig, DataConfigT, Dataset, DatasetConfig, with_paper_model
from tvae.data.named import cache_dir
from tvae.data.natural_images import embedded, vanhateren
from tvae.data.natural_patches import Cutting, Patches, make_patches
from tvae.data.whitening import Whitening
from tvae.fields import fill, option
from tvae.io.atomic import atomic_file
from tvae.training.points import InMemory

log = logging.getLogger(__name__)

N_PATCHES = 100_000  # as in the paper
CACHE_FORMAT = 2


@dataclass
class NaturalConfig(Cutting, DatasetConfig):
    names = ("vanhateren", "natural")
    schema = "natural"

    name: str = option("vanhateren", "whose images: van Hateren's, or those of scikit-image", choices=names)
    images: Optional[list[str]] = option(None, "names of the images; null: all there are")
    n_test: Optional[int] = option(None, "held-out patches, on which nothing is learned; null: n_patches / 10", ge=0)

    def complete(self, config: DataConfigT, opened: Any) -> DataConfigT:
        n_patches, n_latents = config.n_patches or N_PATCHES, config.model.n_latents or 300
        if n_patches < n_latents:
            log.warning("n_patches=%d: too few to learn model.n_latents=%d", n_patches, n_latents)
        return replace(
            with_paper_model(config, n_latents, impute=True),
            dataset=replace(self, n_test=n_patches // 10 if self.n_test is None else self.n_test),
            lr=fill(config.lr, max=0.002),  # with 0.01 a deep decoder lost what the linear one had learned
            epochs=config.epochs or 100,
            n_patches=n_patches,
        )

    def make(self, config: DataConfig, opened: Any) -> Dataset:
        n_patches = config.n_patches
        assert n_patches is not None
        assert self.n_test is not None
        images = embedded(self.images) if self.name == "natural" else vanhateren(self.images, config.data_dir)
        options = {k: v for k, v in asdict(self).items() if k not in ("name", "images", "standardise")}
        made_of = {
            "format": CACHE_FORMAT,
            "options": options,
            "n_patches": n_patches,
            "sources": [(image.name, image.state) for image in images],
        }
        key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
        path = cache_dir() / "patches" / f"{key}.npz"
        patches = read_cache(path)
        if patches is None:
            log.info("cutting %d patches from %d images", n_patches + self.n_test, len(images))
            patches = make_patches(images, self, n_patches, self.n_test)
            write_cache(path, patches)
        return Dataset(
            InMemory(torch.from_numpy(patches.train)),
            (self.patch_size, self.patch_size),
            held_out=InMemory(torch.from_numpy(patches.test)) if len(patches.test) else None,
            whitening=patches.whitening,
            made_of=patches.made_of,
        )


def read_cache(path: Path) -> Patches | None:
    """Read the cache; None if it is not there or damaged (the archive's checksums cover every byte)."""
    try:
        with np.load(path, allow_pickle=False) as content:
            whitening = Whitening(*(content[name] for name in ("mean", "matrix", "inverse", "directions")))
            return Patches(content["train"], content["test"], whitening, str(content["made_of"]))
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged archive raises almost anything
        log.warning("%s: damaged (%s); it is made anew", path, type(error).__name__)
        return None


def write_cache(path: Path, patches: Patches) -> None:
    mine = path.with_suffix(f".{os.getpid()}.npz")  # another run may be making the same
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(mine) as file:
            np.savez(file, train=patches.train, test=patches.test, made_of=patches.made_of, **vars(patches.whitening))
        os.replace(mine, path)
    except OSError as error:
        log.warning("%s: cannot be written (%s); the patches will be made anew the next time", path, error.strerror)
