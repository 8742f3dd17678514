"""What the fuzzer tries: each kind of attempt is a strategy that draws one, and an attempt knows how to run itself."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import tvae
from scripts.fuzz_world import DONE, TINY, World, copy_damaged, damage, results, run_command
from tvae.core.errors import UserError
from tvae.options.schema import Config
from tvae.run.files import CHECKPOINT, CONFIG, METRICS
from tvae.run.sealed import read, write


@dataclass(frozen=True)
class Attempt:
    """A command, after something was done to the files of the world."""

    name: str
    words: list[str]
    directory: str = "run"
    change: Callable[[World], object] = field(default=lambda world: None, repr=False)
    about: str = ""  # what was changed
    may_differ: bool = False  # from the finished run: something else is asked for

    def run(self, world: World) -> Any:
        self.change(world)
        return run_command(self.name, [*self.words, f"hydra.run.dir={self.directory}"])

    def compare(self, world: World) -> list[str]:
        """Whether the same is made by the same command elsewhere, and by repetition."""
        if self.directory == DONE and not self.may_differ:
            return [] if results(DONE) == _expected(world) else ["a finished run has another result now"]
        made = results(self.directory)
        if run_command(self.name, [*self.words, f"hydra.run.dir={self.directory}"]) != 0:
            return ["the same command, repeated, fails"]
        return [] if results(self.directory) == made else ["the same command, repeated, has another result"]


def _expected(world: World) -> dict[str, bytes]:
    return results(str(world.folder.parent / "template" / DONE))


PICTURES = (
    "grey.png",
    "colour.png",
    "alpha.png",
    "deep.png",
    "nan.tiff",
    "points.npy",
    "nowhere.png",
    "/dev/null",
    ".",
)
VALUES = (
    "0", "1", "-1", "2", "3", "7", "0.5", "-0.5", "1e-30", "1e30", "1e300", "nan", "inf", "null", "true", "x", "''",
    "[]", "[1]", "[0]", "[-1]", "[1,2]", "{}", "{a:1}", "a b", "ä", "${seed}", "${nowhere}", "???",
    "999999999999999999999",
)  # fmt: skip
# Options with which a run is allowed to take long, and what is allowed of them here
SMALL = ("1", "2", "3", "0", "-1", "null", "x", "1.5", "[]")
LONG = {
    "epochs", "n_patches", "restore_rounds", "ea.n_generations", "ea.n_children", "ea.n_parents", "batch_size",
    "dataset.n_points", "dataset.size", "model.n_latents", "states.n_states", "compile", "device",
}  # fmt: skip


def _names(schema: Any, path: str = "") -> list[str]:
    names = []
    for f in dataclasses.fields(schema):
        value = getattr(schema, f.name)
        inner = dataclasses.is_dataclass(value)
        names += _names(value, f"{path}{f.name}.") if inner else [path + f.name]
    return names


def _option(name: str) -> st.SearchStrategy[str]:
    values = st.sampled_from(SMALL if name in LONG or name.startswith("model.hidden") else VALUES)
    return values.map(lambda value: f"{name}={value}")


OPTIONS = [*_names(Config()), "dataset.patch_size", "dataset.stride", "dataset.train_stride", "dataset.average",
           "dataset.nowhere", "+odd", "~noise", "hydra.job.name", "pages", "axes"]  # fmt: skip
TASKS = st.sampled_from(("denoise", "inpaint", "train"))


@st.composite
def by_options(draw: st.DrawFn) -> Attempt:
    picture = draw(st.sampled_from(PICTURES[:6]))
    options = draw(st.lists(st.sampled_from(OPTIONS).flatmap(_option), max_size=3))
    return Attempt(draw(TASKS), [f"image={picture}", *TINY, *options])


@st.composite
def by_data(draw: st.DrawFn) -> Attempt:
    """Data that are no images."""
    kind = draw(
        st.sampled_from((["dataset=array", "dataset.file=points.npy"], ["dataset=bars", "dataset.n_points=30"]))
    )
    options = draw(st.lists(st.sampled_from(OPTIONS).flatmap(_option), max_size=3))
    tiny = [word for word in TINY if not word.startswith(("dataset", "effort"))]
    return Attempt("train", [*kind, *tiny, *options])


@st.composite
def by_files(draw: st.DrawFn) -> Attempt:
    """A picture, a mask or a clean picture with other bytes, or another file in its place."""
    roles = {"image": "grey.png", "mask": "mask.png", "clean": "grey.png"}
    for role in draw(st.sets(st.sampled_from(sorted(roles)), max_size=2)):
        roles[role] = draw(st.sampled_from(PICTURES))
    victim = draw(st.sampled_from(sorted(roles)))
    words = [f"{role}={name}" for role, name in roles.items() if role != "clean" or draw(st.booleans())]
    source, change = roles[victim], draw(damages())
    if Path(source).suffix and not source.startswith("nowhere"):
        words = [f"{victim}=damaged{Path(source).suffix}" if w.startswith(f"{victim}=") else w for w in words]
    target = f"damaged{Path(source).suffix}"
    return Attempt(
        draw(TASKS),
        [*words, *TINY],
        change=lambda world: copy_damaged(world, source, target, change),
        about=str(change),
    )


@st.composite
def by_run_directories(draw: st.DrawFn) -> Attempt:
    """A file of a finished run is damaged, and the command repeated, or another one run on it."""
    name = draw(st.sampled_from((CONFIG, METRICS, CHECKPOINT, "checkpoint.previous.pt", "data.sha256", "history.csv",
                                 "run.log", "tensorboard", "figures", "nothing")))  # fmt: skip
    change = draw(damages())
    is_finished = draw(st.booleans())

    def apply(world: World) -> None:
        if not is_finished:
            (world.folder / DONE / METRICS).unlink()
        damage(world.folder / DONE / name, change)

    if draw(st.booleans()):
        return Attempt("denoise", ["image=grey.png", *TINY], DONE, apply, f"{name}: {change}")
    task = draw(st.sampled_from(("denoise", "inpaint")))
    return Attempt(task, [f"run={DONE}"], "again", apply, f"{name}: {change}", may_differ=True)


@st.composite
def by_configurations(draw: st.DrawFn) -> Attempt:
    """A line of config.yaml has another value."""
    number, value = draw(st.integers(0, 60)), draw(st.sampled_from((*VALUES, "&a [*a]", "!!python/object:os.system x")))

    def apply(world: World) -> None:
        path = world.folder / DONE / CONFIG
        lines = path.read_text().splitlines()
        where = number % len(lines)
        if lines[where].partition(":")[0].strip() not in ("epochs", "n_generations", "restore_rounds", "compile"):
            lines[where] = f"{lines[where].partition(':')[0]}: {value}"
        path.write_text("\n".join(lines) + "\n")

    return Attempt("denoise", [f"run={DONE}"], "again", apply, f"line {number}: {value}", may_differ=True)


@st.composite
def by_checkpoints(draw: st.DrawFn) -> Attempt:
    """A value somewhere in a checkpoint is another one, and the checksum is right."""
    steps, kind = draw(st.lists(st.integers(0, 10), min_size=3, max_size=8)), draw(st.sampled_from(sorted(REPLACED)))

    def apply(world: World) -> None:
        path = world.folder / DONE / CHECKPOINT
        content = copy.deepcopy(read(path))
        _replace(content, steps, REPLACED[kind])
        write(path, content)
        (world.folder / DONE / METRICS).unlink()
        (world.folder / DONE / "checkpoint.previous.pt").unlink(missing_ok=True)

    return Attempt("denoise", ["image=grey.png", *TINY], DONE, apply, f"{steps} {kind}", may_differ=True)


REPLACED: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda value: None,
    "NaN": lambda value: torch.full_like(value, float("nan")) if _is_real(value) else float("nan"),
    "word": lambda value: "word",
    "minus": lambda value: -value if _is_real(value) or isinstance(value, (int, float)) else -1,
    "large": lambda value: 10**12 if isinstance(value, int) else 1e300,
    "list": lambda value: [value],
    "dictionary": lambda value: {"a": value},
    "cut": lambda value: value[:1] if isinstance(value, (torch.Tensor, list, str)) and len(value) else value,
    "true": lambda value: True,
}


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _replace(content: Any, steps: list[int], change: Callable[[Any], Any]) -> None:
    """Walk down into nested dictionaries and lists, and change what is there."""
    for depth, step in enumerate(steps):
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        if not keys:
            return
        key = keys[step % len(keys)]
        is_leaf = not isinstance(content[key], (dict, list)) or depth == len(steps) - 1
        if is_leaf:
            with_change = (
                change(content[key]) if not isinstance(content[key], torch.Tensor) or content[key].dim() else None
            )
            content[key] = with_change
            return
        content = content[key]


@dataclass(frozen=True)
class Call(Attempt):
    """A Python call instead of a command."""

    array: Any = field(default=None, repr=False)
    mask: Any = field(default=None, repr=False)

    def run(self, world: World) -> Any:
        before = copy.deepcopy(self.array)
        try:
            axis = -1 if self.about == "channels" else None
            if self.name == "denoise":
                found = tvae.denoise(self.array, channel_axis=axis, overrides=self.words)
            else:
                found = tvae.inpaint(self.array, self.mask, channel_axis=axis, overrides=self.words)
        except (UserError, ValueError) as error:
            print(error)
            return 2
        assert np.array_equal(np.asarray(before), np.asarray(self.array), equal_nan=self.array.dtype.kind == "f")
        assert (found.shape, found.dtype) == (self.array.shape, self.array.dtype)
        assert np.isfinite(found).all(), "not finite"
        return 0

    def compare(self, world: World) -> list[str]:
        return []


@st.composite
def by_arrays(draw: st.DrawFn) -> Call:
    shape = draw(
        st.sampled_from(((24, 20), (8, 8), (3, 30), (1, 1), (24, 20, 3), (24, 20, 2), (0, 5), (24, 20, 4), (16, 17, 1)))
    )
    dtype = draw(
        st.sampled_from(("uint8", "uint16", "float32", "float64", "float16", "int32", "bool", "complex64", "object"))
    )
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    scale = draw(st.sampled_from((1.0, 255.0, 1e-3, 1e-12, 1e12, 1e40)))
    array = rng.random(shape) * scale
    with np.errstate(all="ignore"):
        array = array.astype(dtype)
    if array.dtype.kind == "f" and draw(st.booleans()):
        array[rng.random(shape) < draw(st.sampled_from((0.01, 0.5, 1.0)))] = draw(st.sampled_from((np.nan, np.inf)))
    mask = draw(
        st.sampled_from((None, np.zeros(shape[:2]), rng.random(shape[:2]) < 0.3, np.ones(shape[:2]), np.zeros((2, 2))))
    )
    if draw(st.booleans()):
        array = np.ma.array(array, mask=rng.random(shape) < 0.2)
    words = [*TINY[:-1], *draw(st.lists(st.sampled_from(OPTIONS).flatmap(_option), max_size=1))]
    about = "channels" if len(shape) == 3 else f"{shape} {dtype}"
    return Call(draw(st.sampled_from(("denoise", "inpaint"))), words, about=about, array=array, mask=mask)


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, int, int]:
    """(what, where, by which byte)."""
    kinds = ("none", "flip", "cut", "empty", "noise", "folder", "link", "gone", "longer", "pipe")
    return draw(st.sampled_from(kinds)), draw(st.integers(0, 5000)), draw(st.integers(1, 255))


ATTEMPTS: dict[str, st.SearchStrategy[Attempt]] = {
    "options": by_options(), "other data": by_data(), "files": by_files(), "run directories": by_run_directories(),
    "configurations": by_configurations(), "checkpoints": by_checkpoints(), "arrays": by_arrays(),
}  # fmt: skip
