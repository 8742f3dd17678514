"""The compiled kernel: the one that came with the package, one that was compiled before, or one compiled now.

What is compiled is kept in `TVAE_CACHE_DIR`, by default `tvae` in the user's cache folder, under a name that depends on
the sources, the compiler that `CXX` names and the processor. Before it is loaded its hash is checked, and before it is
called the version of its sources and the sizes of the structures that it takes. Without a compiler, or with
`TVAE_NATIVE=0` in the environment, there is no kernel, and torch does the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import pooch
import torch

from tvae.backends.native import build
from tvae.backends.native.bindings import C_TYPES, STRUCTURES
from tvae.errors import UserError

log = logging.getLogger(__name__)

PREBUILT = build.FOLDER / "prebuilt"  # kernels that a wheel carries
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
SLOWER = "5 to 11"  # times, of the torch backend against the kernel; docs/backends.md


class Unsuitable(Exception):
    """A library that is not the kernel of these sources, or cannot be loaded here."""


@lru_cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None."""
    if not is_on("TVAE_NATIVE"):
        log.info("native kernel: switched off by TVAE_NATIVE=%s", os.environ["TVAE_NATIVE"])
        return None
    try:
        return _first_that_loads(_prebuilt()) or _kept_or_compiled()
    except (build.NotCompiled, Unsuitable, OSError) as error:
        log.warning(
            "without the compiled kernel training takes %s times as long; install a C++ compiler, or "
            "`pip install ziglang` (%s)", SLOWER, error,
        )  # fmt: skip
        return None


def is_available() -> bool:
    return library() is not None


def kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """The kernel's function of this name for this type."""
    return getattr(library(), f"{name}_{C_TYPES[dtype]}")


def cache_dir() -> Path:
    return Path(os.environ.get("TVAE_CACHE_DIR") or pooch.os_cache("tvae")).expanduser()


def speed_key() -> str:
    """Name of what decides how fast the kernel is: its sources and the processor, and whether there is one."""
    parts = [build.version(), _processor(), str(is_available())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def is_on(name: str) -> bool:
    """True if the variable says yes or is not set; a word for neither is refused."""
    value = os.environ.get(name, "").strip().lower()
    if value not in ("", *YES, *NO):
        raise UserError(f"{name}={value}: must be one of {', '.join((*YES, *NO))}")
    return value not in NO


def _prebuilt() -> Iterator[Path]:
    """Kernels that came with the package for this kind of machine, the fastest that the processor can run first."""
    has_avx2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    for variant in ("avx2", "plain") if has_avx2 else ("plain",):
        yield from build.whole(PREBUILT, f"{build.version()}-{variant}")


def _kept_or_compiled() -> ctypes.CDLL:
    folder, flags = cache_dir(), build.flags_for_this_processor()
    parts = [build.version(), repr(flags), os.environ.get("CXX", ""), _processor()]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return _first_that_loads(build.whole(folder, key)) or _compiled(folder, key, flags)


def _compiled(folder: Path, key: str, flags: list[str]) -> ctypes.CDLL:
    """Compile, keep and load. Where nothing can be kept the kernel is loaded from a folder that is then removed."""
    with _work_folder(folder) as work:
        made = Path(work) / f"kernel{build.SUFFIX}"
        if commands := build.compilers():
            log.info("compiling the kernel, which is done once and takes up to a minute or two")
        compiler, failed = build.compile_kernel(made, flags, commands)
        for reason in failed:
            log.warning("the kernel was compiled by %s, not by %s", compiler, reason)
        try:
            made = build.keep(made, folder, key)
        except OSError:
            log.warning(
                "%s: cannot be written, so the kernel is compiled at every start; TVAE_CACHE_DIR names another folder",
                folder,
            )
        return _load(made)


def _work_folder(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder beside the kept kernels, else in the system's. Windows does not remove a library in use."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix="compiling-", dir=folder, ignore_cleanup_errors=True)
    except OSError:
        return tempfile.TemporaryDirectory(prefix="tvae-", ignore_cleanup_errors=True)


def _first_that_loads(paths: Iterator[Path]) -> ctypes.CDLL | None:
    for path in paths:
        try:
            return _load(path)
        except Unsuitable as error:
            log.debug("%s", error)
    return None


def _load(path: Path) -> ctypes.CDLL:
    """The library, if it was compiled from these sources and its structures are laid out as here."""
    try:
        kernel = ctypes.CDLL(str(path.absolute()))
        kernel.kernel_version.restype = ctypes.c_char_p
        is_ours = kernel.kernel_version() == build.version().encode()
    except (OSError, AttributeError) as error:
        raise Unsuitable(f"{path.name}: {error}") from error
    sizes = (ctypes.c_int64 * len(STRUCTURES))()
    if is_ours:
        kernel.kernel_sizes(sizes)
    if list(sizes) != [ctypes.sizeof(kind) for kind in STRUCTURES]:
        raise Unsuitable(f"{path.name}: was compiled from other sources")
    return kernel


def _processor() -> str:
    """The processor's model and features, on which the compiler's flags depend."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))}))
