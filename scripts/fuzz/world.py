"""The fuzzer's files (pictures, a finished run, a model), commands in this process, and damage."""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.global_hydra import GlobalHydra

import tvae
from tvae.io.image_file import write_image, write_tiff
from tvae.io.layout import Layout
from tvae.io.stack_file import write_picture
from tvae.runs.callbacks import record

TINY = [
    "threads=1", "epochs=2", "model.n_latents=8", "states.n_states=8", "ea.n_parents=2", "ea.n_children=2",
    "dataset.train_stride=4", "effort=fast", "checkpoint_seconds=0",
]  # fmt: skip
RESULTS = ("restored.png", "restored.tiff", "uncertainty.tiff")
DONE = "done"  # a run directory of a finished run
MODEL = "model.tvae"


@dataclass(frozen=True)
class World:
    """A folder of pictures, and a finished run of one of them."""

    folder: Path

    def copied(self, place: Path) -> World:
        shutil.copytree(self.folder, place, symlinks=True)
        return World(place)

    def hashes(self, but: Sequence[str] = ()) -> dict[str, str]:
        """SHA-256 of all files, except for some and those in some folders."""
        found = {}
        for file in sorted(self.folder.rglob("*")):
            name = file.relative_to(self.folder)
            if file.is_file() and not {str(name), *map(str, name.parents)} & {*but}:
                found[str(name)] = hashlib.sha256(file.read_bytes()).hexdigest()
        return found


def make_world(folder: Path) -> World:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    y, x = np.mgrid[:24, :20]
    grey = (100 + 80 * np.sin(x / 3) * np.cos(y / 4)).clip(0, 255).astype(np.uint8)
    hole = (abs(y - 12) < 3) & (abs(x - 9) < 4)
    write_image(folder / "grey.png", grey)
    write_image(folder / "colour.png", np.dstack([grey, 255 - grey, grey // 2]))
    write_image(folder / "alpha.png", np.dstack([grey, np.where(hole, 0, 255).astype(np.uint8)]))
    write_image(folder / "deep.png", grey.astype(np.uint16) * 257)
    write_image(folder / "mask.png", hole.astype(np.uint8) * 255)
    write_tiff(folder / "nan.tiff", np.where(hole, np.nan, grey / 255))
    write_tiff(folder / "sigma.tiff", 1 + grey / 50)
    np.save(folder / "points.npy", np.random.default_rng(0).normal(size=(40, 9)))
    _make_many(folder, grey, hole)
    (folder / "space.yaml").write_text("lr.max: {low: 0.001, high: 0.05, log: true}\n")
    tvae.fit(grey, overrides=TINY[:-1]).save(folder / MODEL)
    here = os.getcwd()
    os.chdir(folder)
    try:
        assert run_command("denoise", ["image=grey.png", *TINY, f"hydra.run.dir={DONE}"]) == 0
    finally:
        os.chdir(here)
    return World(folder)


def _make_many(folder: Path, grey: np.ndarray, hole: np.ndarray) -> None:
    """Stacks, and folders of pictures."""
    pages = np.stack([grey, np.roll(grey, 3, 0), 255 - grey])
    layout = Layout("TYX", pages.shape)
    write_picture(folder / "stack.tif", pages, layout)
    write_picture(folder / "stack.gif", pages, layout)
    np.save(folder / "stack.npy", pages / np.float32(255))
    write_picture(folder / "masks.tif", np.stack([hole, ~hole, hole]).astype(np.uint8), layout)
    for name in ("photos", "masks", "empty"):
        (folder / name).mkdir()
    for name, page in zip(("a.png", "b.png"), pages, strict=False):
        write_image(folder / "photos" / name, page[:16])
        write_image(folder / "masks" / name, hole[:16].astype(np.uint8))
    (folder / "photos" / "notes.txt").write_text("no picture")
    (folder / "link.png").symlink_to("colour.png")


def run_command(name: str, words: Sequence[str]) -> Any:
    """`python -m tvae.NAME` in this process, without figures, which take longer than all else; its exit code."""
    module = importlib.import_module("tvae.search.__main__" if name == "search" else f"tvae.{name}")
    figures, record.write_figures = record.write_figures, lambda *_: None
    sys.argv[:], os.environ["HYDRA_FULL_ERROR"] = [f"{name}.py", *words], "0"
    GlobalHydra.instance().clear()
    try:
        module.main()
    except SystemExit as end:
        return end.code
    finally:
        record.write_figures = figures
    return 0


def results(directory: str) -> dict[str, bytes]:
    """The pictures that were made in a run directory, or in those within it."""
    files = (file for name in RESULTS for file in Path(directory).rglob(name) if file.is_file())
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def damage(path: Path, change: tuple[str, int, int]) -> None:
    """Change bytes of a file, or put something else in its place; `change`: (what, where, by which byte)."""
    kind, where, byte = change
    if kind == "none" or path.is_dir() or not path.exists():
        return
    content = bytearray(path.read_bytes())
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("grey.png")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "empty":
        path.touch()
    elif kind != "gone":
        if kind == "flip" and content:
            content[where % len(content)] ^= byte
        noise = np.random.default_rng(where).integers(0, 256, len(content), np.uint8).tobytes()
        changed = {"cut": content[: where % (len(content) + 1)], "longer": content + bytes([byte]) * where}
        path.write_bytes(bytes(changed.get(kind, bytearray(noise if kind == "noise" else content))))
