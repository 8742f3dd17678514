"""YAML files that somebody else may have written: plain values only.

A few lines of aliases can stand for more values than fit into memory, and deep nesting takes for ever to read: neither
is in a file that this program writes, so both are refused before anything is made of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from tvae.io.regular import check_regular

BYTES_MAX, DEPTH_MAX = 1 << 18, 10


def load_yaml(path: Path) -> Any:
    """Read a file of plain values with OmegaConf; raises any exception for other content."""
    check_regular(path)
    if path.stat().st_size > BYTES_MAX:
        raise ValueError(f"more than {BYTES_MAX >> 10} kB")
    return parse_yaml(path.read_text("utf-8"))


def parse_yaml(text: str) -> Any:
    """Parse the content of such a file."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases are not read")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            raise ValueError("nested too deeply")
    return OmegaConf.create(text)
