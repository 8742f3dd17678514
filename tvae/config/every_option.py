"""Every option by its dotted name: for `--help`, and for what a misspelt name may have meant."""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Sequence
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from tvae.config.schema import Config, conf_dir, register
from tvae.data.sets import KINDS

LIMITS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
WIDTH, WIDTH_LEAST, INDENT = 120, 80, 34  # characters

USAGE = """\
{about}

Usage: {command} [OPTION=VALUE ...]

{places}

{groups}

{options}
"""
PLACES = (
    "Paths are taken as they are typed. -m with values parted by commas runs all of them; --cfg job shows the values "
    "in full, --hydra-help what else Hydra can do. Options come in groups, too:"
)
OPTIONS = "Every option, its value with what was given here (null: chosen for the data at hand), and what it means:"

SHORT_USAGE = """\
{about}

Usage: {command} IMAGE [OUTPUT] [OPTION=VALUE ...]

  image=FILE       picture, stack, folder, or pattern ('photos/*.png') of many
  output=FILE      the result (also -o FILE); its ending tells the kind of file
{own}\
  effort=default   fast, default or best: how long it may take
  clean=FILE       clean version of the picture, if any: tells PSNR and SSIM
  overwrite=true   write over an output that is there

--help-all explains every option.
"""
OF_TASK = {
    "denoise": "  sigma=LEVEL      standard deviation of its noise, if known, in its own units\n",
    "inpaint": "  mask=FILE        picture of the same size, nonzero where a pixel is missing\n",
}


def every_option(datasets: Sequence[type] = tuple(KINDS)) -> dict[str, Field[Any]]:
    """Every option by its dotted name, with those of these data sets; the most general ones first."""
    found: dict[str, Field[Any]] = {}

    def walk(schema: Any, path: str) -> None:
        types = get_type_hints(schema)
        for each in fields(schema):
            if is_dataclass(types[each.name]):
                for kind in datasets if each.name == "dataset" else [types[each.name]]:
                    walk(kind, f"{path}{each.name}.")
            else:
                found.setdefault(f"{path}{each.name}", each)

    walk(Config, "")
    return dict(sorted(found.items(), key=lambda item: "." in item[0]))


def options_told(name: str, value: Any) -> list[str]:
    """Names of the options with this value in their description, see `fields.option`."""
    return [option for option, each in every_option().items() if each.metadata.get(name) == value]


def did_you_mean(key: str, path: str = "") -> str:
    """Suggestions for an unknown name: options of that name elsewhere, or one that is spelt alike."""
    names = list(every_option())
    by_last = {name.rpartition(".")[2]: name for name in reversed(names)}
    key = key.lstrip("+")
    last = key.rpartition(".")[2]
    close = difflib.get_close_matches(f"{path}{key}", names, 1) or [
        by_last[name] for name in difflib.get_close_matches(last, list(by_last), 1)
    ]
    meant = by_last.get(last) or next(iter(close), None)
    return f"; did you mean {meant}?" if meant is not None else ""


def help_text(
    command: str, about: str, shorthand: Sequence[str], overrides: Sequence[str], columns: int = WIDTH
) -> str:
    """The text of `--help-all`, and of `--help` for other commands; `overrides`: the words given beside it.

    `columns`: of the terminal; a narrow one shortens the lines.
    """
    width = min(max(columns, WIDTH_LEAST), WIDTH)
    register()
    with initialize_config_dir(conf_dir(), version_base="1.3"):
        cfg = compose("config", list(overrides))
    places = "".join(f"[{name.upper()} " for name in shorthand).rstrip() + "]" * len(shorthand)
    groups = sorted(path.name for path in Path(conf_dir()).iterdir() if path.is_dir() and path.name != "hydra")
    head = USAGE.format(
        about=_filled(about, width),
        command=f"{command} {places}".strip(),
        places=textwrap.fill(PLACES, width),
        groups="\n".join(_choices(group, width) for group in groups),
        options=textwrap.fill(OPTIONS, width),
    )
    kind = OmegaConf.get_type(cfg.dataset)
    options = every_option(KINDS if kind is None else [kind])
    return head + "\n".join(_line(name, each, OmegaConf.select(cfg, name), width) for name, each in options.items())


def short_help(command: str, about: str, task: str) -> str:
    """The text of `--help` for a command that restores a picture: its most used options."""
    return SHORT_USAGE.format(about=_filled(about, WIDTH_LEAST), command=command, own=OF_TASK[task])


def _filled(text: str, width: int) -> str:
    """The paragraphs of a text; those that are set in stay as they are."""
    parts = text.strip().split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else textwrap.fill(part, width) for part in parts)


def _choices(group: str, width: int) -> str:
    names = sorted(path.stem for path in (Path(conf_dir()) / group).glob("*.yaml"))
    return textwrap.fill(f"{group}=" + " | ".join(names), width, initial_indent="  ", subsequent_indent=" " * 6)


def as_text(value: Any) -> str:
    """A value as the command line has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _line(name: str, each: Field[Any], value: Any, width: int) -> str:
    told = each.metadata
    limits = [text.format(told[key]) for key, text in LIMITS.items() if told.get(key, math.inf) != math.inf]
    if "choices" in told:
        limits.append("|".join(told["choices"]))
    meaning = told.get("meaning", "") + (f" ({', '.join(limits)})" if limits else "")
    wrapped = textwrap.wrap(meaning, width - INDENT) or [""]
    start = f"  {name}={as_text(value)}"
    lines = [f"{start:<{INDENT}}{wrapped[0]}"] if len(start) < INDENT else [start, " " * INDENT + wrapped[0]]
    return "\n".join([*lines, *(" " * INDENT + line for line in wrapped[1:])])
