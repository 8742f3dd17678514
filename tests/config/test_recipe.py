"""Choices of the recipe: by the noise it estimates, the size of the image, and the effort."""

import numpy as np
import pytest
import torch
from composing import checked, composed

from tvae.config import recipe
from tvae.config.recipe import complete
from tvae.data.dataset import EFFORTS
from tvae.data.named import camera
from tvae.data.picture import add_noise
from tvae.data.sets.image import FILLED_CANDIDATES, N_LARGE, N_PER_LATENT, SIGMA_OF_KNOWN, SLAB_EPOCHS, SLAB_SIZES
from tvae.errors import UserError
from tvae.io.image_file import write_image
from tvae.restoration.non_local.effort import REFINEMENTS
from tvae.training.trainer import THINNED

PAPER, NONLOCAL = "restoration=posterior_mean", "restoration=nonlocal"


def completed(*overrides):
    config = checked(*overrides)
    return complete(config, config.dataset.open(config))


@pytest.mark.parametrize(
    ("corruption", "patch_size", "rate"),
    [("noise=50", 12, 0.005), ("noise=25", 10, 0.005), ("noise=15", 8, 0.005), ("missing=0.5", 8, 0.0025)],
)
def test_more_noise_takes_larger_patches(corruption, patch_size, rate):
    for restoration in (PAPER, NONLOCAL):
        config = completed("dataset=camera", "model=deep", corruption, restoration)
        assert (config.dataset.patch_size, config.lr.max) == (patch_size, rate)
    config = completed("dataset=camera", "model=deep", corruption, PAPER)
    assert (config.model.n_latents, config.model.hidden) == (256, [256])
    assert 35 <= config.epochs <= 45


@pytest.mark.parametrize(("noise", "size"), [(15, SLAB_SIZES[0]), (25, SLAB_SIZES[1]), (50, SLAB_SIZES[2])])
def test_pictures_get_a_slab_model_of_a_size_by_their_noise(noise, size):
    for task, kind in (("train", "train"), ("denoise", "default")):
        config = completed("dataset=camera", f"noise={noise}", f"task={task}")
        model = config.model
        assert (model.likelihood, model.prior, model.solver, model.hidden) == ("slab", "local", "exact", [])
        assert (config.dataset.patch_size, model.n_latents) == (size.patch_size, size.n_latents)
        assert (model.slab, (config.epochs, config.n_thinned)) == (size.rank, SLAB_EPOCHS[kind])
        assert model.sigma2**0.5 == pytest.approx(noise, rel=0.05)


def test_incomplete_pictures_get_a_slab_model():
    """Exact pixels take one latent at a time; where known pixels are denoised, that of their noise."""
    exact = completed("dataset=camera", "missing=0.5", "task=inpaint")
    assert exact.keep_known
    assert (exact.model.likelihood, exact.ea.most_on, exact.ea.n_candidates) == ("slab", 1, FILLED_CANDIDATES)
    assert exact.model.sigma2**0.5 == pytest.approx(SIGMA_OF_KNOWN)
    noisy = completed("dataset=camera", "missing=0.5", "noise=50", "task=inpaint")
    assert not noisy.keep_known
    assert (noisy.model.likelihood, noisy.ea.most_on) == ("slab", 2)
    assert (noisy.dataset.patch_size, noisy.model.slab) == (SLAB_SIZES[2].patch_size, SLAB_SIZES[2].rank)
    assert noisy.model.sigma2**0.5 == pytest.approx(50, rel=0.1)
    assert completed("dataset=camera", "missing=0.5", "task=inpaint", "ea.most_on=2").ea.most_on == 2


@pytest.mark.parametrize(("side", "train_stride"), [(40, 1), (200, 1), (600, 1), (1100, 2)])
def test_small_pictures_get_fewer_latents_and_large_ones_are_thinned_out(tmp_path, side, train_stride):
    write_image(tmp_path / "a.png", np.random.default_rng(0).integers(0, 255, (side, side), dtype=np.uint8))
    config = completed(f"image={tmp_path}/a.png", "task=denoise")
    n_patches = ((side - config.dataset.patch_size + 1) / train_stride) ** 2
    assert config.dataset.train_stride == train_stride
    assert config.n_thinned == (8 if n_patches > N_LARGE else 0)
    assert config.model.n_latents == min(SLAB_SIZES[2].n_latents, round(n_patches / N_PER_LATENT))
    assert config.states.n_states <= config.model.n_latents


def test_the_noise_is_measured_and_not_told(tmp_path):
    """A picture that is noisy already gets the same as one to which the noise is added here."""
    write_image(
        tmp_path / "noisy.png", np.rint(add_noise(camera().pixels, 25, 0)).clip(0, 255).astype(np.uint8)[..., 0]
    )
    told = completed("dataset=camera", "noise=25")
    blind = completed(f"image={tmp_path}/noisy.png")
    assert (blind.dataset.patch_size, blind.lr.max) == (told.dataset.patch_size, told.lr.max)


@pytest.mark.parametrize(
    ("side", "n_latents", "train_stride"), [(40, 64, 1), (90, 128, 1), (200, 256, 1), (600, 256, 2), (1300, 256, 4)]
)
def test_size_decides_latents_epochs_and_how_many_patches_are_trained_on(tmp_path, side, n_latents, train_stride):
    write_image(tmp_path / "a.png", np.random.default_rng(0).integers(0, 255, (side, side), dtype=np.uint8))
    config = completed(f"image={tmp_path}/a.png", "model=deep", PAPER)
    assert (config.model.n_latents, config.dataset.train_stride) == (n_latents, train_stride)
    assert 15 <= config.epochs <= 200
    for effort in EFFORTS:
        first = completed(f"image={tmp_path}/a.png", "model=deep", NONLOCAL, f"effort={effort}")
        assert first.dataset.train_stride >= train_stride
        assert 1 <= first.epochs <= 200


@pytest.mark.parametrize(("given", "thinned"), [([], 6), (["epochs=3"], 2), (["epochs=1"], 0), (["n_thinned=1"], 1)])
def test_the_last_epoch_visits_all_patches(given, thinned):
    assert completed("dataset=camera", "noise=25", "task=denoise", "effort=fast", *given).n_thinned == thinned


def test_what_is_set_stays(tmp_path):
    given = ["dataset.patch_size=6", "dataset.train_stride=3", "model.n_latents=20", "model.hidden=[7,8]", "epochs=3"]
    config = completed("dataset=camera", "noise=25", "lr.max=0.02", *given)
    assert (config.dataset.patch_size, config.dataset.train_stride, config.lr.max) == (6, 3, 0.02)
    assert (config.model.n_latents, config.model.hidden, config.epochs) == (20, [7, 8], 3)


def n_visits(config):
    """About how many data points are visited in all epochs."""
    n_epochs = config.epochs - config.n_thinned + config.n_thinned / THINNED
    return n_epochs * (256 / config.dataset.train_stride) ** 2


def test_more_effort_trains_and_refines_more():
    """The nonlocal stage needs only a pilot."""
    by_effort = [n_visits(completed("dataset=camera", "noise=25", NONLOCAL, f"effort={effort}")) for effort in EFFORTS]
    in_full = n_visits(completed("dataset=camera", "noise=25", PAPER))
    assert by_effort == sorted({*by_effort})
    assert by_effort[-1] < in_full
    assert tuple(REFINEMENTS) == EFFORTS
    fast, default, best = REFINEMENTS.values()
    assert len(fast.local) < len(default.local) <= len(best.local)
    assert fast.n_fill_passes < default.n_fill_passes <= best.n_fill_passes
    assert completed("dataset=camera", "noise=25").effort == "default"


def test_effort_means_nothing_to_the_model_of_the_paper():
    fast, best = (completed("dataset=camera", "noise=25", PAPER, f"effort={effort}") for effort in ("fast", "best"))
    assert (fast.epochs, fast.dataset, fast.model) == (best.epochs, best.dataset, best.model)


def test_the_command_decides_how_a_picture_is_made():
    for task, method, keeps in (("train", "posterior_mean", False), ("denoise", "nonlocal", True)):
        found = completed("dataset=camera", "noise=25", f"task={task}").restoration
        assert (found.method, found.keep_unexplained) == (method, keeps)
    given = completed("dataset=camera", "noise=25", "task=denoise", PAPER, "restoration.keep_unexplained=false")
    assert (given.restoration.method, given.restoration.keep_unexplained) == ("posterior_mean", False)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("effort=slow", "effort=slow: must be one of fast, default, best"),
        ("restoration.method=all", "restoration.method=all: must be one of posterior_mean, nonlocal"),
    ],
)
def test_choices_are_checked(option, message):
    with pytest.raises(UserError, match=message):
        checked("dataset=camera", option)


@pytest.mark.parametrize(
    "name", ["table1", "table2", "inpainting", "house_25", "house_50", "house_inpaint_50", "castle_50", "barbara_25"]
)
def test_experiments_of_the_paper_have_its_model(name):
    assert composed(f"experiment={name}").restoration.method == "posterior_mean"


def test_an_accelerator_gets_larger_minibatches_of_pictures(monkeypatch):
    for device, size in (("cpu", 32), ("cuda", 256)):
        monkeypatch.setattr(recipe, "choose_device", lambda name, precision, device=device: torch.device(device))
        assert completed("dataset=camera", "model=deep", NONLOCAL).batch_size == size
        assert completed("dataset=camera", "batch_size=50").batch_size == 50
        assert completed("dataset=camera", "model=deep", PAPER).batch_size == 32
        assert completed("dataset=bars").batch_size == 32
