import importlib
import signal
import sys

import numpy as np
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from tvae.backends.torch_backend import e_step
from tvae.config.schema import Config
from tvae.data.sets.bars import BarsConfig
from tvae.inference.evolution import EaConfig
from tvae.inference.states import StatesConfig, init_states
from tvae.io.image_file import write_tiff
from tvae.model.decoder import Mlp
from tvae.model.vae import ModelConfig, gaussian_model
from tvae.runs.callbacks import record
from tvae.training.trainer import LrConfig


def pytest_configure():
    """Whoever starts the suite in the background may have it ignore these, and every process that it starts."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


class Command:
    """`python -m tvae.NAME` in this process: its exit code, and what it printed."""

    def __init__(self, run, *words):
        self.run, self.words = run, words

    def __call__(self, *words):
        return self.run(*self.words, *words)

    def ok(self, *words):
        """Run it, which has to succeed; returns what it printed."""
        code, out = self(*words)
        assert code == 0, out
        return out

    def refused(self, *words):
        """Run it, which has to end with a mistake of the user; returns what it printed."""
        code, out = self(*words)
        assert code == 2, out
        return out

    def of(self, name):
        """The command of this name."""
        return Command(self.run, name)


@pytest.fixture
def command(monkeypatch, capfd, in_folder):
    """Runs commands in an empty folder."""

    def run(name, *overrides):
        module = importlib.import_module("tvae.search.__main__" if name == "search" else f"tvae.{name}")
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *overrides])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
        GlobalHydra.instance().clear()
        capfd.readouterr()
        try:
            module.main()
            code = 0
        except SystemExit as end:
            code = end.code
        return code, "".join(capfd.readouterr())

    return Command(run)


@pytest.fixture
def _no_figures(monkeypatch):
    """Runs draw no figures, which take longer than small runs themselves."""
    monkeypatch.setattr(record, "write_figures", lambda *_: None)


def random_model(n_latents=6, hidden=(5,), n_outputs=7, activation="relu", seed=0, sigma2=0.3, dtype=torch.float64):
    """A model with nothing at zero, so that no mistake can hide."""
    rng = torch.Generator().manual_seed(seed)
    decoder = Mlp(n_latents, list(hidden), n_outputs, activation, rng).to(dtype)
    with torch.no_grad():
        for bias in decoder.biases:
            bias.normal_(generator=rng)
    pi = 0.05 + 0.5 * torch.rand(n_latents, generator=rng, dtype=dtype)
    return gaussian_model(decoder, pi, sigma2)


def random_data(n_points=5, n_outputs=7, seed=1, dtype=torch.float64):
    return torch.randn(n_points, n_outputs, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def random_mask(n_points=5, n_outputs=7, seed=2):
    return torch.rand(n_points, n_outputs, generator=torch.Generator().manual_seed(seed)) < 0.6


def draw_states(pi, n_states, n_points, shared, rng):
    """(N, S, ceil(H/8)): initial states, as a run makes them."""
    packed = torch.empty(n_points, n_states, (len(pi) + 7) // 8, dtype=torch.uint8)
    init_states(packed, pi, shared, lambda first: rng)
    return packed


def evaluated(hidden=(5,), masked=False, n_points=40, n_states=12):
    """A model, data, their mask or None, and the E-step that evaluates S states of each data point."""
    model, x = random_model(hidden=hidden), random_data(n_points)
    observed = random_mask(n_points) if masked else None
    packed = draw_states(model.pi, n_states, n_points, False, torch.Generator().manual_seed(4))
    return model, x, observed, e_step(model, EaConfig(), x, packed, None, observed)


def small_config(**changes):
    """A bars run of a second."""
    config = Config(
        dataset=BarsConfig(n_points=60),
        model=ModelConfig(n_latents=8, hidden=[8]),
        states=StatesConfig(n_states=16),
        ea=EaConfig(n_parents=3, n_children=3),
        lr=LrConfig(kind="cyclic"),
        epochs=4,
        batch_size=16,
        checkpoint_seconds=0,
    )
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def load(config):
    """The data of a configuration without open options."""
    return config.dataset.make(config, config.dataset.open(config))


def same(a, b):
    """Equal to the last bit, through dictionaries and lists, but for the time it took."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a if k != "seconds")
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache, no data folder, and nobody to download from."""
    monkeypatch.setenv("TVAE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVAE_DATA_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("TVAE_DATA_DIR", raising=False)


def smooth_picture(seed, height=60, width=90):
    """A smooth random picture with values above zero."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rng.normal() * 0.3 * rows + rng.normal() * 0.3 * columns + rng.uniform(0, 6)) for _ in range(8)]
    return 1000 + 100 * sum(waves) + 10 * rng.normal(size=(height, width))


@pytest.fixture
def folder(tmp_path):
    """A data folder with three natural images."""
    place = tmp_path / "data" / "vanhateren"
    place.mkdir(parents=True)
    for i in range(3):
        write_tiff(place / f"{i}.tiff", smooth_picture(i).astype(np.float32))
    return tmp_path / "data"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Names that are not UTF-8 are told by tests about them; test processes could not send them to each other."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report
