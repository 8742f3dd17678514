"""Commands in processes of their own, of one rank or several, which scripts/fuzz/chaos.py starts at once."""

import csv
import json
import time
from pathlib import Path

import numpy as np

from scripts.fuzz import chaos

BARS = ["dataset=bars", "dataset.n_points=61", "states.n_states=16", "batch_size=16", "epochs=4", "precision=float64"]
SMALL = ["dataset=bars", "dataset.n_points=60", "epochs=4", "states.n_states=16", "batch_size=16"]
SMALL += ["checkpoint_seconds=0"]
LONG = ["dataset=bars", "dataset.n_points=500", "epochs=40", "checkpoint_seconds=0"]


def start(name, *options, n_ranks=1, command="train", **more):
    """The processes of a run in the folder `name`, and the file of what they print."""
    log = Path(f"{name}.log").absolute()
    options = [*options, f"hydra.run.dir={Path(name).absolute()}"]
    return chaos.start(command, options, log, n_ranks, **more), log


def run(name, *options, **more):
    """Exit codes of the ranks, and what they printed."""
    processes, log = start(name, *options, **more)
    return chaos.wait(processes, 120), log.read_text()


def metrics(directory):
    return json.loads((Path(directory) / "metrics.json").read_text())


def statuses(folder):
    """The status of each run below a folder."""
    return {path.parent.name: metrics(path.parent)["status"] for path in sorted(Path(folder).glob("*/metrics.json"))}


def history(name):
    """(epochs, columns): what a run has reported, without the time it took."""
    with open(Path(name) / "history.csv") as file:
        rows = list(csv.DictReader(file))
    columns = ("elbo", "elbo_test", "sigma", "pi_sum", "n_accepted")
    return np.array([[float(row[column] or 0) for column in columns] for row in rows])


def wait_until(is_true, seconds=120):
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def wait_for_epoch(name, epoch):
    """Wait until a run has reported so many epochs."""

    def has_come():
        try:
            return len(history(name)) >= epoch
        except (OSError, ValueError, KeyError):
            return False

    wait_until(has_come)
