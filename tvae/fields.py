"""Options as dataclass fields that carry their own description."""

from __future__ import annotations

from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

Options = TypeVar("Options")
T = TypeVar("T")

# Type of an option that is null only until the recipe has filled it in: whoever computes with it sees a value.
if TYPE_CHECKING:
    Open = Annotated[T, "open"]
else:
    Open = Optional


def option(default: Any, meaning: str, changes_result: bool = True, **told: Any) -> Any:
    """A field with its meaning, its limits (`ge`, `gt`, `le`, `lt` or `choices`), and what else is told about it.

    changes_result      a run directory belongs to the values of these options; the others may differ when it is resumed
    is_open=True        null in the configuration of a command, for the recipe to fill in
    only_for="image"    means something to data sets of this schema only
    of_data=True        changes the data trained on
    is_path=True        a path, taken as it is typed; has_commas=True: a list, likewise
    beside_image=True   a file of the image's size, or of a folder of images a folder of such files
    for_arrays=False    means nothing to the Python calls, which are given an array
    """
    metadata = {"meaning": meaning, "changes_result": changes_result, **told}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def opened(schema: type[Options]) -> Options:
    """Default values, but null where the recipe decides."""
    return schema(**{f.name: None for f in fields(schema) if f.metadata.get("is_open")})  # type: ignore[arg-type]


def fill(options: Options, **values: Any) -> Options:
    """A copy in which open options (None) have these values."""
    return replace(options, **{name: v for name, v in values.items() if getattr(options, name) is None})  # type: ignore[type-var]
