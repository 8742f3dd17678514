"""Where the library comes from: the compiler, the cache, and what the environment says."""

import logging
import os
import stat

import pytest
from native_samples import needs_kernel

from tvae.engines.native import build


@pytest.mark.parametrize("environment", [{"TVAE_NATIVE": "0"}, {"CXX": "/bin/false"}])
def test_no_library_if_switched_off_or_the_compiler_is_broken(monkeypatch, tmp_path, caplog, environment):
    for name, value in {"TVAE_CACHE_DIR": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO):
        assert build.library.__wrapped__() is None
    assert caplog.text.count("native kernel") == 1
    assert list(tmp_path.iterdir()) == []


def test_no_library_without_a_compiler(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.INFO):
        assert build.library.__wrapped__() is None
    assert "no C++ compiler" in caplog.text


def test_a_cache_that_cannot_be_written_is_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TVAE_CACHE_DIR", "/dev/null/nowhere")
    assert build._cache_dir().parent == tmp_path


def test_the_cache_is_in_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("TVAE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build._cache_dir() == tmp_path / "tvae"


@pytest.fixture
def compilations(monkeypatch, tmp_path):
    """A compiler that writes an empty library and notes its command; copies of the sources that may be changed."""
    compiler, notes, sources = tmp_path / "compiler", tmp_path / "notes", tmp_path / "sources"
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] || echo "$@" >> {notes}\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    sources.mkdir()
    for source in build.SOURCES:
        (sources / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(build, "SOURCES", sorted(sources.iterdir()))
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TVAE_CACHE_DIR", str(tmp_path / "cache"))
    return lambda: len(notes.read_text().splitlines())


def test_a_library_is_compiled_once(compilations):
    assert build._compiled() == build._compiled()
    assert compilations() == 1
    assert len(os.listdir(os.environ["TVAE_CACHE_DIR"])) == 1


def test_a_change_of_any_source_makes_another_library(compilations):
    paths = {build._compiled()}
    for source in build.SOURCES:
        source.write_text(source.read_text() + "// changed\n")
        paths.add(build._compiled())
    assert {"kernel.cpp", "vectors.hpp"} < {source.name for source in build.SOURCES}
    assert len(paths) == compilations() == 1 + len(build.SOURCES)


@needs_kernel
def test_the_library_is_the_compiled_kernel():
    assert all(
        hasattr(build.library(), f"{name}_{kind}") for name in ("e_step", "adam") for kind in ("float", "double")
    )
