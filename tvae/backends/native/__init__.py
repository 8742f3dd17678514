"""The visit of a minibatch on the CPU in C++: the results of `torch_backend` up to rounding, several times as fast.

`is_usable`, `has_e_step` and `has_gradient` say what it can do for a model; nothing here falls back to torch.
"""

from tvae.backends.native.adam import Adam
from tvae.backends.native.loading import is_available
from tvae.backends.native.packed_products import PRODUCTS
from tvae.backends.native.threads import torch_on_one_thread
from tvae.backends.native.visit import e_step, gradient, has_e_step, has_gradient, is_usable, visit_batch, visit_stretch

__all__ = [
    "PRODUCTS",
    "Adam",
    "e_step",
    "gradient",
    "has_e_step",
    "has_gradient",
    "is_available",
    "is_usable",
    "torch_on_one_thread",
    "visit_batch",
    "visit_stretch",
]
