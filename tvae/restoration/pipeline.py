"""The path of a picture: treatment of its noise -> posterior mean of the model -> second stage -> treatment undone.

`Picture.seen` is the picture after its treatment (`noise.treatment`): the model is trained on it and estimates it. The
treatment is undone here and nowhere else, so that results are in the picture's own units.
"""

from __future__ import annotations

from dataclasses import replace

from tvae.config.schema import Config
from tvae.data.picture import Picture
from tvae.data.sets.image import ImageConfig
from tvae.restoration.metrics import quality
from tvae.restoration.posterior_mean import Plan, Restored, restore
from tvae.restoration.second_stage import SECOND_STAGES
from tvae.restoration.tiling import Bands
from tvae.restoration.unexplained import keep_unexplained
from tvae.training.trainer import Fit

N_DENSE = 1_000_000  # pixels; a larger picture's pilot takes every second patch (docs/pictures.md)


def restore_picture(fit: Fit, picture: Picture, config: Config, bands: Bands) -> Restored:
    """The picture that is delivered, with the quality of the model's own estimate in `psnr_model`."""
    options, seen = config.dataset, picture.seen
    assert isinstance(options, ImageConfig)
    second = SECOND_STAGES.get(config.restoration.method or "")
    # Where only some patches of a slab model were trained on, the states of the others are searched for.
    is_thinned = config.model.likelihood == "slab" and options.train_stride != 1
    n_rounds = config.restoration.n_rounds if second is None else int(is_thinned)
    restored = restore_by_model(fit, picture, config, n_rounds, bands)
    psnr_model = quality(picture, undo_treatment(picture, restored))["psnr"]
    if second is not None:
        held = [restored]  # the only reference, which the stage takes and lets go: a large picture counts
        del restored
        restored = second.refine(seen, held.pop, bool(config.keep_known), config.effort, bands)
    if config.restoration.keep_unexplained:
        sigma = seen.noise if restored.noise_level is None else restored.noise_level
        pixels = keep_unexplained(seen.noisy, restored.pixels, sigma, seen.known, seen.n_pages, seen.covariance)
        restored = replace(restored, pixels=pixels)
    return replace(undo_treatment(picture, restored), psnr_model=psnr_model)


def restore_as_trained(fit: Fit, picture: Picture, config: Config, bands: Bands) -> Restored:
    """The picture by the posterior mean of the parameters and states as they are, for looks during training."""
    return undo_treatment(picture, restore_by_model(fit, picture, config, 0, bands))


def restore_by_model(fit: Fit, picture: Picture, config: Config, n_rounds: int, bands: Bands) -> Restored:
    """The model's estimate of `picture.seen`, after `n_rounds` further E-steps."""
    options = config.dataset
    assert isinstance(options, ImageConfig)
    assert options.patch_size is not None
    assert options.train_stride is not None
    stride = stride_of_states(config, picture)
    plan = Plan(options.patch_size, options.train_stride, stride, options.average, n_rounds, bool(config.keep_known))
    return restore(fit, picture.seen, plan, bands)


def stride_of_states(config: Config, picture: Picture) -> int:
    """The stride between the patches that are averaged; the pilot of a large picture takes every second patch."""
    options = config.dataset
    assert isinstance(options, ImageConfig)
    assert options.patch_size is not None
    is_thinned = config.restoration.has_second_stage and picture.noisy[..., 0].size > N_DENSE
    return min(options.patch_size, max(options.stride, 2)) if is_thinned else options.stride


def undo_treatment(picture: Picture, restored: Restored) -> Restored:
    """Take the restored `picture.seen` back to the picture's own units."""
    treatment = picture.treatment
    if treatment is None or treatment.step is None:
        return restored
    return Restored(*treatment.back(restored.pixels, restored.uncertainty), treatment.noise_level)
