"""What the fuzzer tries on what was written before: run directories, configurations, checkpoints, models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from scripts.fuzz_attempts import VALUES, Attempt, an_option, damages
from scripts.fuzz_world import DONE, TINY, World, damage
from tvae.io.sealed import read, write
from tvae.runs.files import CHECKPOINT, CONFIG, METRICS, PREVIOUS

FILES = (CONFIG, METRICS, CHECKPOINT, PREVIOUS, "data.sha256", "history.csv", "run.log", "tensorboard", "figures", "no")
OF_RESTORATION = (
    "dataset.stride",
    "dataset.average",
    "restoration.n_rounds",
    "effort",
    "epochs",
    "output",
    "device",
    "noise",
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
    """Which key to take at each step into a nested dictionary."""
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


RUNS = {
    "run directories": by_run_directories(), "restorations": by_restorations(), "configurations": by_configurations(),
    "checkpoints": by_checkpoints(),
}  # fmt: skip
