"""A stack has one model, and its pages are restored each by itself."""

import json
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch

from tests.conftest import small_config
from tvae.config.recipe import prepare
from tvae.data.picture import Picture, add_noise
from tvae.data.sets.image import ImageConfig
from tvae.io.layout import Layout
from tvae.io.stack_file import to_image
from tvae.model.vae import ModelConfig
from tvae.restoration import tiling
from tvae.restoration.non_local.stage import refine_restored
from tvae.restoration.posterior_mean import Plan, Restored, first_page, restore
from tvae.runs.session import Session

OPTIONS = ["dataset.patch_size=4", "model.n_latents=8", "states.n_states=16", "epochs=1", "effort=fast"]


def pages(n=3, height=20, width=18):
    """(T, H, W) of 8 bit: a smooth pattern that moves, with noise."""
    rows, columns = np.mgrid[:height, :width]
    clean = np.stack([120 + 60 * np.sin((columns + 3 * i) / 4) + 30 * np.cos(rows / 3) for i in range(n)])
    return clean, np.rint(add_noise(clean, 15, seed=0)).clip(0, 255).astype(np.uint8)


def picture_of(stack):
    image = to_image(stack, Layout("TYX", stack.shape))
    return Picture(image, image.pixels)


def session_of(picture):
    config = small_config(
        dataset=ImageConfig(name="file", patch_size=4, train_stride=2, standardise=True),
        model=ModelConfig(n_latents=8, hidden=[6]),
        image="made.tif",
        epochs=1,
        effort="fast",
        task="denoise",
    )
    session = Session(*prepare(config, picture))
    session.loop()
    return session


def test_no_patch_is_on_two_pages():
    picture = picture_of(pages()[1])
    source = session_of(picture).dataset.source
    assert source.n_points == 3 * 9 * 8
    page_of = torch.from_numpy(np.repeat(np.arange(3.0), 20))[:, None, None].expand(60, 18, 1)
    source.pixels = page_of.contiguous()
    assert (source.known_values().std(1, correction=0) == 0).all()


def test_pages_that_are_equal_are_restored_equally():
    """The first estimate, from the same states, and what follows from the same groups."""
    stack = np.repeat(pages(1)[1], 3, axis=0)
    picture = picture_of(stack)
    fit = session_of(picture).fit
    sets = fit.points.sets.tensor
    sets.copy_(sets[: len(sets) // 3].repeat(3, 1, 1))
    first = restore(fit, picture, Plan(4, 2, n_rounds=0))
    found = refine_restored(picture, lambda: first, False, "fast")
    for array in (first.pixels, first.uncertainty, found.pixels, found.uncertainty):
        for page in np.split(array, 3):
            np.testing.assert_array_equal(page, array[:20])


@pytest.mark.usefixtures("_no_figures")
def test_a_stack_by_command(tmp_path, command):
    """The result has its axes, type and order of pages; some pages, and a name for it."""
    clean, noisy = pages()
    tifffile.imwrite(tmp_path / "noisy.tif", noisy, photometric="minisblack", metadata={"axes": "TYX"})
    command.ok("denoise", "image=noisy.tif", *OPTIONS, "hydra.run.dir=run", "output=out.tif")
    found = tifffile.imread("out.tif")
    np.testing.assert_array_equal(found, tifffile.imread("run/restored.tiff"))
    assert (found.shape, found.dtype) == (noisy.shape, noisy.dtype)
    error, before = (np.sqrt(np.mean((each - clean) ** 2, (1, 2))) for each in (found.astype(float), noisy))
    assert (error < 0.6 * before).all()
    assert tifffile.imread("run/uncertainty.tiff").shape == noisy.shape
    command.ok("denoise", "image=noisy.tif", "pages=2,0", *OPTIONS, "hydra.run.dir=some", "output=out.npy")
    assert np.load("out.npy").shape == (2, 20, 18)
    assert json.loads(Path("some/metrics.json").read_text())["status"] == "finished"
    command.refused("denoise", "image=noisy.tif", "pages=7", *OPTIONS)


def test_bands_of_pages_make_no_difference(monkeypatch):
    picture = picture_of(pages()[1])
    fit = session_of(picture).fit
    found = []
    for n_rows in (512, 7):
        monkeypatch.setattr(tiling, "ROWS_MAX", n_rows)
        first = restore(fit, picture, Plan(4, 2, n_rounds=0))
        found.append((first.pixels, refine_restored(picture, lambda each=first: each, False, "fast").pixels))
    for whole, by_bands in zip(*found, strict=True):
        np.testing.assert_array_equal(whole, by_bands)


def test_the_first_page_for_figures():
    picture = picture_of(pages()[1])
    restored = Restored(picture.noisy + 1, picture.noisy + 2, 3.0)
    page, found = first_page(picture, restored, 2)
    np.testing.assert_array_equal(page.noisy, picture.noisy[:20:2, ::2])
    np.testing.assert_array_equal(found.uncertainty, picture.noisy[:20:2, ::2] + 2)
    assert (page.n_pages, page.image.layout, found.noise_level) == (1, None, 3.0)
    assert first_page(page, found) == (page, found)
