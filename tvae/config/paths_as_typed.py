"""Paths on the command line, taken as they are typed, before Hydra's grammar reads them.

`image=photo (1).png` is no value in that grammar, `image=1e5` is a number, `image=a,b.png` a sweep. In a single run the
rest of the word is the path, whatever it holds; in a sweep the grammar stays, because its commas mean something there.
Only `null` keeps its meaning, no path, and `hydra.run.dir` its interpolations. A leading `~` is the home folder.
"""

from __future__ import annotations

import copy
import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from tvae.config.every_option import options_told
from tvae.errors import UserError, refuse
from tvae.io.formats import FORMATS

RUN_DIR = "hydra.run.dir"
PATHS = (*options_told("is_path", True), RUN_DIR)
LISTS = options_told("has_commas", True)
MISSING = "???"  # what OmegaConf takes for a value that has yet to be given
TYPED = re.compile(rf"(\+{{0,2}}(?:{'|'.join(map(re.escape, (*PATHS, *LISTS)))}))=(.*)", re.DOTALL)
NAMED = re.compile(r"(?!\.{0,2}/)[+~]*[A-Za-z0-9_.@/$:-]+=", re.ASCII)  # how an option begins; ./ begins a file
# Hydra's own flags that are followed by a word, which is no path of ours
FOLLOWED = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--cfg", "-c", "--package", "-p")


def as_typed(words: Sequence[str], shorthand: Sequence[str] = ()) -> list[str]:
    """The words of a command line as Hydra has to be told them; `shorthand`: options that bare words stand for."""
    words = _named(words, shorthand)
    return list(words) if is_sweep(words) else [_quoted_where_needed(word) for word in words]


def is_sweep(words: Sequence[str]) -> bool:
    """True if a command line asks for many runs."""
    return any(word == "-m" or (len(word) > 3 and "--multirun".startswith(word)) for word in words) or (
        "hydra.mode=MULTIRUN" in words
    )


def how_to_quote(word: str) -> str:
    """A hint for a complaint about a path in a sweep, in which commas part values; else nothing."""
    typed = TYPED.fullmatch(word)
    if typed is None:
        return ""
    return f"; in a sweep names like this need quotes: {shlex.quote(f'{typed[1]}={_in_quotes(typed[2])}')}"


def escaped(text: str) -> str:
    """The text with `${` escaped, so that OmegaConf does not interpolate."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def change_paths(config: Any, change: Callable[[str], str]) -> None:
    """Change all paths that a configuration holds."""
    for name in PATHS:
        node, _, key = name.rpartition(".")
        holder = getattr(config, node, None) if node else config
        value = getattr(holder, key, None)
        if isinstance(value, str):
            setattr(holder, key, change(value))


def as_written(config: Any) -> Any:
    """A copy to be written as YAML: when it is read, paths will be what they are."""
    written = copy.deepcopy(config)
    change_paths(written, escaped)
    return written


def _named(words: Sequence[str], shorthand: Sequence[str]) -> list[str]:
    """Bare words with the names of the options that they stand for."""
    named: list[str] = []
    left = list(shorthand)
    for before, word in zip(["", *words], words, strict=False):
        is_bare = not word.startswith("-") and before not in FOLLOWED and not _is_option(word)
        if not is_bare or (word.startswith("~") and "/" not in word) or not shorthand:
            named.append(word)
            continue
        refuse(not left, f"{word}: one word too many; words without = stand for {' and '.join(shorthand)}")
        named.append(f"{left.pop(0)}={word}")
    return named


def _is_option(word: str) -> bool:
    """True for NAME=VALUE, unless it is the name of an existing picture, as `a=b.png` may be."""
    is_picture = Path(word).suffix.lower() in FORMATS and not TYPED.fullmatch(word) and os.path.isfile(word)
    return NAMED.match(word) is not None and not is_picture


def _quoted_where_needed(word: str) -> str:
    """Quote the path in one word. What the grammar reads as it stands is unchanged: it names run directories."""
    typed = TYPED.fullmatch(word)
    if typed is None or typed[2].lower() == "null":
        return word
    name, path = typed[1], typed[2]
    if not path:
        raise UserError(f"{word}: no {'value' if name.lstrip('+') in LISTS else 'path'} was given")
    if name.endswith(RUN_DIR):
        path = os.path.expanduser(path)
        return f"{name}={path}" if _reads_as(path) else f"{name}={QuotedString(path, Quote.single).with_quotes()}"
    if _reads_as(path) and path != MISSING and "${" not in path:
        return word
    return f"{name}={_in_quotes(path if path != MISSING else f'./{path}')}"


def _in_quotes(path: str) -> str:
    return QuotedString(escaped(path), Quote.single).with_quotes()


def _reads_as(path: str) -> bool:
    """True if Hydra's grammar reads the path as this very text."""
    try:
        (override,) = OverridesParser.create().parse_overrides([f"path={path}"])
        return not override.is_sweep_override() and override.value() == path
    except HydraException:
        return False
