"""Switches in the environment."""

from __future__ import annotations

import os

from tvae.errors import UserError

YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def is_on(name: str) -> bool:
    """True if the variable says yes or is not set; a word for neither is refused."""
    value = os.environ.get(name, "").strip().lower()
    if value not in ("", *YES, *NO):
        raise UserError(f"{name}={value}: must be one of {', '.join((*YES, *NO))}")
    return value not in NO
