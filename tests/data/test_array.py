"""Data in a NumPy file: the same results as in memory, whatever its type and size, and every mistake in it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import load, small_config
from tvae.data.dataset import Dataset
from tvae.data.mapped import Mapped
from tvae.data.sets.array import ArrayConfig, open_array
from tvae.errors import UserError
from tvae.runs.setup import make_fit
from tvae.training.points import InMemory


@pytest.fixture
def data(tmp_path):
    """Bars, in a file."""
    values = load(small_config()).source.data.float().numpy()
    np.save(tmp_path / "data.npy", values)
    return tmp_path / "data.npy", values


def made(path):
    """The data set of a file."""
    return load(small_config(dataset=ArrayConfig(file=None if path is None else str(path))))


def test_a_file_may_be_larger_than_memory(tmp_path):
    """A terabyte with holes: whatever counts as memory of this process is refused."""
    path, shape = tmp_path / "large.npy", (10**9, 256)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        try:
            file.truncate(file.tell() + 4 * 10**9 * 256)
        except OSError as error:
            pytest.skip(f"no such files here ({error.strerror})")
    array = open_array(path)
    assert array.shape == shape
    assert Mapped(array).tensor[-1].sum() == 0


@pytest.mark.parametrize("memmap", [False, True])
def test_training_is_the_same_as_in_memory(data, memmap, tmp_path):
    path, values = data
    before = path.read_bytes()
    config = small_config(dataset=ArrayConfig(file=str(path), standardise=True))
    config.states.memmap = memmap
    config.model.sigma2 = None
    from_file = make_fit(config, load(config), tmp_path)
    config.states.memmap = False
    in_memory = make_fit(config, Dataset(InMemory(torch.from_numpy(values)), (4, 4)))
    assert [e.elbo for e in from_file.epochs()] == [e.elbo for e in in_memory.epochs()]
    assert torch.equal(from_file.points.sets.tensor, in_memory.points.sets.tensor)
    assert path.read_bytes() == before


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int16", "int32"])
def test_other_types(tmp_path, dtype):
    values = (10 * np.random.default_rng(0).random((40, 3, 5))).astype(dtype)
    np.save(tmp_path / "data.npy", values)
    config = small_config(dataset=ArrayConfig(file=str(tmp_path / "data.npy"), standardise=True), epochs=1)
    dataset = load(config)
    assert dataset.shape == (3, 5)
    fit = make_fit(config, dataset)
    x, _ = fit.points.rows(torch.tensor([3, 7]))
    expected = (values.reshape(40, 15)[[3, 7]] - values.astype(float).mean()) / values.astype(float).std()
    assert np.allclose(x.numpy(), expected, atol=1e-5)
    assert x.dtype == torch.float32


def test_the_fingerprint_is_that_of_the_content(tmp_path):
    values = np.random.default_rng(0).random((40, 6))
    fingerprints = []
    for name, content in (("a", values), ("b", values), ("c", values + 1e-9), ("d", values.reshape(40, 2, 3))):
        np.save(tmp_path / f"{name}.npy", content)
        fingerprints.append(made(tmp_path / f"{name}.npy").fingerprint())
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == 3


class Trap:
    def __reduce__(self):
        return Path.mkdir, (Path("sprung"),)


def write_several(path):
    np.savez(path.with_suffix(".npz"), a=np.ones((3, 3)))
    path.with_suffix(".npz").rename(path)


WRONG = {
    "no value was given": None,
    "not a NumPy file": lambda path: path.write_text("1, 2, 3"),
    "not a NumPy file of numbers": lambda path: np.save(path, np.array([Trap(), 1], dtype=object), allow_pickle=True),
    "holds several arrays": write_several,
    "is of type complex128": lambda path: np.save(path, np.ones((3, 3), dtype=complex)),
    "is of type >f4": lambda path: np.save(path, np.ones((3, 3), dtype=">f4")),
    r"has the shape \(3,\)": lambda path: np.save(path, np.ones(3)),
    r"has the shape \(0, 3\)": lambda path: np.save(path, np.ones((0, 3))),
    "column by column": lambda path: np.save(path, np.asfortranarray(np.ones((3, 4)))),
}


@pytest.mark.parametrize("message", WRONG)
def test_files_that_do_not_do(tmp_path, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data.npy"
    if WRONG[message] is not None:
        WRONG[message](path)
    with pytest.raises(UserError, match=message):
        made(None if WRONG[message] is None else path)
    assert not (tmp_path / "sprung").exists()


def test_values_that_are_no_numbers(command, tmp_path):
    np.save(tmp_path / "data.npy", np.full((30, 4), np.nan, dtype=np.float32))
    command.refused("train", "dataset=array", "dataset.file=data.npy")
    printed = command.refused("train", "dataset=array", "dataset.file=absent.npy")
    assert printed.strip() == "error: absent.npy: No such file or directory"
