"""Requests to stop a run."""

import signal

import pytest

from tvae.runs.distributed.ranks import Ranks
from tvae.runs.signals import queue_again, stop_on_signal


@pytest.mark.parametrize("rank", [0, 1])
def test_the_time_limit_of_a_cluster_is_handed_on_by_the_leader(monkeypatch, rank):
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    handed_on = []
    before = signal.signal(signal.SIGUSR2, lambda *_: handed_on.append("queue it again"))
    try:
        with stop_on_signal() as stop:
            assert not stop()
            signal.raise_signal(signal.SIGUSR2)
            assert stop()
            assert stop.is_at_limit
        assert handed_on == []
        if rank == 0:
            queue_again(Ranks(0, 2))
        else:
            with pytest.raises(SystemExit) as end:
                queue_again(Ranks(1, 2))
            assert end.value.code == 0  # else SLURM would end the leader as well
        assert len(handed_on) == (rank == 0)
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_under_torchrun", [False, True])
def test_a_second_signal_ends_at_once_unless_torchrun_has_handed_on_the_first(monkeypatch, number, is_under_torchrun):
    before = signal.getsignal(number)
    if is_under_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with stop_on_signal() as stop:
        signal.raise_signal(number)
        assert stop()
        if is_under_torchrun:
            signal.raise_signal(number)
        else:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert signal.getsignal(number) is before
