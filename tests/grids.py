"""Pictures of all shapes and the patches on them, for tests that hypothesis draws."""

import itertools

import torch
from hypothesis import settings
from hypothesis import strategies as st

from tvae.data.patches import positions

untimed = settings(deadline=None, max_examples=60)


@st.composite
def grids(draw):
    """A picture (H, W, C), a patch size that fits and a stride that covers it."""
    patch_size = draw(st.integers(1, 6))
    height, width = (draw(st.integers(patch_size, 14)) for _ in range(2))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    image = torch.rand(height, width, draw(st.sampled_from([1, 3])), generator=rng, dtype=torch.float64)
    return image, patch_size, draw(st.integers(1, patch_size))


def corners(image, patch_size, stride):
    """The top left pixel of every patch, in order."""
    rows, columns = (positions(length, patch_size, stride).tolist() for length in image.shape[:2])
    return list(itertools.product(rows, columns))
