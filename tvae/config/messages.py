"""Failures as one line that a user can act on, with their exit codes."""

from __future__ import annotations

import argparse
import difflib
import errno
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, RangeSweep
from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from tvae.config.checks import resolve
from tvae.config.every_option import did_you_mean, every_option
from tvae.config.paths_as_typed import FOLLOWED, how_to_quote, is_sweep
from tvae.config.schema import conf_dir
from tvae.errors import Failure, UserError, refuse
from tvae.io.atomic import NO_ROOM

LESS_MEMORY = (
    "less is needed with fewer model.n_latents, fewer states.n_states or a smaller batch_size, for images with a "
    "larger dataset.train_stride, and states.memmap=true keeps the states in a file"
)
KILLED = (
    "a job was killed, perhaps because memory ran out, and the others were stopped; the same command resumes "
    "what is missing, and needs less memory with fewer jobs at a time (hydra.launcher.n_jobs)"
)


def explain(error: Exception) -> tuple[list[str], int] | None:
    """A line for each thing that is wrong, and the exit code; None: it was not foreseen."""
    if isinstance(error, Failure):
        return list(error.problems), error.exit_code
    if isinstance(error, (HydraException, OmegaConfBaseException)) or "Config group override" in str(error):
        return _typed_problems(error), 2
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return [f"{error.filename or 'a file of the run'}: cannot be written ({error.strerror})"], 1
    if (wanted := _memory_wanted(error)) is not None:
        return [f"out of memory{wanted}; {LESS_MEMORY}"], 1
    if isinstance(error, FileExistsError):  # where a directory was to be made
        return [f"{error.filename}: exists already and is not a folder"], 2
    if isinstance(error, OSError) and error.filename is not None:
        return [f"{error.filename}: {error.strerror}"], 2
    if isinstance(error, OSError):
        return [f"the system says: {error.strerror or error}"], 1
    if str(error).startswith("The --resolve flag"):  # Hydra's, as a ValueError
        return [str(error)], 2
    if isinstance(error, RuntimeError) and "srun" in str(error):
        return ["hydra/launcher: this machine is not part of a SLURM cluster (srun is missing)"], 2
    if type(error).__name__ == "TerminatedWorkerError":  # joblib's
        return [KILLED], 1
    if type(error).__module__.startswith("submitit."):  # of a job on another machine; its text ends with the cause
        return [str(error).strip().splitlines()[-1]], 1
    return None


def _memory_wanted(error: Exception) -> str | None:
    """The size of a failed allocation, as far as it is known; None: the error is not about memory."""
    text = str(error)
    is_short = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or getattr(error, "errno", None) == errno.ENOMEM
    if not is_short and not (isinstance(error, RuntimeError) and re.search("allocat|bad_alloc|Storage size", text)):
        return None
    in_bytes = re.search(r"tried to allocate (\d+) bytes", text)
    in_words = re.search(r"(?i)(?:tried|unable) to allocate ([\d.]+ [KMGTPE]i?B)", text)
    if in_bytes:
        return f": {int(in_bytes[1]) / 2**30:,.1f} GB were requested at once"
    return f": {in_words[1]} were requested at once" if in_words else ""


def check_globs(words: Sequence[str]) -> None:
    """Raise `UserError` for glob(...) that matches no option of a group, or an empty range(...).

    Hydra would run no job, and not say so.
    """
    places = [Path(conf_dir()), *map(Path, filter(None, [_config_dir()]))]
    for word in words:
        if "glob(" not in word and "range(" not in word:
            continue
        try:
            (parsed,) = OverridesParser.create().parse_overrides([word])
        except Exception:  # it is no override at all, which composing will say
            continue
        pattern, group = parsed.value(), parsed.key_or_group
        is_empty = isinstance(pattern, RangeSweep) and not [*parsed.sweep_iterator()]
        refuse(is_empty, f"{word}: has no value, so that there is nothing to run")
        if isinstance(pattern, Glob) and not group.startswith("hydra"):
            names = [file.stem for place in places for file in (place / group).glob("*.yaml")]
            hint = "glob is for groups of options, such as dataset; several files are listed, image=a.png,b.png"
            refuse(not pattern.filter(names), f"{word}: matches nothing ({hint})")


def flags_last(words: Sequence[str]) -> list[str]:
    """The words of a command line with Hydra's flags behind the options, between which it does not read them.

    Raises `UserError` for words with dashes that are no flags, to which Hydra would print its usage.
    """
    places = [
        i
        for i, (before, word) in enumerate(zip(["", *words], words, strict=False))
        if word.startswith("-") or before in FOLLOWED
    ]
    flags = [words[i] for i in places]
    parser = get_args_parser()
    known = [*parser._option_string_actions]
    problems = [
        f"{word}: {_about_flag(word, known)}"
        for before, word in zip(["", *flags], flags, strict=False)
        if before not in FOLLOWED and not _is_flag(word.partition("=")[0], known)
    ]
    if problems:
        raise UserError(*problems)
    try:
        argparse.ArgumentParser(add_help=False, parents=[parser], exit_on_error=False).parse_known_args(flags)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from None
    return [word for i, word in enumerate(words) if i not in places] + flags


def _is_flag(name: str, known: Sequence[str]) -> bool:
    """True for a flag, long ones also abbreviated."""
    return name in known or (len(name) > 2 and any(each.startswith(name) for each in known if each.startswith("--")))


def _about_flag(word: str, known: Sequence[str]) -> str:
    name, _, value = word.lstrip("-").partition("=")
    if name in every_option():
        return f"options have no dashes, as in {name}={value or 'VALUE'}"
    long_ones = [each for each in known if each.startswith("--")]
    meant = difflib.get_close_matches(word, [*long_ones, "--help-all"], 1)
    return "no such flag" + (f"; did you mean {meant[0]}?" if meant else did_you_mean(name))


def _typed_problems(error: Exception) -> list[str]:
    """The mistake in the words of the command line."""
    words = [word for word in sys.argv[1:] if "=" in word and not word.startswith("-")]
    GlobalHydra.instance().clear()
    with initialize_config_dir(conf_dir(), version_base="1.3"):
        return composition_problems([value for word in words for value in _values(word)], error, _search_path())


def composition_problems(words: Sequence[str], error: Exception, before: Sequence[str] = ()) -> list[str]:
    """A line for each override that cannot be composed, and for each problem of the rest; `error`: from composing all.

    `before`: overrides that precede them. Hydra must be initialised.
    """
    accepted: list[str] = []
    problems: list[str] = []
    for override in words:
        try:
            compose("config", [*before, *accepted, override])
            accepted.append(override)
        except Exception as wrong:
            problems.append(f"{override}: {one_line(wrong)}{_hint(override, wrong)}")
    try:
        resolve(compose("config", [*before, *(word for word in accepted if not word.startswith("hydra"))]))
    except UserError as found:
        problems += found.problems
    return problems or [one_line(error)]


def _config_dir() -> str | None:
    """The folder that was given with --config-dir."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    return parser.parse_known_args()[0].config_dir


def _search_path() -> list[str]:
    """The override by which --config-dir adds a folder, if it was given."""
    folder = _config_dir()
    return [] if folder is None else [f"hydra.searchpath=['file://{Path(folder).absolute()}']"]


def _values(override: str) -> list[str]:
    """A sweep `a=1,2` as `a=1` and `a=2`; anything else unchanged."""
    try:
        (parsed,) = OverridesParser.create().parse_overrides([override])
        if not parsed.is_sweep_override():
            return [override]
        return [f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()]
    except Exception:  # it is no override at all, which composing will say
        return [override]


def _hint(override: str, wrong: Exception) -> str:
    key, _, value = override.partition("=")
    if key == "hydra/launcher" and value.startswith(("joblib", "submitit", "slurm")):
        return f"; is it installed? pip install '.[{'joblib' if value == 'joblib' else 'slurm'}]'"
    if is_sweep(sys.argv[1:]) and isinstance(wrong, OverrideParseException):
        return how_to_quote(override)
    name = key.lstrip("+~")
    is_known = name in every_option() or (Path(conf_dir()) / name).is_dir() or name.startswith("hydra")
    return "" if is_known else did_you_mean(name)


def one_line(error: BaseException) -> str:
    """The part of Hydra's and OmegaConf's messages that says what is wrong."""
    text = str(error.__cause__ if error.__cause__ is not None and "Error merging" in str(error) else error)
    dropped = ("full_key", "object_type", "reference_type", "See ", "Config search", "To append", "provider=")
    lines = [line.strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(dropped))
