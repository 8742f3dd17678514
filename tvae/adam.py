"""Adam (Kingma and Ba 2015). What torch's own spends in Python is more than a small decoder's step takes.

m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2,
W = W - rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon)
"""

from __future__ import annotations

import ctypes
import inspect
import math
from ctypes import c_double, c_int64, c_void_p

import torch

from tvae.native import Arguments, kernel, n_threads_for, usable


class AdamTask(ctypes.Structure):
    """A step: kernel.cpp says what the fields are."""

    _fields_ = [
        *((name, c_int64) for name in ("n_parameters", "n_threads")),
        *((name, c_double) for name in ("rate", "beta1", "beta2", "root", "epsilon")),
        *((name, c_void_p) for name in ("sizes", "parameters", "gradients", "means", "squares")),
    ]


class Adam(torch.optim.Adam):
    """torch.optim.Adam with its default options and its state, in one pass. All parameters have gradients."""

    # As torch wraps these, the first call imports its compiler: 1.3 s of a command. Only torch's own step needs it.
    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        parameters = group["params"]
        if not all(usable(parameter) for parameter in parameters):
            return super().step(closure)
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["step"] += 1
        n_steps, (beta1, beta2) = states[0]["step"].item(), group["betas"]
        arguments, sizes = Arguments(), [parameter.numel() for parameter in parameters]
        update = AdamTask(
            n_parameters=len(parameters),
            n_threads=n_threads_for(16 * sum(sizes)),
            rate=group["lr"] / (1 - beta1**n_steps),
            beta1=beta1,
            beta2=beta2,
            root=math.sqrt(1 - beta2**n_steps),
            epsilon=group["eps"],
            sizes=arguments.array(sizes),
            parameters=arguments.array([parameter.data_ptr() for parameter in parameters]),
            gradients=arguments.array([arguments.tensor(parameter.grad) for parameter in parameters]),
            means=arguments.array([state["exp_avg"].data_ptr() for state in states]),
            squares=arguments.array([state["exp_avg_sq"].data_ptr() for state in states]),
        )
        kernel("adam", parameters[0].dtype)(ctypes.byref(update))
