"""Options as dataclass fields that carry their own description."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, meaning: str, changes_result: bool = True, **limits: Any) -> Any:
    """A field with its meaning and limits: `ge`, `gt`, `le`, `lt` or `choices`.

    `changes_result`: a run directory belongs to the values of these options; the others may differ when it is resumed.
    """
    metadata = {"meaning": meaning, "changes_result": changes_result, **limits}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)
