"""Natural image patches as a data set: what is kept in the cache, and held-out data."""

import logging

import numpy as np
import pytest
import torch

from tests.conftest import load, small_config, smooth_picture
from tvae.data.dataset import Dataset
from tvae.data.natural_patches import make_patches
from tvae.data.sets import natural
from tvae.data.sets.natural import NaturalConfig
from tvae.inference.states import all_states
from tvae.io.image_file import write_tiff
from tvae.model.vae import ModelConfig, log_likelihood
from tvae.runs.setup import make_fit

pytestmark = pytest.mark.usefixtures("own_cache")


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
    real = make_patches
    monkeypatch.setattr(natural, "make_patches", lambda *args: (made.append(1), real(*args))[1])
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
    """With all states in the sets, the held-out ELBO is the exact log-likelihood under the epoch's parameters."""
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
