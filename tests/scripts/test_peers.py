"""Other systems, on the arrays that our runs see."""

import json

import numpy as np
import pytest

from scripts.paper import peers
from tests.composing import checked
from tvae.config.recipe import prepare
from tvae.data.named import camera


@pytest.fixture(scope="module")
def structured():
    """A clean picture with edges and a gradient."""
    rows, columns = np.mgrid[:48, :48]
    return (80.0 + columns + 60 * ((rows // 12 + columns // 12) % 2))[..., None]


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda p: p.name)
def test_every_peer_denoises(peer, structured):
    if not peer.is_installed:
        pytest.skip(f"needs {' and '.join(peer.packages)}: pip install '.[peers]'")
    noisy = structured + 25 * np.random.default_rng(0).normal(size=structured.shape)
    before = np.square(noisy - structured).mean()
    after = np.square(peer.restore(noisy[..., 0], 25.0) - structured[..., 0]).mean()
    assert after < before / 2


def test_peers_see_the_arrays_of_our_runs(monkeypatch):
    """The same noise, bit by bit, that a run with this corruption_seed trains on."""
    monkeypatch.setattr(peers, "read_named", lambda name: camera())
    found = {name: corrupted for name, _, corrupted, _, _ in peers.arrays(peers.SEEDS)}
    for name, corruption in (
        ("noise=25,seed=2", ("noise=25", "corruption_seed=2")),
        (
            "dataset=castle,missing=0.8,missing_per=channel,seed=1",
            ("missing=0.8", "missing_per=channel", "corruption_seed=1"),
        ),
    ):
        _, dataset = prepare(checked("dataset=camera", *corruption, "dataset.train_stride=9"))
        assert np.array_equal(found[name], dataset.picture.noisy)


def test_a_peer_that_is_not_installed_is_left_out_and_said(tmp_path, monkeypatch, capsys, structured):
    noisy = structured + np.random.default_rng(0).normal(size=structured.shape)
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "bm3d" else object())
    monkeypatch.setattr(peers, "PEERS", [p for p in peers.PEERS if p.name in ("wavelets", "BM3D")])
    monkeypatch.setattr(peers, "arrays", lambda seeds: [("noise=15,seed=0", structured, noisy, 15.0, None)])
    peers.main([str(tmp_path)])
    assert "left out: BM3D; pip install '.[peers]'" in capsys.readouterr().out
    first = json.loads((tmp_path / "noise=15,seed=0.json").read_text())
    assert list(first) == ["wavelets"]
    monkeypatch.setattr(peers, "find_spec", lambda name: object())
    monkeypatch.setattr(peers, "PEERS", [p._replace(restore=lambda noisy, _: noisy) for p in peers.PEERS])
    peers.main([str(tmp_path)])  # what has been installed since is measured, what was measured stays
    second = json.loads((tmp_path / "noise=15,seed=0.json").read_text())
    assert list(second) == ["wavelets", "BM3D"]
    assert second["wavelets"] == first["wavelets"]


def test_one_system_on_more_draws_of_the_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "read_named", lambda name: camera())
    monkeypatch.setattr(peers, "PEERS", [p._replace(restore=lambda noisy, _: noisy) for p in peers.PEERS])
    peers.main([str(tmp_path), "--only", "wavelets", "--seeds", "3", "5"])
    names = {path.stem: list(json.loads(path.read_text())) for path in tmp_path.iterdir()}
    assert names == {f"noise={level},seed={seed}": ["wavelets"] for level in (15, 25, 50) for seed in (3, 5)}
    with pytest.raises(SystemExit):
        peers.main(["--seeds", "3"])


def test_inpainting_peer(structured):
    missing = np.random.default_rng(0).random((48, 48)) < 0.3
    found = peers.measure(structured, np.where(missing[..., None], 0, structured), 0.0, missing)
    assert found["biharmonic interpolation"]["psnr"] > 25


def test_inpainting_peer_in_colour(structured):
    """Every channel has holes of its own, and is filled from its own values."""
    colours = np.concatenate([structured, 255 - structured, structured / 2], -1)
    missing = np.random.default_rng(0).random(colours.shape) < 0.3
    found = peers.measure(colours, np.where(missing, 0, colours), 0.0, missing)
    assert found["biharmonic interpolation"]["psnr"] > 25
