"""The kernel comes from the package, the cache or a compiler, and is checked before it is used."""

import _ctypes
import ctypes
import logging
import shutil
from pathlib import Path

import pooch
import pytest
from native_samples import needs_kernel
from test_native_build import script

from tvae.backends.native import build, loading
from tvae.backends.native.loading import is_on
from tvae.errors import UserError


@pytest.fixture
def fresh():
    """`library` as in a new process."""
    loading.library.cache_clear()
    yield loading.library
    loading.library.cache_clear()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A compiled kernel."""
    return Path(shutil.copy(loading.library()._name, tmp_path_factory.mktemp("kernel") / "kernel"))


@pytest.fixture
def n_compiled(kernel, monkeypatch, tmp_path):
    """An empty cache, and a compiler that hands out the kernel that is there; how often it has been called."""
    notes = tmp_path / "notes"
    compiler = script(
        tmp_path / "compiler",
        f'for last; do :; done; echo "$last" >> {notes}; {shutil.which("cp")} {kernel} "$last"',
    )
    monkeypatch.setenv("TVAE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "compilers", lambda: [[compiler]])
    monkeypatch.setattr(loading, "PREBUILT", tmp_path / "prebuilt")
    loading.library.cache_clear()
    return lambda: len(notes.read_text().splitlines()) if notes.exists() else 0


def kernels(folder):
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("word", ["0", "false", "No", "OFF"])
def test_no_kernel_if_it_is_switched_off(monkeypatch, fresh, caplog, word):
    monkeypatch.setenv("TVAE_NATIVE", word)
    with caplog.at_level(logging.INFO):
        assert fresh() is None
    assert [record.levelname for record in caplog.records] == ["INFO"]


@pytest.mark.parametrize("word", ["1", "true", "YES", "on", "", " "])
def test_words_for_yes(monkeypatch, word):
    monkeypatch.setenv("TVAE_NATIVE", word)
    assert is_on("TVAE_NATIVE")


def test_a_word_for_neither_is_refused(monkeypatch, fresh):
    monkeypatch.setenv("TVAE_NATIVE", "maybe")
    with pytest.raises(UserError, match="TVAE_NATIVE=maybe: must be one of 1, true, yes, on, 0, false, no, off"):
        fresh()


def test_without_a_compiler_the_cost_and_the_remedy_are_told(monkeypatch, fresh, caplog, tmp_path):
    monkeypatch.setenv("TVAE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "compilers", list)
    assert fresh() is None
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert "times as long" in warning.message
    assert "pip install ziglang" in warning.message
    assert list(tmp_path.iterdir()) == []


@needs_kernel
def test_a_kernel_is_compiled_once_and_kept(fresh, n_compiled, tmp_path):
    assert hasattr(fresh(), "e_step_float")
    fresh.cache_clear()
    assert fresh() is not None
    assert n_compiled() == len(kernels(tmp_path / "cache")) == 1


@needs_kernel
@pytest.mark.parametrize("damage", ["truncated", "emptied", "garbage", "a folder", "a link"])
def test_a_damaged_kernel_is_compiled_again(fresh, n_compiled, tmp_path, damage):
    fresh()
    fresh.cache_clear()
    (path,) = (tmp_path / "cache").iterdir()
    content = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage == "a link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.write_bytes({"truncated": content[:5000], "emptied": b"", "garbage": content[::-1]}[damage])
    assert (fresh() is not None, n_compiled()) == (True, 2)
    fresh.cache_clear()
    if damage != "a folder":  # which is the user's, and stands where the kernel would be kept
        assert fresh() is not None
        assert path.read_bytes() == content
        assert n_compiled() == 2


@needs_kernel
def test_damaged_kernels_are_removed_when_another_is_kept(n_compiled, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / build.kept_name("key", b"a", ".so")).write_bytes(b"b")
    (folder / build.kept_name("other", b"a", ".so")).write_bytes(b"b")
    made = tmp_path / "made.so"
    made.write_bytes(b"c")
    path = build.keep(made, folder, "key")
    assert list(build.whole(folder, "key")) == [path]
    assert list(build.whole(folder, "other")) == []
    assert len(kernels(folder)) == 2


@needs_kernel
def test_a_compiler_that_cannot_is_told_of_and_replaced(monkeypatch, fresh, n_compiled, caplog):
    (works,) = build.compilers()
    monkeypatch.setattr(build, "compilers", lambda: [["/bin/false"], works])
    assert fresh() is not None
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "not by /bin/false: exit code 1" in warning


@needs_kernel
def test_where_nothing_can_be_kept_nothing_is_left(monkeypatch, fresh, n_compiled, caplog, tmp_path):
    monkeypatch.setenv("TVAE_CACHE_DIR", "/dev/null/nowhere")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert hasattr(fresh(), "adam_double")
    assert fresh() is not None
    assert n_compiled() == 1
    assert list(temporary.iterdir()) == []
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("/dev/null/nowhere: cannot be written")


def test_an_interrupted_compilation_leaves_nothing(monkeypatch, fresh, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setenv("TVAE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "compile_kernel", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fresh()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_name_of_the_cache_counts_as_none(monkeypatch, tmp_path):
    monkeypatch.setenv("TVAE_CACHE_DIR", "")
    assert loading.cache_dir() == Path(pooch.os_cache("tvae"))
    monkeypatch.setenv("TVAE_CACHE_DIR", str(tmp_path))
    assert loading.cache_dir() == tmp_path


@needs_kernel
@pytest.mark.parametrize(
    ("capability", "variants"), [("AVX512", ["avx2", "plain"]), ("AVX2", ["avx2", "plain"]), ("DEFAULT", ["plain"])]
)
def test_of_the_kernels_in_the_package_the_processor_decides(monkeypatch, tmp_path, capability, variants):
    monkeypatch.setattr(loading, "PREBUILT", tmp_path)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    for variant in ("plain", "avx2"):
        (tmp_path / build.kept_name(f"{build.version()}-{variant}", variant.encode(), ".so")).write_text(variant)
    assert [path.read_text() for path in loading._prebuilt()] == variants


@needs_kernel
def test_a_kernel_in_the_package_needs_no_compiler(fresh, kernel, n_compiled, tmp_path):
    content = kernel.read_bytes()
    (tmp_path / "prebuilt").mkdir()
    (tmp_path / "prebuilt" / build.kept_name(f"{build.version()}-plain", content, build.SUFFIX)).write_bytes(content)
    assert Path(fresh()._name).parent == tmp_path / "prebuilt"
    assert n_compiled() == 0


@needs_kernel
def test_a_kernel_of_other_sources_is_not_used(monkeypatch, fresh, kernel, n_compiled, tmp_path):
    """One with another version, one without any; then structures that have been laid out in another way."""
    version = build.version()
    changed = kernel.read_bytes().replace(version.encode(), version[::-1].encode())
    assert version[::-1].encode() in changed
    (tmp_path / "prebuilt").mkdir()
    for content in (changed, Path(_ctypes.__file__).read_bytes()):
        (tmp_path / "prebuilt" / build.kept_name(f"{version}-plain", content, build.SUFFIX)).write_bytes(content)
    assert Path(fresh()._name).parent == tmp_path / "cache"
    assert n_compiled() == 1

    longer = type("Longer", (loading.STRUCTURES[0],), {"_fields_": [("more", ctypes.c_int64)]})
    monkeypatch.setattr(loading, "STRUCTURES", (longer, *loading.STRUCTURES[1:]))
    with pytest.raises(loading.Unsuitable, match="other sources"):
        loading._load(next((tmp_path / "cache").iterdir()))
