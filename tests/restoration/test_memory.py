"""Memory: the forecast is told, and a picture that cannot fit is refused before work begins."""

import numpy as np
import pytest
import torch

from tests.conftest import small_config
from tvae.config.recipe import prepare
from tvae.data.picture import Picture
from tvae.data.sets.image import ImageConfig
from tvae.errors import UserError
from tvae.io.image_file import from_array
from tvae.io.layout import Layout
from tvae.io.stack_file import to_image
from tvae.model.vae import ModelConfig
from tvae.restoration import memory
from tvae.restoration.memory import bytes_free, bytes_needed, bytes_of_restoration, bytes_resident, check_memory

GB = 2**30


def prepared(image):
    config = small_config(
        dataset=ImageConfig(name="file", patch_size=8, train_stride=30, standardise=True),
        model=ModelConfig(n_latents=8, hidden=[6]),
        image="made.tif",
        task="denoise",
    )
    return prepare(config, Picture(image, image.pixels))


def grey(height, width):
    return from_array(np.random.default_rng(0).integers(0, 255, (height, width), dtype=np.uint8))


def pictured(image):
    return Picture(image, image.pixels, sigma=20.0)


def test_it_grows_with_the_picture_by_less_than_64_bytes_a_value():
    """The picture itself included, and what was taken before left out."""
    small, large = grey(1600, 900), grey(6400, 900)
    needed = [bytes_of_restoration(small_config(), pictured(image)) + image.pixels.nbytes for image in (small, large)]
    assert 0 < needed[1] - needed[0] < 64 * 4800 * 900
    resident = bytes_resident()
    assert bytes_needed(*prepared(small)) >= resident + needed[0] - small.pixels.nbytes


def test_states_that_are_there_are_not_counted_again():
    config, dataset = prepared(grey(1200, 900))
    n_bytes = dataset.source.n_points * config.states.n_states
    assert n_bytes > 0
    resident = bytes_resident()
    missing, there = (bytes_needed(config, dataset, has_states) - resident for has_states in (False, True))
    assert missing - there == pytest.approx(n_bytes, abs=1 << 22)


@pytest.mark.parametrize(("effort", "per_value"), [("fast", 32), ("default", 44), ("best", 44)])
def test_a_repeated_pass_counts(effort, per_value):
    small, large = (pictured(grey(n_rows, 900)) for n_rows in (3000, 6000))
    config = small_config(effort=effort)
    config.restoration.method = "nonlocal"
    grown = bytes_of_restoration(config, large) - bytes_of_restoration(config, small)
    assert grown == per_value * 3000 * 900


def test_what_cannot_fit_is_refused(monkeypatch):
    config, dataset = prepared(grey(600, 4600))
    check_memory(config, dataset)
    monkeypatch.setattr(memory, "bytes_free", lambda: bytes_resident() + GB // 8)
    with pytest.raises(UserError, match=r"made.tif: 4600x600 pixels need about .* megapixels would fit$"):
        check_memory(config, dataset)
    pages = np.random.default_rng(0).integers(0, 255, (40, 200, 200), dtype=np.uint8)
    with pytest.raises(UserError, match=r"40 pages of 200x200 pixels .* \(pages= chooses some\)"):
        check_memory(*prepared(to_image(pages, Layout("TYX", pages.shape))))
    monkeypatch.setattr(memory, "bytes_free", lambda: None)
    check_memory(config, dataset)


def test_what_is_free_is_known_here():
    free = bytes_free()
    held = torch.ones(1 << 24)  # 64 MB of this process: they count as free for it
    after = bytes_free()
    assert free is None or (free > 0 and after is not None and after > 0)
    assert held.sum() > 0
