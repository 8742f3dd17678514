"""Compiles kernel.cpp on first use with the system's C++ compiler, and loads it.

The library is kept in `TVAE_CACHE_DIR`, by default `tvae` in the user's cache folder, under a name that depends on the
sources, the compiler and the processor. Without a compiler, or with `TVAE_NATIVE=0` in the environment, there is no
library, and torch does the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCES = sorted([*FOLDER.glob("*.cpp"), *FOLDER.glob("*.hpp")])
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-std=c++17", "-pthread", "-shared", "-fPIC")


@lru_cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None."""
    if os.environ.get("TVAE_NATIVE") == "0":
        log.info("native kernel: switched off by TVAE_NATIVE=0")
        return None
    try:
        return ctypes.CDLL(str(_compiled()))
    except (OSError, subprocess.SubprocessError) as error:
        log.info("native kernel: not available, torch does the work (%s)", error)
        return None


def is_available() -> bool:
    return library() is not None


def _compiled() -> Path:
    """The library for these sources, compiler and processor; compiled unless it exists."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++"))), None)
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    sources = [part for source in SOURCES for part in (source.name.encode(), source.read_bytes())]
    key = hashlib.sha256(b"\0".join([*sources, repr(FLAGS).encode(), version, _processor()])).hexdigest()
    folder = _cache_dir()
    path = folder / f"kernel-{key[:16]}.so"
    if not path.exists():
        handle, temporary = tempfile.mkstemp(suffix=".so", dir=folder)
        os.close(handle)
        try:
            command = [compiler, *FLAGS, f"-I{FOLDER}", str(FOLDER / "kernel.cpp"), "-o", temporary]
            subprocess.run(command, capture_output=True, check=True, timeout=300)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return path


def _processor() -> bytes:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
    return "\n".join(
        sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))})
    ).encode()


def _cache_dir() -> Path:
    """A folder to keep the library in; a new temporary one if the user's cannot be written."""
    folder = Path(os.environ.get("TVAE_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = folder if "TVAE_CACHE_DIR" in os.environ else folder / "tvae"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="tvae-"))
    return folder
