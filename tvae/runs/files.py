"""The files a run directory may hold: one list for writers and readers."""

from __future__ import annotations

from tvae.runs.callbacks.figures import FIGURES
from tvae.runs.callbacks.output_pictures import OUTPUT_PICTURES

CONFIG, FINGERPRINT, METRICS, HISTORY, LOG = "config.yaml", "data.sha256", "metrics.json", "history.csv", "run.log"
FIGURE_DIR, TENSORBOARD_DIR = "figures", "tensorboard"
CHECKPOINT, PREVIOUS, NEW = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.new.pt"
DAMAGED = "checkpoint.damaged.pt"  # a newest checkpoint that could not be read
PARTS = "checkpoint.part-*.pt"  # states of many ranks, or many of one
BANDS = "restored.band-*.pt"  # of a picture, until all of it is restored
STATES = "states.{}.bin"  # the states of a rank, where they do not fit into memory
# For a folder of pictures: the runs, their results, and tables of them
RUNS_DIR, RESTORED_DIR, TABLE, PAGE, SHARED_MODEL = "runs", "restored", "results.csv", "results.html", "model.tvae"

# Everything a run may write; nothing else in the directory is ever touched.
NAMED = (
    CONFIG, FINGERPRINT, METRICS, HISTORY, LOG, FIGURE_DIR, TENSORBOARD_DIR, *OUTPUT_PICTURES,
    CHECKPOINT, PREVIOUS, NEW, DAMAGED,
)  # fmt: skip
PATTERNS = (PARTS, BANDS, STATES.format("*"))
IN_FOLDERS = {FIGURE_DIR: tuple(FIGURES), TENSORBOARD_DIR: ("events.out.tfevents.*",)}
