"""Run directories without runs, for scripts that collect results."""

import json

from omegaconf import OmegaConf

from tests.conftest import small_config
from tvae.data.sets.image import ImageConfig


def make_run(path, psnr, seconds=120.0, epochs=40, status="finished"):
    path.mkdir(parents=True)
    metrics = {"status": status, "psnr": psnr, "psnr_input": 20.0, "seconds": seconds, "epochs": epochs, "elbo": -1.5,
               "machine": {"processor": "abacus", "cores": "2", "tvae": "0.1.0 (1234567)"}}  # fmt: skip
    (path / "metrics.json").write_text(json.dumps(metrics))
    words = dict(word.split("=") for word in path.name.split(",") if "=" in word)
    values = {name: float(words[name]) for name in ("noise", "missing") if name in words}
    values |= {name: words[name] for name in ("missing_per",) if name in words}
    config = small_config(dataset=ImageConfig(name=words.get("dataset", "house")), threads=1, **values)
    (path / "config.yaml").write_text(OmegaConf.to_yaml(config))


def make_outputs(folder):
    """Three seeds at one level, two at another, a run that failed, some by the paper's parameters, and peers."""
    for seed, psnr in enumerate([34.0, 34.2, 34.4]):
        make_run(folder / "table1" / "quick" / f"noise=15.0,seed={seed}", psnr, seconds=60 * (seed + 1))
    for seed, psnr in enumerate([32.0, 33.0]):
        make_run(folder / "table1" / "quick" / f"noise=25,seed={seed}", psnr)
    make_run(folder / "table1" / "quick" / "noise=50,seed=0", 11.0, status="failed")
    make_run(folder / "table1" / "paper" / "noise=15,seed=0", 35.0, epochs=500, seconds=3600)
    (folder / "peers").mkdir()
    for seed, psnr in enumerate([30.0, 31.0]):
        wavelets = {"psnr": psnr, "seconds": 6.0, "needs": "nothing", "how": "scikit-image"}
        found = {"wavelets": wavelets, "BM3D": wavelets | {"psnr": 35.0}}
        (folder / "peers" / f"noise=15,seed={seed}.json").write_text(json.dumps(found))
