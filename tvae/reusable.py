"""A model for repeated use as Python calls: trained on one image, it restores any number of others.

model = tvae.fit(frames[0])
restored = [model.restore(frame) for frame in frames]
model.save("frames.tvae")
again = tvae.load("frames.tvae").restore(frames[1])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from tvae.arguments import ImageT, compose_options, opened, restored_constant, seed_of
from tvae.data.picture import check_content
from tvae.runs.trained import Trained


class Model:
    """A trained model, as `tvae.fit` and `tvae.load` return it."""

    def __init__(self, trained: Trained):
        self._trained = trained

    def __repr__(self) -> str:
        elbo = "" if self.elbo is None else f", ELBO {self.elbo:.4f}"
        return f"<tvae.Model: {self._trained.about()}{elbo}, sigma {self.sigma:.4g}>"

    @property
    def elbo(self) -> float | None:
        """The ELBO of the training data in nats per patch; None for a model from a file without it."""
        return self._trained.report.get("elbo")

    @property
    def sigma(self) -> float:
        """The noise's standard deviation as learned, in the image's units."""
        return self._trained.model.likelihood.sigma(self._trained.units)

    @property
    def history(self) -> list[dict[str, Any]]:
        """A row for each epoch, as history.csv has them."""
        return list(self._trained.report.get("history", ()))

    @property
    def noise_model(self) -> dict[str, Any] | None:
        """The noise of the image trained on, as it was judged, as metrics.json has it; None: there is none."""
        return self._trained.report.get("noise_model")

    @overload
    def restore(
        self,
        image: ImageT,
        *,
        channel_axis: int | None = None,
        axes: str | None = None,
        return_uncertainty: Literal[False] = False,
    ) -> ImageT: ...

    @overload
    def restore(
        self,
        image: ImageT,
        *,
        channel_axis: int | None = None,
        axes: str | None = None,
        return_uncertainty: Literal[True],
    ) -> tuple[ImageT, NDArray[np.float64]]: ...

    def restore(
        self,
        image: ImageT,
        *,
        channel_axis: int | None = None,
        axes: str | None = None,
        return_uncertainty: bool = False,
    ) -> ImageT | tuple[ImageT, NDArray[np.float64]]:
        """Denoise an image of the kind that was trained on, of any size; the rest is as in `tvae.denoise`."""
        picture, back = opened(image, None, channel_axis, axes)
        constant = restored_constant(picture)
        if constant is None:
            check_content(picture.noisy, picture.missing, "the image")
        return back(constant or self._trained.restore(picture), return_uncertainty)

    def save(self, path: str | Path) -> None:
        """Write it to a file, which holds numbers and options only: to load it cannot run code."""
        self._trained.save(Path(path))


def fit(
    image: Any,
    *,
    channel_axis: int | None = None,
    axes: str | None = None,
    rng: int | np.random.Generator | None = 0,
    overrides: Sequence[str] = (),
    **options: Any,
) -> Model:
    """Train on an image or a stack, for `Model.restore`; arguments as of `tvae.denoise`."""
    picture, _ = opened(image, None, channel_axis, axes)
    check_content(picture.noisy, picture.missing, "the image")
    config = compose_options(overrides, options)
    config.task, config.seed = "denoise", seed_of(rng)
    return Model(Trained.on(config, picture))


def load(path: str | Path) -> Model:
    """Read a model that `Model.save` wrote."""
    return Model(Trained.load(Path(path)))
