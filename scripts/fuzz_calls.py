"""What the fuzzer tries with Python calls: arrays of all kinds, and models that are kept in files."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tvae
from scripts.fuzz_attempts import Attempt, damages, some_options
from scripts.fuzz_runs import REPLACED, places, replace_at
from scripts.fuzz_world import MODEL, TINY, World, damage
from tvae.errors import Failure
from tvae.io.sealed import read, write

SHAPES = ((24, 20), (8, 8), (3, 30), (1, 1), (24, 20, 3), (24, 20, 2), (0, 5), (24, 20, 4), (16, 17, 1), (3, 24, 20))
TYPES = ("uint8", "uint16", "float32", "float64", "float16", "int32", "bool", "complex64", "object")
PLACES = (None, None, "YX", "TYX", "YXC", "CYX", "YXT", "", "YY", 3)
PACKAGE = Path(tvae.__file__).parent
SEEDS = (0, 1, None, -1, 2**70, 1.5, "x", True)


@dataclass(frozen=True)
class Call(Attempt):
    """A Python call instead of a command."""

    array: Any = field(default=None, repr=False)
    mask: Any = field(default=None, repr=False)
    arguments: dict[str, Any] = field(default_factory=dict)

    def run(self, world: World) -> Any:
        before = copy.deepcopy(self.array)
        try:
            found = self.call(world)
        except (Failure, ValueError, TypeError) as error:  # as Python says that an argument is wrong
            if not _is_answer(error):
                raise
            print(error)
            return 2
        assert np.array_equal(np.asarray(before), np.asarray(self.array), equal_nan=self.array.dtype.kind == "f")
        assert (found.shape, found.dtype) == (self.array.shape, self.array.dtype)
        assert np.isfinite(found).all(), "not finite"
        return 0

    def call(self, world: World) -> Any:
        if self.name == "denoise":
            return tvae.denoise(self.array, overrides=self.words, **self.arguments)
        return tvae.inpaint(self.array, self.mask, overrides=self.words, **self.arguments)

    def compare(self, world: World) -> list[str]:
        return []


def _is_answer(error: BaseException) -> bool:
    """Whether it was raised by this program, to say what is wrong, and not by what it has called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and Path(trace.tb_frame.f_code.co_filename).is_relative_to(PACKAGE) and bool(str(error))


@dataclass(frozen=True)
class FromModel(Call):
    """An array restored by a model that was loaded from a file, saved and loaded again."""

    def call(self, world: World) -> Any:
        model = tvae.load(world.folder / MODEL)
        model.save(world.folder / "saved.tvae")
        found = model.restore(self.array, **self.arguments)
        again = tvae.load(world.folder / "saved.tvae").restore(self.array, **self.arguments)
        assert np.array_equal(found, again, equal_nan=found.dtype.kind == "f"), "another result after save and load"
        return found


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(TYPES))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    array = rng.random(shape) * draw(st.sampled_from((1.0, 255.0, 1e-3, 1e-12, 1e12, 1e40)))
    with np.errstate(all="ignore"):
        array = array.astype(dtype)
    if array.dtype.kind == "f" and draw(st.booleans()):
        array[rng.random(shape) < draw(st.sampled_from((0.01, 0.5, 1.0)))] = draw(st.sampled_from((np.nan, np.inf)))
    return np.ma.array(array, mask=rng.random(shape) < 0.2) if draw(st.booleans()) else array


@st.composite
def by_arrays(draw: st.DrawFn) -> Call:
    array = draw(arrays())
    sides, rng = array.shape[:2], np.random.default_rng(0)
    masks = (None, np.zeros(sides), rng.random(sides) < 0.3, np.ones(sides), np.zeros((2, 2)))
    arguments: dict[str, Any] = (
        {"channel_axis": -1} if array.ndim == 3 and draw(st.booleans()) else {"axes": draw(st.sampled_from(PLACES))}
    )
    if draw(st.booleans()):
        arguments["rng"] = draw(st.sampled_from(SEEDS))
    return Call(
        draw(st.sampled_from(("denoise", "inpaint"))),
        [*TINY[:-1], *draw(some_options(1))],
        about=f"{array.shape} {array.dtype}",
        array=array,
        mask=draw(st.sampled_from(masks)),
        arguments=arguments,
    )


@st.composite
def by_models(draw: st.DrawFn) -> Call:
    """The file of a model with other bytes, or signed and with another value somewhere in it."""
    array, is_signed = draw(arrays()), draw(st.booleans())
    change, steps, kind = draw(damages()), draw(places()), draw(st.sampled_from(sorted(REPLACED)))

    def apply(world: World) -> None:
        if not is_signed:
            return damage(world.folder / MODEL, change)
        content = copy.deepcopy(read(world.folder / MODEL))
        replace_at(content, steps, REPLACED[kind])
        write(world.folder / MODEL, content)
        return None

    arguments = {"channel_axis": -1} if array.ndim == 3 else {}
    about = f"{array.shape} {array.dtype} {f'{steps} {kind}' if is_signed else change}"
    return FromModel("restore", [], "saved.tvae", apply, about, array=array, arguments=arguments)


CALLS = {"arrays": by_arrays(), "models": by_models()}
