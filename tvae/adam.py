"""Adam (Kingma and Ba 2015). What torch's own spends in Python is more than a small decoder's step takes.

m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2,
W = W - rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon)
"""

from __future__ import annotations

import math
from ctypes import c_double, c_int64, c_void_p

import torch
from torch import Tensor

from tvae.native import kernel, n_threads_for, usable


class Adam(torch.optim.Adam):
    """torch.optim.Adam with its default options and its state, in one pass over memory."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if not all(usable(parameter) for parameter in group["params"]):
                return super().step(closure)
            for parameter in group["params"]:
                self._update(parameter, group["lr"], group["betas"], group["eps"])

    def _update(self, parameter: Tensor, rate: float, betas: tuple[float, float], epsilon: float) -> None:
        assert parameter.grad is not None
        beta1, beta2 = betas
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        n_steps = state["step"].item()
        memory = (parameter, parameter.grad.contiguous(), state["exp_avg"], state["exp_avg_sq"])
        numbers = (rate / (1 - beta1**n_steps), beta1, beta2, math.sqrt(1 - beta2**n_steps), epsilon)
        kernel("adam", parameter.dtype)(
            *(c_void_p(t.data_ptr()) for t in memory),
            c_int64(parameter.numel()),
            *map(c_double, numbers),
            c_int64(n_threads_for(16 * parameter.numel())),
        )
