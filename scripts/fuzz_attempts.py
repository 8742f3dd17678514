"""An attempt of the fuzzer: a command, what is done to the files before it, and what must hold when it ends well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from scripts.fuzz_world import DONE, TINY, World, results, run_command
from tvae.config.every_option import every_option
from tvae.io.stack_file import read_picture
from tvae.runs.result import result_file

VALUES = (
    "0", "1", "-1", "2", "3", "7", "0.5", "-0.5", "1e-30", "1e30", "1e300", "nan", "inf", "null", "true", "x", "''",
    "[]", "[1]", "[0]", "[-1]", "[1,2]", "{}", "{a:1}", "a b", "ä", "${seed}", "${nowhere}", "???",
    "999999999999999999999",
)  # fmt: skip
# Options with which a run is allowed to take long, and what is allowed of them here
SMALL = ("1", "2", "3", "0", "-1", "null", "x", "1.5", "[]")
LONG = {
    "epochs", "n_patches", "restoration.n_rounds", "ea.n_generations", "ea.n_children", "ea.n_parents", "batch_size",
    "dataset.n_points", "dataset.size", "model.n_latents", "model.hidden", "states.n_states", "compile", "device",
}  # fmt: skip
# What makes sense of some, so that what follows is tried as well
FITTING: dict[str, tuple[str, ...]] = {
    "noise": ("25", "3"), "missing": ("0.3", "0.9"), "peak": ("10", "1e-3"), "outlier_share": ("0.1", "0.9"),
    "outliers": ("keep", "fill"),
    "quality": ("20",), "correlation": ("1.5", "16"), "sigma_map": ("sigma.tiff", "grey.png", "nan.tiff"),
    "mask": ("mask.png", "masks.tif", "masks"), "clean": ("grey.png", "nan.tiff", "stack.tif", "photos"),
    "run": (DONE, "empty", "."), "init_from": (DONE, "empty"),
    "pages": ("0", "0-1", "1,0", "0,0", "0-99999999999999", "²", "-1", "2-1", ","),
    "axes": ("YX", "TYX", "TYXC", "CYX", "XY", "YXS", "tyx", "YXT", "ZTYX", "Y", "ß"),
    "output": ("new.png", "new.tif", "new.npy", "new.gif", "grey.png", "link.png", "empty", "/dev/null",
               "nowhere/a.png", "new", f"{DONE}/restored.png", "photos/a.png", "new.PNG", "a.txt", ".png"),
}  # fmt: skip
OPTIONS = [*every_option(), "dataset.nowhere", "+odd", "~noise", "hydra.job.name", "dataset", "model", "experiment"]
TASKS = st.sampled_from(("denoise", "inpaint", "train"))


@dataclass(frozen=True)
class Attempt:
    """A command, after something was done to the files of the world."""

    name: str
    words: list[str]
    directory: str = "run"
    change: Callable[[World], object] = field(default=lambda world: None, repr=False)
    about: str = ""  # what was changed
    may_differ: bool = False  # from the finished run: something else is asked for
    where: str = "hydra.run.dir"  # the option that names the directory
    n_lines_max: int = 15  # of what is told of a mistake

    def run(self, world: World) -> Any:
        return run_command(self.name, [*self.words, f"{self.where}={self.directory}"])

    def value(self, name: str) -> str | None:
        """Of an option that the command was given."""
        return next((word.partition("=")[2] for word in reversed(self.words) if word.startswith(f"{name}=")), None)

    @property
    def may_change(self) -> list[str]:
        """Files and folders in which something may be other than before."""
        outputs = [self.value("output") or ""] if "overwrite=true" in self.words else []
        trained = [DONE] if self.value("run") == DONE and self.value("epochs") else []
        read = [self.value(name) for name in ("image", "mask", "clean", "sigma_map")]
        return [self.directory, *trained, *(name for name in outputs if name not in read)]

    def compare(self, world: World) -> list[str]:
        """What is wrong with the result, and whether the same is made by repetition."""
        if self.directory == DONE and not self.may_differ:
            expected = results(str(world.folder.parent / "template" / DONE))
            return [] if results(DONE) == expected else ["a finished run has another result now"]
        made, there = results(self.directory), world.hashes(but=[self.directory])
        problems = self._other_kind(world)
        if "restart=true" in self.words and self.value("output") is not None:
            return problems  # its output is there now, and is not overwritten
        if self.run(world) != 0:
            return [*problems, "the same command, repeated, fails"]
        if results(self.directory) != made or world.hashes(but=[self.directory]) != there:
            problems.append("the same command, repeated, has another result")
        return problems

    def _other_kind(self, world: World) -> list[str]:
        """Of a picture or a stack that was restored: whether the result has its size and type."""
        found, image = result_file(world.folder / self.directory), self.value("image")
        if found is None or image is None or not (world.folder / image).is_file():
            return []
        given, made = read_picture(world.folder / image, self.value("axes"), self.value("pages")), read_picture(found)
        if (given.pixels.size, given.dtype) == (made.pixels.size, made.dtype):
            return []
        return [f"{found.name}: {made.pixels.shape} {made.dtype}, but {image}: {given.pixels.shape} {given.dtype}"]


def an_option(name: str) -> st.SearchStrategy[str]:
    """The name with a value, of any kind or a fitting one."""
    told = every_option().get(name)
    fitting = FITTING.get(name, ()) + (tuple(told.metadata.get("choices", ())) if told is not None else ())
    any_kind = st.sampled_from(SMALL if name in LONG else VALUES)
    values = st.one_of(st.sampled_from(fitting), any_kind) if fitting else any_kind
    return values.map(lambda value: f"{name}={value}")


def some_options(n_most: int = 3) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(OPTIONS).flatmap(an_option), max_size=n_most)


def damages() -> st.SearchStrategy[tuple[str, int, int]]:
    """What `fuzz_world.damage` does."""
    kinds = ("none", "flip", "cut", "empty", "noise", "folder", "link", "gone", "longer", "pipe")
    return st.tuples(st.sampled_from(kinds), st.integers(0, 5000), st.integers(1, 255))


def without(options: list[str], *beginnings: str) -> list[str]:
    return [word for word in options if not word.startswith(beginnings)]


OF_OTHER_DATA = without(TINY, "dataset", "effort")
