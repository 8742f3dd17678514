"""Natural images: their files, whitened patches cut from them, and the data set with its cache and held-out data."""

import logging
import tracemalloc

import numpy as np
import pytest
import torch

from tests.conftest import load, small_config, smooth_picture
from tvae.data import natural_images
from tvae.data.dataset import Dataset
from tvae.data.natural_images import EMBEDDED, NaturalImage, embedded, read_file, vanhateren
from tvae.data.natural_patches import Cutting, columns, cut, make_patches, prepare, shares
from tvae.data.sets import natural
from tvae.data.sets.natural import NaturalConfig
from tvae.errors import UserError
from tvae.inference.states import all_states
from tvae.io.image_file import write_image, write_tiff
from tvae.model.vae import ModelConfig, log_likelihood
from tvae.runs.setup import make_fit

pytestmark = pytest.mark.usefixtures("own_cache")


def test_raw_files_are_big_endian_and_row_by_row(tmp_path):
    expected = np.arange(1024 * 1536, dtype=np.uint16).reshape(1024, 1536)
    (tmp_path / "imk00001.iml").write_bytes(b"".join(int(v).to_bytes(2, "big") for v in expected.flat))
    assert np.array_equal(read_file(tmp_path / "imk00001.iml"), expected)
    (tmp_path / "a.iml").write_bytes(b"12345")
    with pytest.raises(UserError, match=r"a\.iml: 5 bytes, but a van Hateren image, 1536x1024 of 2 bytes, has 3145728"):
        read_file(tmp_path / "a.iml")


def test_colours_are_averaged_and_nan_is_refused(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (8, 9, 3), dtype=np.uint8)
    write_image(tmp_path / "a.png", pixels)
    assert np.allclose(read_file(tmp_path / "a.png"), pixels.mean(-1))
    write_tiff(tmp_path / "a.tiff", np.where(pixels[..., 0] == pixels[3, 3, 0], np.nan, 1.0))
    with pytest.raises(UserError, match="NaN"):
        read_file(tmp_path / "a.tiff")


def test_embedded_images_need_no_files():
    assert [image.name for image in embedded(None)] == list(EMBEDDED)
    for pixels in (image.read() for image in embedded(None)):
        assert pixels.ndim == 2
        assert pixels.std() > 10


@pytest.mark.parametrize("images", [["../secret.iml"], ["/etc/passwd"], ["a.txt"]])
def test_only_names_of_images_are_fetched(images, folder):
    with pytest.raises(UserError, match="must be the name of an image file"):
        vanhateren(images, str(folder))


def test_chosen_images(folder, monkeypatch):
    read = []
    monkeypatch.setattr(natural_images, "read_file", lambda path: (read.append(path.name), smooth_picture(0))[1])
    for image in vanhateren(["2.tiff", "0.tiff"], str(folder)):
        image.read()
    assert read == ["2.tiff", "0.tiff"]


def source(name, pixels):
    return NaturalImage(name, "", lambda: pixels)


def test_the_brightest_are_clamped_to_the_brightest_of_the_others():
    image = np.arange(1.0, 101.0).reshape(10, 10)
    clamped = prepare(image, 0.02)
    expected = np.minimum(image, 98.0)
    assert np.allclose(clamped, expected / expected.mean())
    assert np.allclose(prepare(image, 0.0), image / image.mean())


def test_shares_are_even():
    assert shares(10, 3) == [4, 3, 3]
    assert shares(2, 3) == [1, 1, 0]


@pytest.mark.parametrize(
    ("width", "size", "n_strips"), [(1536, 16, 5), (512, 16, 3), (90, 6, 1), (50, 8, 1), (32, 16, 1)]
)
def test_held_out_strips_share_no_column_with_the_rest(width, size, n_strips):
    train, test = ({c for first in firsts for c in range(first, first + size)} for firsts in columns(width, size, True))
    assert not train & test
    assert train | test == set(range(width))
    assert len(test) == pytest.approx(max(size, 0.2 * width), abs=n_strips)
    assert sum(c + 1 not in test for c in test) == n_strips
    assert columns(width, size, False)[0].tolist() == list(range(width - size + 1))


def test_patches_are_pieces_of_the_image_without_their_means():
    image = np.random.default_rng(0).normal(size=(12, 15))
    patches = cut(image, np.arange(12), 400, 4, 0.0, np.random.default_rng(1))
    pieces = np.stack([image[r : r + 4, c : c + 4].ravel() for r in range(9) for c in range(12)])
    distance = np.abs(patches[:, None] - (pieces - pieces.mean(1, keepdims=True))).max(-1)  # (400, 108)
    assert distance.min(1).max() < 1e-6
    assert len(set(distance.argmin(1))) > 100  # 400 draws of 108: 2.6 are missed on average


def test_the_flattest_are_left_out():
    image = np.zeros((20, 40))
    image[:, 20:] = np.random.default_rng(0).normal(size=(20, 20))
    patches = cut(image, np.arange(37), 50, 4, 0.6, np.random.default_rng(1))
    assert patches.shape == (50, 16)
    everything = cut(image, np.arange(37), 125, 4, 0.0, np.random.default_rng(1))  # the same draws, none left out
    assert np.allclose(np.sort(patches.var(1)), np.sort(everything.var(1))[-50:])


def test_patches_are_balanced_over_images_mixed_and_white():
    """Each image has an intensity pattern of its own, by which its patches are told apart."""
    sources = [source(str(i), smooth_picture(i)) for i in range(3)]
    patches = make_patches(sources, Cutting(patch_size=6, retained=0.99, equalise=False), 3001, 300)
    assert patches.train.shape == (3001, 36)
    assert patches.test.shape == (300, 36)
    inside = patches.whitening.directions
    covariance = np.cov(patches.train.astype(np.float64) @ inside, rowvar=False, bias=True)
    assert np.abs(covariance - np.eye(len(covariance))).max() < 1e-3
    unwhitened = patches.whitening.colour(patches.train) + patches.whitening.mean
    assert np.allclose(unwhitened.mean(1), 0, atol=1e-5)

    def pieces(image):
        windows = np.lib.stride_tricks.sliding_window_view(prepare(image, 0.02), (6, 6)).reshape(-1, 36)
        return windows - windows.mean(1, keepdims=True)

    def distance(rows, others):
        return np.array([np.abs(others - row).max(1).min() for row in rows])

    belongs = [distance(unwhitened[:200], pieces(smooth_picture(i))) < 1e-3 for i in range(3)]
    assert np.sum(belongs, axis=0).tolist() == [1] * 200
    assert all(40 < b.sum() < 95 for b in belongs)  # mixed: 200 / 3 of each, within 4 standard deviations


def test_equalised_patches_have_similar_contrast():
    """One image of low and one of high contrast: x / sqrt(var + 0.1 mean var), before the whitening."""
    sources = [source("a", 1000 + 0.2 * (smooth_picture(0) - 1000)), source("b", smooth_picture(1))]

    def made(equalise):
        patches = make_patches(sources, Cutting(patch_size=6, retained=1.0, equalise=equalise), 400, 40)
        return [patches.whitening.colour(x) + patches.whitening.mean for x in (patches.train, patches.test)]

    (train, test), (equal_train, equal_test) = made(False), made(True)
    floor = 0.1 * train.var(1).mean()
    assert np.allclose(equal_train, train / np.sqrt(train.var(1, keepdims=True) + floor), atol=1e-3)
    assert np.allclose(equal_test, test / np.sqrt(test.var(1, keepdims=True) + floor), atol=1e-3)
    assert equal_train.std(1).std() < 0.5 * train.std(1).std() / train.std(1).mean()


def test_images_are_not_kept():
    """Thirty images of 8 MB each: what is held at a time is a few of them, not all."""
    n_reads = 0

    def read():
        nonlocal n_reads
        n_reads += 1
        return np.random.default_rng(n_reads).random((1000, 1000))

    sources = [NaturalImage(str(i), "", read) for i in range(30)]
    tracemalloc.start()
    make_patches(sources, Cutting(patch_size=6), 60, 6)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n_reads == 30
    assert most < 15 * 8e6


def test_positions_depend_on_the_seed_alone():
    sources = [source("a", smooth_picture(0)), source("b", smooth_picture(1))]

    def made(seed):
        return make_patches(sources, Cutting(patch_size=6, seed=seed), 100, 10).train

    assert np.array_equal(made(0), made(0))
    assert not np.array_equal(made(0), made(1))


@pytest.mark.parametrize(
    ("size", "n_test", "message"),
    [
        (61, 0, "90x60 pixels do not hold a patch of 61x61$"),
        (50, 5, "do not hold a patch of 50x50 and as many held-out"),
    ],
)
def test_patch_larger_than_image(size, n_test, message):
    with pytest.raises(UserError, match=message):
        make_patches([source("a", smooth_picture(0))], Cutting(patch_size=size), 10, n_test)


def test_flat_images():
    for image, n_patches in ((np.zeros((40, 40)), 10), (np.tile([1.0, 2.0], (40, 20)), 1), (smooth_picture(0), 1)):
        with pytest.raises(UserError, match="all patches are alike"):
            make_patches([source("a", image)], Cutting(patch_size=4), n_patches, 0)


def config_for(data_dir, n_patches=300, n_test=30, **options):
    dataset = NaturalConfig(name="vanhateren", patch_size=6, n_test=n_test, **options)
    model = ModelConfig(n_latents=12, hidden=[], solver="exact", sigma2=None)
    return small_config(dataset=dataset, model=model, n_patches=n_patches, data_dir=str(data_dir))


def test_made_once(folder, monkeypatch):
    first = load(config_for(folder))
    monkeypatch.setattr(natural, "make_patches", None)  # calling it would fail
    second = load(config_for(folder))
    assert torch.equal(first.source.data, second.source.data)
    assert torch.equal(first.held_out.data, second.held_out.data)
    assert np.array_equal(first.whitening.matrix, second.whitening.matrix)
    assert first.fingerprint() == second.fingerprint()


@pytest.mark.parametrize("change", ["n_patches", "option", "image"])
def test_made_anew_when_anything_changes(folder, change, monkeypatch):
    load(config_for(folder))
    made = []
    monkeypatch.setattr(natural, "make_patches", lambda *args: (made.append(1), make_patches(*args))[1])
    if change == "image":
        write_tiff(folder / "vanhateren" / "0.tiff", smooth_picture(9).astype(np.float32))
    load(config_for(folder, n_patches=301 if change == "n_patches" else 300, clamp=0.1 if change == "option" else 0.02))
    assert made


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: flipped(content, len(content) // 2),
        lambda content: flipped(content, content.rindex(b"PK\x01\x02") + 8),  # in the archive's directory: encrypted
        lambda content: flipped(content, content.rindex(b"PK\x01\x02") + 10),  # another kind of compression
        lambda content: content[:-99],
        lambda content: b"hello",
        lambda content: b"",
    ],
    ids=["data", "flags", "compression", "cut", "text", "empty"],
)
def test_a_damaged_cache_is_rebuilt(folder, damage, caplog):
    first = load(config_for(folder))
    (path,) = (folder.parent / "cache" / "patches").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        again = load(config_for(folder))
    assert "damaged" in caplog.text
    assert torch.equal(first.source.data, again.source.data)
    assert first.fingerprint() == again.fingerprint()
    caplog.clear()
    load(config_for(folder))
    assert "damaged" not in caplog.text


def test_without_a_writable_cache(folder, monkeypatch, caplog):
    (folder.parent / "file").write_text("")
    monkeypatch.setenv("TVAE_CACHE_DIR", str(folder.parent / "file"))
    with caplog.at_level(logging.WARNING):
        assert load(config_for(folder)).source.n_points == 300
    assert "cannot be written" in caplog.text


def test_held_out_elbo_is_that_of_the_formula(folder):
    """The held-out ELBO of sets with all states is the exact log-likelihood under the epoch's parameters."""
    config = config_for(folder)
    config.model.n_latents, config.states.n_states, config.precision = 4, 16, "float64"
    dataset = load(config)
    fit = make_fit(config, dataset)
    for epoch in fit.epochs():
        exact = log_likelihood(fit.model, dataset.held_out.data.double(), all_states(4).double()).mean().item()
        assert epoch.elbo_test == pytest.approx(exact, rel=1e-9)


def test_nothing_is_learned_from_held_out_data(folder):
    config = config_for(folder)
    dataset = load(config)
    fits = [make_fit(config, Dataset(dataset.source, dataset.shape, held_out=h)) for h in (dataset.held_out, None)]
    with_it, without = (list(fit.epochs()) for fit in fits)
    assert [e.elbo for e in with_it] == [e.elbo for e in without]
    assert all(e.elbo_test is not None for e in with_it)
    assert all(e.elbo_test is None for e in without)
    assert torch.equal(fits[0].model.decoder.weights[0], fits[1].model.decoder.weights[0])
