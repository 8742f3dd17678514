"""The smallest picture that all of a run works on, and options with which that takes a fraction of a second."""

import numpy as np

TINY = [
    "threads=1", "epochs=1", "model.n_latents=8", "states.n_states=8", "ea.n_parents=2", "ea.n_children=2",
    "dataset.train_stride=4", "effort=fast",
]  # fmt: skip


def tiny_picture(side=24):
    """(side, side) uint8: waves and a little noise."""
    y, x = np.mgrid[:side, :side]
    waves = 100 + 80 * np.sin(x / 3) * np.cos(y / 4)
    return (waves + 5 * np.random.default_rng(0).normal(size=waves.shape)).clip(1, 254).astype(np.uint8)
