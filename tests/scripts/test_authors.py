"""The authors' package beside ours in the benchmark: a stand-in with the interface that is used, not their code."""

import sys

import pytest
import torch

from scripts.bench import training
from scripts.bench.authors import authors_epoch, authors_path
from tvae.errors import UserError

TINY = {"patch": 4, "latents": 8, "hidden": [6], "states": 16, "ea": (3, 2, 2), "noise": 25, "lr": 0.01, "points": 200}
STAND_IN = {
    "__init__.py": "calls = []",
    "models/__init__.py": "",
    "models/tvae.py": """
class GaussianTVAE:
    def __init__(self, **options):
        self.options = options
""",
    "variational/__init__.py": "",
    "variational/evo.py": """
class EVOVariationalStates:
    def __init__(self, **options):
        self.options = options
""",
    "utils/__init__.py": "",
    "utils/data.py": """
class TVODataLoader:
    def __init__(self, data, batch_size):
        self.data, self.batch_size = data, batch_size
""",
    "trainer/__init__.py": """
import tvo

class Trainer:
    def __init__(self, model, train_data, train_states):
        self.parts = model, train_data, train_states

    def em_step(self):
        tvo.calls.append(self.parts)
        return {"train_F": FREE_ENERGY}
""",
}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Writes a stand-in whose training ends with this free energy, and points TVO_PATH to it."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(free_energy="-1.5"):
        for name, content in STAND_IN.items():
            path = tmp_path / "tvo" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(content.replace("FREE_ENERGY", free_energy))
        monkeypatch.setenv("TVO_PATH", str(tmp_path))
        return str(tmp_path)

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "tvo"]:
        del sys.modules[name]


def test_the_model_is_of_the_same_sizes(checkout):
    data = torch.randn(70, 16)
    assert authors_epoch(checkout(), {**TINY, "hidden": [6, 5]}, data, 32)() == -1.5
    ((model, loader, states),) = sys.modules["tvo"].calls
    assert model.options["shape"] == (16, 5, 6, 8), "from the data to the latents"
    assert model.options["sigma2_init"] == pytest.approx(data.var().item())
    assert loader.data is data
    assert loader.batch_size == 32
    sizes = {"N": 70, "H": 8, "S": 16, "n_parents": 3, "n_children": 2, "n_generations": 2}
    assert sizes.items() <= states.options.items()
    assert model.options["precision"] == states.options["precision"] == torch.float32


def test_it_takes_turns_with_ours_on_the_same_minibatches(checkout):
    checkout()
    found = training.measure(TINY, 128, 1, 2, with_others=True)
    calls = sys.modules["tvo"].calls
    assert len(calls) == 1 + 1 + 2, "tried out, warmed up, and two rounds"
    assert calls[-1][1].data.shape == (64, 16), "every second of four minibatches"
    assert 0 < found["authors"].low <= found["authors"].high
    assert "| authors' code takes |" in training.table({"settings": {"tiny": found}})


def test_no_column_without_it(monkeypatch):
    monkeypatch.delenv("TVO_PATH", raising=False)
    assert authors_path() is None
    found = training.measure(TINY, 64, 1, 1, with_others=True)
    assert "authors" not in found
    assert "authors" not in training.table({"settings": {"tiny": found}})


def test_what_cannot_be_used_is_told_in_a_line(checkout, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TVO_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit) as end:
        training.main(["--out", str(tmp_path / "out")])
    assert end.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: TVO_PATH={tmp_path / 'nowhere'}: cannot be trained with (ModuleNotFoundError: ")
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_free_energy_that_is_none_is_refused(checkout):
    checkout("float('nan')")
    with pytest.raises(UserError, match="free energy of nan"):
        authors_path()
