"""Data in a NumPy file and states in another: the same results as in memory, and little of either in memory."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import small_config

from tvae import checkpoint, datasets, mapped
from tvae import points as points_module
from tvae.atomic import DiskFull
from tvae.config import ArrayConfig, ModelConfig, StatesConfig, UserError
from tvae.datasets import Dataset, bars
from tvae.datasets.array import make, open_array
from tvae.fit import Fit

CPU = torch.device("cpu")


@pytest.fixture
def data(tmp_path):
    """Bars, in a file."""
    values = bars.make(small_config().dataset).data.float().numpy()
    np.save(tmp_path / "data.npy", values)
    return tmp_path / "data.npy", values


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
    assert mapped.Mapped(array).tensor[-1].sum() == 0


@pytest.mark.parametrize("memmap", [False, True])
def test_training_is_the_same_as_in_memory(data, memmap, tmp_path):
    path, values = data
    before = path.read_bytes()
    config = small_config(dataset=ArrayConfig(file=str(path), standardise=True))
    config.states.memmap = memmap
    config.model.sigma2 = None
    from_file = Fit(config, datasets.load(config), CPU, tmp_path)
    config.states.memmap = False
    in_memory = Fit(config, Dataset(torch.from_numpy(values), (4, 4)), CPU)
    assert [e.elbo for e in from_file.epochs()] == [e.elbo for e in in_memory.epochs()]
    assert torch.equal(from_file.points.states, in_memory.points.states)
    assert path.read_bytes() == before


@pytest.mark.parametrize("dtype", ["float16", "float64", "uint8", "int16", "int32"])
def test_other_types(tmp_path, dtype):
    values = (10 * np.random.default_rng(0).random((40, 3, 5))).astype(dtype)
    np.save(tmp_path / "data.npy", values)
    config = small_config(dataset=ArrayConfig(file=str(tmp_path / "data.npy"), standardise=True), epochs=1)
    dataset = datasets.load(config)
    assert dataset.shape == (3, 5)
    fit = Fit(config, dataset, CPU)
    x, _ = fit.points.rows(torch.tensor([3, 7]))
    expected = (values.reshape(40, 15)[[3, 7]] - values.astype(float).mean()) / values.astype(float).std()
    assert np.allclose(x.numpy(), expected, atol=1e-5)
    assert x.dtype == torch.float32


def test_the_fingerprint_is_that_of_the_content(tmp_path):
    values = np.random.default_rng(0).random((40, 6))
    fingerprints = []
    for name, content in (("a", values), ("b", values), ("c", values + 1e-9), ("d", values.reshape(40, 2, 3))):
        np.save(tmp_path / f"{name}.npy", content)
        fingerprints.append(make(ArrayConfig(file=str(tmp_path / f"{name}.npy"))).fingerprint())
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
        make(ArrayConfig(file=None if WRONG[message] is None else str(path)))
    assert not (tmp_path / "sprung").exists()


def test_values_that_are_no_numbers(command, tmp_path):
    np.save(tmp_path / "data.npy", np.full((30, 4), np.nan, dtype=np.float32))
    assert command("train", "dataset=array", "dataset.file=data.npy")[0] == 2
    code, printed = command("train", "dataset=array", "dataset.file=absent.npy")
    assert code == 2
    assert printed.strip() == "error: absent.npy: No such file or directory"


def resident(kind):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_what_is_released_is_not_resident_and_not_lost(tmp_path):
    states = mapped.create(tmp_path / "states.bin", (1 << 17, 8, 64))  # 64 MB
    before = resident("RssFile")
    states.tensor.fill_(7)
    assert resident("RssFile") > before + 50
    states.release()
    assert resident("RssFile") < before + 10
    assert (states.tensor == 7).all()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_little_is_resident_at_any_time(tmp_path, monkeypatch):
    """Making states, looking at the data, training, saving and loading: each would touch all of the files."""
    monkeypatch.setattr(mapped, "ROWS_BETWEEN", 64)
    monkeypatch.setattr(datasets, "ROWS_BETWEEN", 64)
    monkeypatch.setattr(points_module, "PART_BYTES", 1 << 22)
    monkeypatch.setattr(checkpoint, "HELD_BYTES", 0)
    n_points, most = 200_000, 0.0
    np.save(tmp_path / "data.npy", np.random.default_rng(0).random((n_points, 256), dtype=np.float32))  # 195 MB
    release = mapped.Mapped.release

    def watched(self):
        nonlocal most
        most = max(most, resident("RssFile"))
        release(self)

    monkeypatch.setattr(mapped.Mapped, "release", watched)
    config = small_config(
        dataset=ArrayConfig(file=str(tmp_path / "data.npy"), standardise=True),
        model=ModelConfig(n_latents=120, hidden=[], sigma2=None),
        states=StatesConfig(n_states=64, memmap=True),  # 183 MB
        batch_size=64,
        epochs=1,
    )
    np.load(tmp_path / "data.npy", mmap_mode="r").sum()  # whatever numpy loads on first use
    before = resident("RssFile")
    fit = Fit(config, datasets.load(config), CPU, tmp_path)
    asked = iter(range(10**6))
    list(fit.epochs(lambda: next(asked) > 200))
    checkpoint.save(tmp_path, {"fit": fit.state_dict()}, fit.parts())
    saved = checkpoint.load_newest(tmp_path)
    fit.load_state_dict(saved.content["fit"], saved.parts)
    assert before < most < before + 170  # less than either file has, with what torch maps of itself
    assert resident("RssFile") < before + 100


def test_no_room_for_the_states(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(DiskFull, match=r"no room for 0\.1 GB of states"):
            mapped.create(tmp_path / "states.bin", (1 << 17, 8, 64))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
