"""A built wheel, installed away from the checkout: it finds its configuration, and its kernel needs no compiler."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from hatch_build import plan
from tvae.backends.native import build

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("tvae-*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    # The dependencies are borrowed from this environment; its own tvae is not, for .pth files do not nest.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return environment


def train(environment, folder, capability):
    """The ELBO of a short run with an empty cache and no compiler; torch's `capability` says what it may use."""
    folder.mkdir()
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CXX")}
    own = {"PATH": "", "TVAE_CACHE_DIR": str(folder / "cache"), "ATEN_CPU_CAPABILITY": capability}
    command = [str(environment / "bin" / "tvae-train"), "experiment=bars", "epochs=1", "n_starts=1"]
    done = subprocess.run(command, cwd=folder, env={**inherited, **own}, check=True, capture_output=True, text=True)
    assert "kernel" not in done.stderr, "neither compiled nor missed"
    assert not (folder / "cache").exists()
    return json.loads((folder / "outputs/train/epochs=1,experiment=bars,n_starts=1/metrics.json").read_text())["elbo"]


@pytest.mark.skipif(not build.compilers(), reason="no C++ compiler")
@pytest.mark.skipif("AVX" not in torch.backends.cpu.get_cpu_capability(), reason="no AVX2")
def test_an_installed_wheel_runs_elsewhere_with_either_of_its_kernels(environment, tmp_path):
    (prebuilt,) = environment.glob("lib/python*/site-packages/tvae/backends/native/prebuilt")
    kernels = {path.stem.split("-")[2]: path for path in prebuilt.iterdir()}
    assert kernels.keys() == {"avx2", "plain"}
    elbos = {}
    for variant, capability in (("avx2", "avx2"), ("plain", "default")):
        for other in kernels.keys() - {variant}:
            kernels[other].rename(tmp_path / other)
        elbos[variant] = train(environment, tmp_path / f"run with {variant}", capability)
        for other in kernels.keys() - {variant}:
            (tmp_path / other).rename(kernels[other])
    assert elbos["avx2"] == pytest.approx(elbos["plain"], rel=1e-3)


@pytest.mark.parametrize(
    ("wanted", "is_by_zig", "expected"),
    [
        ("win_amd64", True, ("win_amd64", ["-target", "x86_64-windows-gnu"], ".dll")),
        ("macosx_11_0_arm64", True, ("macosx_11_0_arm64", ["-target", "aarch64-macos.11.0"], ".dylib")),
        (None, True, ("manylinux_2_17_x86_64", ["-s", "-target", "x86_64-linux-gnu.2.17"], ".so")),
        (None, False, ("linux_x86_64", ["-s", "-static-libstdc++", "-static-libgcc"], ".so")),
    ],
)
def test_what_a_wheel_is_compiled_for(monkeypatch, wanted, is_by_zig, expected):
    monkeypatch.setattr("sysconfig.get_platform", lambda: "linux-x86_64")
    assert plan(wanted, is_by_zig) == expected
