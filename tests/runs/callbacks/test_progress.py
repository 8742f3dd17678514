"""Progress of a run: on a terminal, in a notebook, and in a file of lines."""

import io
import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tvae.restoration.tiling import Bands
from tvae.runs.callbacks import progress
from tvae.runs.callbacks.progress import has_bar, restoring, training
from tvae.runs.log_lines import as_time, summary

ROW = {"epoch": 3, "elbo": -1.5, "elbo_test": None, "sigma": 0.25, "psnr": 30.0, "n_accepted": 2.0, "seconds": 1.0}


def fit_at(epoch, batch=0, is_leader=True):
    team = SimpleNamespace(is_leader=is_leader)
    return SimpleNamespace(epoch=epoch, batch=batch, n_epochs=4, n_batches=lambda epoch: 10, team=team)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def to_terminal(monkeypatch):
    """A terminal as stderr; not a fixture, because pytest sets stderr again between fixtures and test."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_a_bar_moves_within_epochs_and_shows_what_was_reached(monkeypatch):
    terminal = to_terminal(monkeypatch)
    fit = fit_at(2)
    with training(fit, is_told=True) as shown:
        fit.batch = 5
        assert not shown.moves()
        assert shown.bar.n == 2.5
        shown.bar.refresh()
        shown.end_epoch(ROW)
        shown.bar.refresh()
    assert "2.5/4 epochs" in terminal.getvalue()
    assert "3/4 epochs" in terminal.getvalue()
    assert "ELBO=-1.500, sigma=0.25, PSNR=30.00 dB" in terminal.getvalue()


def test_a_stage_goes_from_nothing_to_all(monkeypatch):
    terminal = to_terminal(monkeypatch)
    with restoring(fit_at(4), {"states": 0.25, "local": 0.75}, is_told=True) as watch:
        for stage in ("states", "local"):
            Bands(watch=watch).fill(stage, torch.zeros(2, 100, 3, 1), 1, lambda band: torch.zeros(1))
    assert "restoring: 100%" in terminal.getvalue()


def test_elsewhere_there_are_lines_now_and_then(caplog, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_SILENT", -1.0)
    caplog.set_level(logging.INFO)
    fit = fit_at(2, batch=5)
    with training(fit, is_told=True) as shown:
        shown.moves()
        shown.end_epoch(ROW)
    with restoring(fit, {"states": 0.5, "local": 0.5}, is_told=True) as watch:
        watch("states", 0.0)
        watch("local", 0.5)
    assert caplog.messages == [
        "epoch 3/4: 50%",
        "epoch 3/4  ELBO -1.500  sigma 0.25  PSNR 30.00 dB  new states 2.00  1.00 s",
        "restoring 0%: states",
        "restoring 0%",
        "restoring 75%: local",
        "restoring 75%",
    ]


def test_many_short_epochs_are_a_few_lines(caplog):
    """The first one and the last one, and each stage of the restoration once."""
    caplog.set_level(logging.INFO)
    with training(fit_at(0), is_told=True) as shown:
        for epoch in range(1, 5):
            shown.end_epoch(ROW | {"epoch": epoch})
    with restoring(fit_at(4), {"states": 0.5, "local": 0.5}, is_told=True) as watch:
        for stage in ("states", "local"):
            for share in (0.0, 0.5, 1.0):
                watch(stage, share)
    assert [line.split("  ")[0] for line in caplog.messages] == [
        "epoch 1/4", "epoch 4/4", "restoring 0%: states", "restoring 50%: local",
    ]  # fmt: skip


def test_nothing_is_said_too_often_nor_where_nobody_asked(caplog):
    caplog.set_level(logging.INFO)
    with training(fit_at(2, batch=5), is_told=True) as shown:
        shown.moves()
    with training(fit_at(2, batch=5), is_told=False) as shown:
        shown.end_epoch(ROW)
    assert caplog.messages == []


def test_only_the_leader_shows_a_bar(monkeypatch):
    terminal = to_terminal(monkeypatch)
    with restoring(fit_at(0, is_leader=False), {"states": 1.0}, is_told=False) as watch:
        watch("states", 0.5)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    ("shell", "is_notebook"), [(None, False), (object(), False), (SimpleNamespace(kernel=1), True)]
)
def test_notebooks_have_a_bar(monkeypatch, shell, is_notebook):
    """A notebook's stderr is no terminal."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert has_bar() == is_notebook
    with training(fit_at(2), is_told=False) as shown:
        shown.end_epoch(ROW)
    with restoring(fit_at(4), {"states": 1.0}, is_told=False) as watch:
        watch("states", 0.5)
    written = sys.stderr.getvalue()
    assert ("3/4 epochs" in written) == ("restoring: 100%" in written) == is_notebook


NOTEBOOK = """
import sys, types, numpy as np
shell = types.SimpleNamespace(kernel=1, config={"IPKernelApp": {}})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
sys.modules["IPython.display"] = sys.modules["ipywidgets"] = None  # not installed
import tvae
image = np.random.default_rng(0).normal(size=(24, 24))
model = tvae.fit(image, epochs=1, n_latents=8, patch_size=4, effort="fast", threads=1)
sys.stderr.write("<trained>")
model.restore(image)
"""


def test_the_calls_show_bars_in_notebooks_and_no_advice_on_widgets():
    found = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert "Warning" not in found.stderr
    before, after = found.stderr.split("<trained>")
    assert "1/1 epochs" in before
    assert "restoring: 100%" in after


def test_the_last_line_counts_everything(tmp_path):
    metrics = {"seconds": 1.0, "seconds_total": 105.0, "elbo": -1.0, "sigma": 2.0, "psnr": None}
    assert summary(metrics, tmp_path) == f"finished in 1.8 minutes: ELBO -1.0000, sigma 2; results in {tmp_path}"
    assert [as_time(seconds) for seconds in (1.2, 99, 100, 7200)] == ["1 s", "99 s", "1.7 minutes", "2.0 hours"]
