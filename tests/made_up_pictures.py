"""Made-up runs of the development set, for the scripts that judge them."""

import json
import os

import numpy as np
from omegaconf import OmegaConf

from scripts.pictures.runs import Case, Corruption, arrays_of
from tests.conftest import small_config
from tvae.data.sets.image import ImageConfig
from tvae.io.image_file import write_image, write_tiff
from tvae.restoration.metrics import psnr

STATED = 4.0  # grey levels, in the middle


def make_run(folder, picture, corruption, seed, effort="default", status="finished", seconds=50.0, name=None):
    """A run that has left what the table needs; its errors are as large as stated."""
    case = Case(picture, corruption, seed)
    clean, corrupted, missing = arrays_of(case, folder / "clean")
    path = folder / "runs" / (name or f"{effort}-{picture}-{corruption}-{seed}")
    (path / "tensorboard").mkdir(parents=True)
    rng = np.random.default_rng([seed, len(picture)])
    stated = STATED * rng.uniform(0.5, 1.5, clean.shape)
    stated = stated if missing is None else np.where(missing[..., None], stated, 0)
    restored = (clean + stated * rng.normal(size=clean.shape)).clip(0, 255)
    write_image(path / "input.png", np.rint(corrupted.clip(0, 255)).astype(np.uint8)[..., 0])
    write_image(path / "restored.png", np.rint(restored).astype(np.uint8)[..., 0])
    write_tiff(path / "uncertainty.tiff", stated)
    values = {corruption.kind: corruption.level, "corruption_seed": seed, "effort": effort, "threads": 1}
    config = small_config(dataset=ImageConfig(name="file"), image=f"elsewhere/{picture}.png", **values)
    (path / "config.yaml").write_text(OmegaConf.to_yaml(config))
    metrics = {"status": status, "psnr": psnr(clean, restored, 255.0), "psnr_input": None, "seconds": seconds,
               "epochs": 3, "elbo": -1.0, "machine": {"tvae": "0.1.0 (1234567)"}}  # fmt: skip
    (path / "data.sha256").write_text("0")
    (path / "tensorboard" / "events.out.tfevents.1.host.name.77.0").touch()
    (path / "metrics.json").write_text(json.dumps(metrics))
    set_times(path, 100.0)
    return path


def set_times(path, seconds):
    os.utime(path / "data.sha256", (1000, 1000))
    os.utime(path / "metrics.json", (1000 + seconds, 1000 + seconds))


def psnr_of(path):
    return json.loads((path / "metrics.json").read_text())["psnr"]


def tables_of(text):
    """Lists of rows, each row a list of cells; without the lines under the heads."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in (b[0], *b[2:])] for b in blocks]


NOISE, MORE, MISSING = Corruption("noise", 25.0), Corruption("noise", 50.0), Corruption("missing", 0.5)
