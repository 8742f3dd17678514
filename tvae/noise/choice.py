"""A picture together with what its noise is, and what is to be done about it before it is restored."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from tvae.data.picture import Picture, size_of
from tvae.errors import UserError, refuse
from tvae.io.image_file import read_image
from tvae.noise.diagnosis import diagnose
from tvae.noise.stabilise import Scaling
from tvae.noise.treatment import Treatment, treatment_for

log = logging.getLogger(__name__)


def with_noise_model(picture: Picture, kind: str, sigma_map: str | None, fills_outliers: bool = False) -> Picture:
    """Add what the noise is and how it is treated.

    `kind`: auto, or what the user says it is; `sigma_map`: file of the noise's deviation at every pixel.
    """
    model = diagnose(picture.noisy, picture.known, picture.grey_range)
    if model is not None:
        log.info("noise: %s", model)
        if model.outliers is not None and not fills_outliers:
            log.info(
                "%d pixels look like salt and pepper or hot pixels and are kept; outliers=fill fills them in",
                model.outliers.any(-1).sum(),
            )
    if sigma_map is not None:
        sigma = read_sigma(sigma_map, picture)
        scaled = picture.noisy / sigma
        known = scaled if picture.known is None else scaled[picture.known]
        refuse(bool(known.min() == known.max()), f"{sigma_map}: divided by it, the picture is the same everywhere")
        treatment = Treatment((Scaling(sigma),), float(np.median(sigma)))
        return replace(picture, noise_model=model, treatment=treatment, sigma_map=sigma)
    if kind == "gaussian" and not fills_outliers:
        return replace(picture, noise_model=model)
    if model is None:
        refuse(kind != "auto", f"noise_model={kind}: too little of the picture is known, or it is too small, to tell")
        return picture
    known = np.ones(picture.noisy.shape, dtype=bool) if picture.known is None else picture.known
    chosen = treatment_for(model, kind, picture.noisy, known, picture.n_pages, fills_outliers)
    return replace(picture, noise_model=model, treatment=chosen)


def read_sigma(path: str, picture: Picture) -> np.ndarray:
    """(H, W, 1 or C), in the picture's own units."""
    image = read_image(path)
    if image.pixels.shape[:2] != picture.noisy.shape[:2]:
        raise UserError(f"{path}: {size_of(image)} pixels, but the image has {size_of(picture.image)}")
    refuse(image.missing is not None or bool(image.pixels.min() <= 0), f"{path}: a noise level must be above zero")
    is_colour = image.pixels.shape[2] == picture.noisy.shape[2]
    return image.pixels if is_colour else image.pixels.mean(-1, keepdims=True)
