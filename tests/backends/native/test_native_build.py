"""Compilers of the kernel: those that are tried, their commands, and the messages about those that fail."""

import stat
import sys

import pytest

from tvae.backends.native import build


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def _no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.usefixtures("_no_compiler")
def test_compilers_are_those_of_the_user_of_the_system_and_of_python(monkeypatch, tmp_path):
    assert build.compilers() == []
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("clang++", "g++"):
        script(tmp_path / name, "")
    assert build.compilers() == [["g++"], ["clang++"]]
    monkeypatch.setenv("CXX", "ccache 'my compiler'")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "ziglang")
    assert build.compilers() == [
        ["ccache", "my compiler"], ["g++"], ["clang++"], [sys.executable, "-m", "ziglang", "c++"]
    ]  # fmt: skip


def test_the_first_compiler_that_can_does_it_and_the_others_say_why_not(tmp_path):
    silent, wordy, works = (
        script(tmp_path / "silent", "exit 3"),
        script(tmp_path / "wordy", "echo In file x >&2; echo '  x:1: error: no such thing' >&2; exit 1"),
        script(tmp_path / "works", f'echo "$@" > {tmp_path}/command'),
    )
    found = build.compile_kernel(tmp_path / "out.so", ["-m1"], [["/nowhere"], [silent], [wordy, "-x"], [works]])
    assert found == (
        works,
        ["/nowhere: No such file or directory", f"{silent}: exit code 3", f"{wordy} -x: x:1: error: no such thing"],
    )
    command = (tmp_path / "command").read_text().split()
    assert {"-O3", "-shared", "-fPIC", "-m1", f'-DKERNEL_VERSION="{build.version()}"'} < set(command)
    assert command[-3:] == [str(build.FOLDER / "kernel.cpp"), "-o", str(tmp_path / "out.so")]


def test_a_windows_library_has_no_position_independent_code(tmp_path):
    works = script(tmp_path / "works", f'echo "$@" > {tmp_path}/command')
    build.compile_kernel(tmp_path / "out.dll", [], [[works]])
    assert "-fPIC" not in (tmp_path / "command").read_text()


@pytest.mark.parametrize(("commands", "told"), [([], "there is no C"), ([["/nowhere"]], "/nowhere: No such file")])
def test_nothing_is_compiled_without_a_compiler(tmp_path, commands, told):
    with pytest.raises(build.NotCompiled, match=told):
        build.compile_kernel(tmp_path / "out.so", [], commands)


def test_an_interrupted_compiler_interrupts(tmp_path):
    interrupted, other = script(tmp_path / "interrupted", "kill -INT $$"), script(tmp_path / "other", "exit 0")
    with pytest.raises(KeyboardInterrupt):
        build.compile_kernel(tmp_path / "out.so", [], [[interrupted], [other]])


def test_what_zig_keeps_goes_away_with_the_folder_of_the_work(tmp_path):
    works = script(tmp_path / "works", f'echo "$ZIG_GLOBAL_CACHE_DIR $ZIG_LOCAL_CACHE_DIR" > {tmp_path}/caches')
    build.compile_kernel(tmp_path / "out.so", [], [[works]])
    assert (tmp_path / "caches").read_text().split() == [str(tmp_path)] * 2


@pytest.mark.parametrize(
    ("machine", "system", "flags"),
    [
        ("x86_64", "linux", ["-march=native"]),
        ("AMD64", "win32", ["-march=native"]),
        ("aarch64", "linux", ["-mcpu=native"]),
        ("arm64", "darwin", []),
    ],
)
def test_flags_for_a_processor(monkeypatch, machine, system, flags):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(sys, "platform", system)
    assert build.flags_for_this_processor() == flags


def test_a_change_of_any_source_makes_another_version(monkeypatch, tmp_path):
    assert {"kernel.cpp", "vectors.hpp"} < {source.name for source in build.SOURCES}
    copies = [tmp_path / source.name for source in build.SOURCES]
    for copy, source in zip(copies, build.SOURCES, strict=True):
        copy.write_bytes(source.read_bytes())
    versions = {build.version()}
    monkeypatch.setattr(build, "SOURCES", copies)
    assert {build.version()} == versions
    for copy in copies:
        copy.write_text(copy.read_text() + "// changed\n")
        versions.add(build.version())
    assert len(versions) == 1 + len(copies)
