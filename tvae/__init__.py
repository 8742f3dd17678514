"""Variational autoencoders with binary latents, trained by evolution and Adam, without an encoder network."""

from tvae import starting

if starting.is_command():  # before anything else is imported
    starting.start()

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvae.api import denoise, inpaint
    from tvae.reusable import Model, fit, load

__version__ = "0.1.0"
__all__ = ["Model", "denoise", "fit", "inpaint", "load"]


def __getattr__(name: str) -> Any:
    """The calls for notebooks, loaded when they are wanted."""
    if name in __all__:
        with warnings.catch_warnings():  # the bar is plain text, and wants no widgets
            warnings.filterwarnings("ignore", "IProgress not found")
            from tvae import api, reusable

        return getattr(api if name in ("denoise", "inpaint") else reusable, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
