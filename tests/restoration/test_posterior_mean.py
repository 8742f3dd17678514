"""Restoration against the formula of every patch, with a loop over patches, states and pixels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from grids import corners
from turns import InTurn

from tests.conftest import small_config
from tvae.config.recipe import prepare
from tvae.data.patches import AVERAGES, nearest
from tvae.data.picture import Picture, drop_pixels
from tvae.data.sets.image import ImageConfig
from tvae.io.image_file import from_array
from tvae.model.packed import unpack
from tvae.model.vae import ModelConfig
from tvae.restoration import posterior_mean
from tvae.restoration.posterior_mean import Plan, restore
from tvae.runs.setup import make_fit

PLAN = Plan(patch_size=4, train_stride=3, stride=2, n_rounds=0)


def picture_of(masked):
    noisy = np.random.default_rng(0).uniform(0, 255, (11, 9, 1))
    missing = drop_pixels((11, 9), 0.3, seed=0) if masked else None
    if masked:
        noisy[missing] = 0
    return Picture(from_array(noisy), noisy, missing=missing)


def fit_of(picture, **model):
    """A model of the picture, in double precision, after an epoch."""
    config = small_config(
        dataset=ImageConfig(name="file", patch_size=4, train_stride=3, standardise=True),
        model=ModelConfig(n_latents=8, hidden=[6], **model),
        image="made.png",
        precision="float64",
        epochs=1,
    )
    fit = make_fit(*prepare(config, picture))
    list(fit.epochs())
    return fit


def moments(fit, picture, plan):
    """Mean and variance of mu under q for every patch of the grid, over all states of the nearest trained patch."""
    rows, columns = nearest(picture.noisy.shape, plan.patch_size, plan.train_stride, plan.stride)
    place = (rows[:, None] + columns).flatten()
    z = unpack(fit.points.sets.tensor[place], 8, torch.float64)
    pixels = (picture.noisy - fit.units.mean) / fit.units.std
    for states, (top, left) in zip(z, corners(picture.noisy, plan.patch_size, plan.stride), strict=True):
        window = slice(top, top + plan.patch_size), slice(left, left + plan.patch_size)
        known = np.ones(plan.patch_size**2, bool) if picture.missing is None else ~picture.missing[window].ravel()
        mu = fit.model.decoder(states).numpy()
        pi, sigma2 = fit.model.pi.numpy(), fit.model.likelihood.sigma2.item()
        bits = states.numpy()
        log_joint = bits @ np.log(pi) + (1 - bits) @ np.log(1 - pi)
        log_joint -= ((pixels[window].ravel() - mu) ** 2)[:, known].sum(1) / (2 * sigma2)
        q = np.exp(log_joint - log_joint.max())
        q /= q.sum()
        yield window, q @ mu, q @ mu**2 - (q @ mu) ** 2


@torch.no_grad()
def by_a_loop(fit, picture, plan):
    """Restored pixels and their uncertainty, without `keep_known`."""
    weights = AVERAGES[plan.average](plan.patch_size).numpy()
    sums = np.zeros((3, *picture.noisy.shape[:2]))
    for window, mean, variance in moments(fit, picture, plan):
        parts = weights * mean, weights * (variance + mean**2), weights
        for total, part in zip(sums, parts, strict=True):
            total[window] += part.reshape(plan.patch_size, -1)
    mean, square = sums[:2] / sums[2]
    pixels = mean * fit.units.std + fit.units.mean
    return pixels[..., None], (np.sqrt(square - mean**2) * fit.units.std)[..., None]


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("masked", [False, True])
def test_restoration_equals_the_formula(masked, average, monkeypatch):
    monkeypatch.setattr(posterior_mean, "PRUNE", 0.0)
    monkeypatch.setattr(posterior_mean, "CHUNK", 5)
    picture = picture_of(masked)
    fit, plan = fit_of(picture), replace(PLAN, average=average)
    found, expected = restore(fit, picture, plan), by_a_loop(fit, picture, plan)
    np.testing.assert_allclose(found.pixels, expected[0], rtol=1e-9)
    np.testing.assert_allclose(found.uncertainty, expected[1], rtol=1e-6, atol=1e-6)


def test_known_pixels_may_be_kept():
    picture = picture_of(masked=True)
    fit = fit_of(picture)
    estimated, kept = restore(fit, picture, PLAN), restore(fit, picture, replace(PLAN, keep_known=True))
    np.testing.assert_array_equal(kept.pixels[~picture.missing], picture.noisy[~picture.missing])
    np.testing.assert_array_equal(kept.pixels[picture.missing], estimated.pixels[picture.missing])
    assert not kept.uncertainty[~picture.missing].any()
    np.testing.assert_array_equal(kept.uncertainty[picture.missing], estimated.uncertainty[picture.missing])


def test_nothing_is_changed_by_restoring():
    picture = picture_of(masked=True)
    fit = fit_of(picture)
    before = fit.points.sets.tensor.clone(), {k: v.clone() for k, v in fit.model.state_dict().items()}
    first, again = (restore(fit, picture, replace(PLAN, n_rounds=2)) for _ in range(2))
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert torch.equal(fit.points.sets.tensor, before[0])
    assert all(torch.equal(value, before[1][name]) for name, value in fit.model.state_dict().items())


def test_ranks_restore_the_same_picture_together():
    """Each those patches whose states it has; the last one has the sums of all."""
    picture = picture_of(masked=False)
    fit = fit_of(picture)
    alone = restore(fit, picture, PLAN)
    everything, whole = fit.points.sets.tensor, fit.points.own
    sent = []
    for rank in range(3):
        fit.team = InTurn(rank, 3, sent)
        fit.points.own = fit.team.part(len(whole))
        fit.points.sets.tensor = everything[fit.points.own.start : fit.points.own.stop]
        together = restore(fit, picture, PLAN)
    np.testing.assert_allclose(together.pixels, alone.pixels, rtol=1e-12)
    np.testing.assert_allclose(together.uncertainty, alone.uncertainty, rtol=1e-9)
