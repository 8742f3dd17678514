"""Attempts of the fuzzer: a command or a call, changes to the files before it, and conditions on its end.

Commands that train (options, other data, files, stacks, folders, outputs, many runs), commands on written runs (run
directories, configurations, checkpoints) and Python calls (arrays, models in files) are drawn by hypothesis.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import tvae
from scripts.fuzz.world import DONE, MODEL, TINY, World, damage, results, run_command
from tvae.config.every_option import every_option
from tvae.errors import Failure
from tvae.io.sealed import read, write
from tvae.io.stack_file import read_picture
from tvae.runs.files import CHECKPOINT, CONFIG, METRICS, PREVIOUS
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
# Sensible values of some options, so that what follows is tried as well
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
PICTURES = ("grey.png", "colour.png", "alpha.png", "deep.png", "nan.tiff", "link.png")
STACKS = ("stack.tif", "stack.gif", "stack.npy")
NO_PICTURES = ("points.npy", "nowhere.png", "/dev/null", "model.tvae", "space.yaml", "photos")
CORRUPTIONS = (
    ["corruption=poisson", "peak=20"], ["corruption=correlated", "noise=20"],
    ["corruption=saltpepper", "outlier_share=0.1"],
    ["corruption=jpeg", "quality=30"], ["noise=25", "missing=0.3"], ["missing=0.5", "missing_per=channel"],
    ["sigma_map=sigma.tiff"], ["noise_model=poisson_gaussian"], ["noise_model=correlated"], ["noise_model=gaussian"],
)  # fmt: skip
FILES = (CONFIG, METRICS, CHECKPOINT, PREVIOUS, "data.sha256", "history.csv", "run.log", "tensorboard", "figures", "no")
OF_RESTORATION = (
    "dataset.stride", "dataset.average", "restoration.n_rounds", "effort", "epochs", "output", "device", "noise",
)  # fmt: skip
SHAPES = ((24, 20), (8, 8), (3, 30), (1, 1), (24, 20, 3), (24, 20, 2), (0, 5), (24, 20, 4), (16, 17, 1), (3, 24, 20))
TYPES = ("uint8", "uint16", "float32", "float64", "float16", "int32", "bool", "complex64", "object")
PLACES = (None, None, "YX", "TYX", "YXC", "CYX", "YXT", "", "YY", 3)
PACKAGE = Path(tvae.__file__).parent
SEEDS = (0, 1, None, -1, 2**70, 1.5, "x", True)


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
        """The value of an option that the command was given, or None."""
        return next((word.partition("=")[2] for word in reversed(self.words) if word.startswith(f"{name}=")), None)

    @property
    def may_change(self) -> list[str]:
        """Files and folders in which something may be other than before."""
        outputs = [self.value("output") or ""] if "overwrite=true" in self.words else []
        trained = [DONE] if self.value("run") == DONE and self.value("epochs") else []
        read = [self.value(name) for name in ("image", "mask", "clean", "sigma_map")]
        return [self.directory, *trained, *(name for name in outputs if name not in read)]

    def compare(self, world: World) -> list[str]:
        """Problems with the result, and with that of the same command repeated."""
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
        """A problem if a restored picture or stack has another size or type than the one given."""
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
    """Arguments of `damage`."""
    kinds = ("none", "flip", "cut", "empty", "noise", "folder", "link", "gone", "longer", "pipe")
    return st.tuples(st.sampled_from(kinds), st.integers(0, 5000), st.integers(1, 255))


def without(options: list[str], *beginnings: str) -> list[str]:
    return [word for word in options if not word.startswith(beginnings)]


OF_OTHER_DATA = without(TINY, "dataset", "effort")


@st.composite
def by_options(draw: st.DrawFn) -> Attempt:
    picture = draw(st.sampled_from(PICTURES))
    return Attempt(draw(TASKS), [f"image={picture}", *TINY, *draw(some_options())])


@st.composite
def by_noise(draw: st.DrawFn) -> Attempt:
    """Noise of all kinds, added or said to be there."""
    chosen = draw(st.lists(st.sampled_from(CORRUPTIONS), min_size=1, max_size=2))
    words = [word for option in chosen for word in option]
    picture = draw(st.sampled_from((*PICTURES, *STACKS)))
    return Attempt(draw(TASKS), [f"image={picture}", *TINY, *words, *draw(some_options(1))])


@st.composite
def by_data(draw: st.DrawFn) -> Attempt:
    """Data that are no images."""
    kinds = (["dataset=array", "dataset.file=points.npy"], ["dataset=bars", "dataset.n_points=30"])
    return Attempt("train", [*draw(st.sampled_from(kinds)), *OF_OTHER_DATA, *draw(some_options())])


@st.composite
def by_files(draw: st.DrawFn) -> Attempt:
    """A picture, a mask or a clean picture with other bytes, or another file in its place."""
    roles = {"image": "grey.png", "mask": "mask.png", "clean": "grey.png", "sigma_map": "sigma.tiff"}
    for role in draw(st.sets(st.sampled_from(sorted(roles)), max_size=2)):
        roles[role] = draw(st.sampled_from((*PICTURES, *STACKS, *NO_PICTURES)))
    victim, change = draw(st.sampled_from(sorted(roles))), draw(damages())
    source, target = roles[victim], f"damaged{Path(roles[victim]).suffix}"
    roles[victim] = target
    given = [role for role in roles if role in ("image", victim) or draw(st.booleans())]

    def apply(world: World) -> None:
        if (world.folder / source).is_file() and Path(source).name == source:
            shutil.copy(world.folder / source, world.folder / target)
            damage(world.folder / target, change)

    return Attempt(draw(TASKS), [*(f"{role}={roles[role]}" for role in given), *TINY], "run", apply, str(change))


@st.composite
def by_stacks(draw: st.DrawFn) -> Attempt:
    words = [f"image={draw(st.sampled_from(STACKS))}", *TINY]
    for name in draw(st.lists(st.sampled_from(("pages", "axes", "mask", "clean", "output")), max_size=3, unique=True)):
        words.append(draw(an_option(name)))
    return Attempt(draw(TASKS), [*words, *draw(some_options(1))])


@st.composite
def by_folders(draw: st.DrawFn) -> Attempt:
    """Every picture of a folder, one of which may be damaged."""
    words = [
        draw(st.sampled_from(("image=photos", "image=photos/*.png", "image=empty", "image=p*/?.*", "image=photos/**")))
    ]
    words += draw(st.sampled_from(([], ["shared=true"], ["output=results"], ["output=photos"], ["output=grey.png"])))
    words += draw(st.sampled_from(([], ["mask=masks"], ["mask=mask.png"], ["clean=photos"], ["mask=empty"])))
    change = draw(damages())
    return Attempt(
        draw(TASKS),
        [*words, *TINY, "epochs=1", *draw(some_options(1))],
        change=lambda world: damage(world.folder / "photos" / "b.png", change),
        about=str(change),
        n_lines_max=100,  # some for each picture
    )


@st.composite
def by_outputs(draw: st.DrawFn) -> Attempt:
    """The output as an option, or as the second of two bare words."""
    picture, output = draw(st.sampled_from((*PICTURES, *STACKS))), draw(st.sampled_from(FITTING["output"]))
    words = draw(st.sampled_from(([picture, output], [f"image={picture}", f"output={output}"], [picture])))
    more = draw(st.sampled_from(([], ["overwrite=true"], ["restart=true"], ["third.png"], ["mask=mask.png"])))
    named = [f"image={picture}", f"output={output}"] if len(words) == 2 and words[0] == picture else words
    task = draw(st.sampled_from(("denoise", "inpaint")))
    return Attempt(task, [*(named if "overwrite=true" in more else words), *more, *TINY])


@st.composite
def by_many_runs(draw: st.DrawFn) -> Attempt:
    """A sweep over several values of an option."""
    name = draw(st.sampled_from(("seed", "noise", "image", "effort", "epochs", "mask", "output", "lr.max", "run")))
    values = draw(st.lists(an_option(name), min_size=1, max_size=2, unique=True))
    word = f"{name}={','.join(value.partition('=')[2] for value in values)}"
    words = ["-m", "image=grey.png", *TINY, "epochs=1", word]
    return Attempt(draw(TASKS), words, where="hydra.sweep.dir")


@st.composite
def by_searches(draw: st.DrawFn) -> Attempt:
    """A search of two trials, in a space that may be wrong."""
    lines = st.sampled_from((
        "lr.max: {low: 0.001, high: 0.05}", "epochs: {low: 1, high: 2}", "epochs: {choices: [1, 2]}", "seed: 3", "[",
        "", "noise: {low: 1, high: 2}", "nowhere: {low: 1, high: 2}", "model: {choices: [linear]}", "lr.max: {low: 1}",
        "states.n_states: {low: 1, high: 100000}", "&a [*a]", "ea.selection: {choices: [posterior, odd]}",
    ))  # fmt: skip
    text = "\n".join(draw(st.lists(lines, min_size=1, max_size=2))) + "\n"
    asked = ["n_trials=2", "n_trials=0", "n_trials=x", "objective=psnr", "objective=elbo_test", "objective=x"]
    words = [
        "image=grey.png",
        *without(TINY, "epochs"),
        "epochs=1",
        f"space={draw(st.sampled_from(('space.yaml', 'x')))}",
    ]
    return Attempt(
        "search",
        [*words, "n_trials=2", *draw(st.lists(st.sampled_from(asked), max_size=1)), *draw(some_options(1))],
        change=lambda world: (world.folder / "space.yaml").write_text(text),
        about=repr(text),
    )


@st.composite
def by_run_directories(draw: st.DrawFn) -> Attempt:
    """A file of a finished run is damaged, and the command repeated, or another one run on it."""
    name, change, is_finished = draw(st.sampled_from(FILES)), draw(damages()), draw(st.booleans())

    def apply(world: World) -> None:
        if not is_finished:
            (world.folder / DONE / METRICS).unlink()
        damage(world.folder / DONE / name, change)

    about = f"{name}: {change}"
    if draw(st.booleans()):
        return Attempt("denoise", ["image=grey.png", *TINY], DONE, apply, about)
    task = draw(st.sampled_from(("denoise", "inpaint")))
    return Attempt(task, [f"run={DONE}"], "again", apply, about, may_differ=True)


@st.composite
def by_restorations(draw: st.DrawFn) -> Attempt:
    """A finished run restored from, with other options."""
    words = draw(st.lists(st.sampled_from(OF_RESTORATION).flatmap(an_option), max_size=2))
    directory = draw(st.sampled_from(("again", DONE, "photos")))
    return Attempt(draw(st.sampled_from(("denoise", "inpaint", "train"))), [f"run={DONE}", *words], directory)


@st.composite
def by_configurations(draw: st.DrawFn) -> Attempt:
    """A line of config.yaml has another value."""
    number, value = draw(st.integers(0, 60)), draw(st.sampled_from((*VALUES, "&a [*a]", "!!python/object:os.system x")))

    def apply(world: World) -> None:
        path = world.folder / DONE / CONFIG
        lines = path.read_text().splitlines()
        where = number % len(lines)
        if lines[where].partition(":")[0].strip() not in ("epochs", "n_generations", "n_rounds", "compile"):
            lines[where] = f"{lines[where].partition(':')[0]}: {value}"
        path.write_text("\n".join(lines) + "\n")

    return Attempt("denoise", [f"run={DONE}"], "again", apply, f"line {number}: {value}", may_differ=True)


@st.composite
def by_checkpoints(draw: st.DrawFn) -> Attempt:
    """A value somewhere in a checkpoint is another one, and the checksum is right."""
    steps, kind = draw(places()), draw(st.sampled_from(sorted(REPLACED)))

    def apply(world: World) -> None:
        path = world.folder / DONE / CHECKPOINT
        content = copy.deepcopy(read(path))
        replace_at(content, steps, REPLACED[kind])
        write(path, content)
        (world.folder / DONE / METRICS).unlink()
        (world.folder / DONE / PREVIOUS).unlink(missing_ok=True)

    return Attempt("denoise", ["image=grey.png", *TINY], DONE, apply, f"{steps} {kind}", may_differ=True)


def places() -> st.SearchStrategy[list[int]]:
    """Keys to take at each step into a nested dictionary."""
    return st.lists(st.integers(0, 10), min_size=3, max_size=8)


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


def replace_at(content: Any, steps: list[int], change: Callable[[Any], Any]) -> None:
    """Walk down into nested dictionaries and lists, and change what is there."""
    for depth, step in enumerate(steps):
        keys = list(content) if isinstance(content, dict) else list(range(len(content)))
        if not keys:
            return
        key = keys[step % len(keys)]
        value = content[key]
        if not isinstance(value, (dict, list)) or depth == len(steps) - 1:
            content[key] = None if isinstance(value, torch.Tensor) and not value.dim() else change(value)
            return
        content = value


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
    """True if this program raised the error as a message, and not something that it called."""
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


ATTEMPTS: dict[str, st.SearchStrategy[Attempt]] = {
    "options": by_options(), "noise": by_noise(), "other data": by_data(), "files": by_files(), "stacks": by_stacks(),
    "folders": by_folders(), "outputs": by_outputs(), "many runs": by_many_runs(), "searches": by_searches(),
    "run directories": by_run_directories(), "restorations": by_restorations(), "configurations": by_configurations(),
    "checkpoints": by_checkpoints(), "arrays": by_arrays(), "models": by_models(),
}  # fmt: skip
