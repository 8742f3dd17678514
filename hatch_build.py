"""Compiled kernels for wheels: a build hook of hatchling, run by `make wheel` and by `pip install .`.

A wheel for x86-64 carries two kernels, one with AVX2 and a plain one, any other wheel one; which of them is loaded the
processor decides. For a platform that `TVAE_WHEEL_FOR` names by its tag they are compiled by ziglang, which can do all
of them; else, for the machine at hand, by the first compiler found. Without a compiler, or with
`TVAE_WHEEL_FOR=any`, the wheel carries none and suits every machine.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
NATIVE = Path("tvae/backends/native")

TARGETS = {  # platform tag: zig's name for it
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
}
VARIANTS: dict[str, dict[str, list[str]]] = {  # of each kind of processor, with its flags
    "x86_64": {"avx2": ["-march=haswell"], "plain": []},
    "other": {"plain": []},
}


def load(name: str) -> ModuleType:
    """A module of the kernel's folder, without the package, whose dependencies need not be there."""
    spec = importlib.util.spec_from_file_location(name, ROOT / NATIVE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan(wanted: str | None, is_by_zig: bool) -> tuple[str, list[str], str]:
    """The platform tag of the wheel, flags that all its kernels need, and the suffix of their names.

    `is_by_zig`: there is no other compiler; without a target it would mean the very processor at hand.
    """
    here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = wanted or (here.replace("linux_", "manylinux_2_17_") if is_by_zig else here)
    suffix = ".dll" if tag.startswith("win") else ".dylib" if tag.startswith("macosx") else ".so"
    flags = ["-s"] if suffix == ".so" else []
    if tag not in TARGETS:
        return tag, [*flags, "-static-libstdc++", "-static-libgcc"] if suffix == ".so" else flags, suffix
    return tag, [*flags, "-target", TARGETS[tag]], suffix


def compile_kernels(folder: Path, wanted: str | None) -> tuple[str, dict[str, Path]]:
    """The wheel's platform tag, and for each kernel's name in the wheel the file."""
    build = load("build")
    zig, every = build.zig(), build.compilers()
    tag, flags, suffix = plan(wanted, every == zig)
    made = {}
    for variant, own in VARIANTS["x86_64" if tag.endswith(("x86_64", "amd64")) else "other"].items():
        out = folder / f"{variant}{suffix}"
        build.compile_kernel(out, [*flags, *own], zig if tag in TARGETS else every)
        made[build.kept_name(f"{build.version()}-{variant}", out.read_bytes(), suffix)] = out
    return tag, made


class KernelHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("TVAE_WHEEL_FOR")
        if version == "editable" or wanted == "any":
            return
        if wanted and wanted not in TARGETS:
            sys.exit(f"TVAE_WHEEL_FOR={wanted}: must be any or one of {', '.join(TARGETS)}")
        self.folder = tempfile.TemporaryDirectory()
        try:
            tag, made = compile_kernels(Path(self.folder.name), wanted)
        except Exception as error:  # its class is that of a module loaded by its path
            if wanted or type(error).__name__ != "NotCompiled":
                raise
            self.app.display_warning(f"the wheel carries no compiled kernel: {error}")
            return
        for name, path in made.items():
            build_data["force_include"][str(path)] = str(NATIVE / "prebuilt" / name)
        build_data["pure_python"], build_data["tag"] = False, f"py3-none-{tag}"
