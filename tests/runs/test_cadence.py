"""The epochs and times at which a run saves itself and restores its picture."""

from types import SimpleNamespace

import pytest

from tvae.runs import session
from tvae.runs.session import Cadence


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(session.time, "monotonic", lambda: clock.now)
    return clock


def test_a_checkpoint_within_an_epoch_is_due_after_so_many_seconds(clock):
    fit = SimpleNamespace(epoch=0, batch=0)
    due = Cadence(fit, restore_every=10, checkpoint_seconds=30)
    fit.batch = 5
    for seconds, is_due in ((0, False), (29.9, False), (30, True), (1000, True)):
        clock.now = 100 + seconds
        assert due.saves_within_epoch() == is_due
    due.note_saved()
    fit.batch = 6
    assert not due.saves_within_epoch()
    clock.now += 30
    assert due.saves_within_epoch()
    assert not due.saves_after_epoch()


def test_no_place_is_saved_twice(clock):
    """A minibatch lies between two checkpoints, however soon the next one is due."""
    fit = SimpleNamespace(epoch=3, batch=2)
    due = Cadence(fit, restore_every=10, checkpoint_seconds=1e-9)
    clock.now += 1
    assert not due.saves_within_epoch()
    fit.batch = 3
    assert due.saves_within_epoch()
    due.note_saved()
    clock.now += 1
    assert not due.saves_within_epoch()
    fit.epoch, fit.batch = 4, 3
    assert due.saves_within_epoch()


def test_zero_seconds_save_after_every_epoch_and_never_within(clock):
    fit = SimpleNamespace(epoch=0, batch=0)
    due = Cadence(fit, restore_every=10, checkpoint_seconds=0)
    fit.batch = 7
    clock.now += 1000
    assert due.saves_after_epoch()
    assert not due.saves_within_epoch()


def test_the_picture_is_looked_at_every_so_many_epochs(clock):
    fit = SimpleNamespace(epoch=0, batch=0, n_epochs=14)
    due = Cadence(fit, restore_every=4, checkpoint_seconds=30)
    looked_at = []
    for fit.epoch in range(1, 15):
        looked_at += [fit.epoch] if due.restores() else []
    assert looked_at == [4, 8, 12, 14], "the last one, too"
