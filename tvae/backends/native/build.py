"""C++ compilers with their commands for the kernel, and compiled kernels in a folder.

Kernels are kept under names with the hash of their content: a damaged one is not loaded.

Standard library alone: the build of a wheel loads this file by its path, before the package's dependencies are there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = sorted([*FOLDER.glob("*.cpp"), *FOLDER.glob("*.hpp")])
SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-std=c++17", "-shared", "-pthread")
SECONDS = 1800  # ziglang compiles its standard library first: a minute, on a busy machine several


class NotCompiled(Exception):
    """No compiler could compile the kernel; the message says why for each."""


def version() -> str:
    """A hash of the sources, which a compiled kernel carries as well."""
    parts = [part for source in SOURCES for part in (source.name.encode(), source.read_bytes())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def compilers() -> list[list[str]]:
    """Commands to try in turn: what CXX names, the system's compilers, that of the Python package ziglang."""
    system = [[name] for name in ("c++", "g++", "clang++") if shutil.which(name)]
    return [*filter(None, [shlex.split(os.environ.get("CXX", ""))]), *system, *zig()]


def zig() -> list[list[str]]:
    """The command of ziglang's compiler, if it is installed."""
    return [[sys.executable, "-m", "ziglang", "c++"]] if importlib.util.find_spec("ziglang") else []


def flags_for_this_processor() -> list[str]:
    if platform.machine().lower() in ("x86_64", "amd64"):
        return ["-march=native"]
    return [] if sys.platform == "darwin" else ["-mcpu=native"]  # Apple's compiler means its own processors anyway


def compile_kernel(out: Path, flags: Sequence[str], commands: Sequence[Sequence[str]]) -> tuple[str, list[str]]:
    """Write the library by the first of the compilers that can; returns its name, and why others could not."""
    position = [] if out.suffix == ".dll" else ["-fPIC"]
    marks = [f'-DKERNEL_VERSION="{version()}"', f"-I{FOLDER}", str(FOLDER / "kernel.cpp"), "-o", str(out)]
    reasons: list[str] = []
    for command in commands:
        try:
            _run([*command, *FLAGS, *position, *flags, *marks], out.parent)
            return shlex.join(command), reasons
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{shlex.join(command)}: {_reason(error)}")
    raise NotCompiled("; ".join(reasons) or "there is no C++ compiler")


def _run(command: list[str], folder: Path) -> None:
    """`folder`: for what zig keeps, some 100 MB that are of no use afterwards."""
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(folder), "ZIG_LOCAL_CACHE_DIR": str(folder)}
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, env={**caches, **os.environ})
    if done.returncode == -signal.SIGINT:  # the terminal tells it to all
        raise KeyboardInterrupt
    done.check_returncode()


def _reason(error: Exception) -> str:
    """The compiler's first line about an error, shortened."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").splitlines()
        telling = [line.strip() for line in lines if "error" in line] + lines
        return telling[0][:200] if telling else f"exit code {error.returncode}"
    return getattr(error, "strerror", None) or f"not done after {SECONDS} seconds"


def whole(folder: Path, key: str) -> Iterator[Path]:
    """Kernels that were kept under this key and are as they were."""
    for path in sorted(folder.glob(f"kernel-{key}-*")):
        if _is_whole(path):
            yield path


def keep(made: Path, folder: Path, key: str) -> Path:
    """Move a new kernel into the folder, in one step; damaged ones of this key are removed."""
    path = folder / kept_name(key, made.read_bytes(), made.suffix)
    os.replace(made, path)
    for other in folder.glob(f"kernel-{key}-*"):
        if not _is_whole(other):
            with suppress(OSError):
                other.unlink()
    return path


def kept_name(key: str, content: bytes, suffix: str) -> str:
    return f"kernel-{key}-{hashlib.sha256(content).hexdigest()[:32]}{suffix}"


def _is_whole(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:32] == path.stem.rpartition("-")[2]
    except OSError:
        return False
