"""Adam (Kingma and Ba 2015). What torch's own spends in Python is more than a small decoder's step takes.

m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2,
W = W - rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon)
"""

from __future__ import annotations

import ctypes
import inspect
import math
from collections.abc import Iterable, Sequence
from ctypes import c_double

import torch

from tvae.backends.native.bindings import AdamTask, Arguments
from tvae.backends.native.loading import kernel
from tvae.backends.native.threads import n_threads_for


class Adam(torch.optim.Adam):
    """torch.optim.Adam with its default options and its state, in one pass. All parameters have gradients."""

    # Wrapped by torch, their first call would import its compiler: 1.3 s of a command. Only torch's own step needs it.
    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)

    def __init__(self, parameters: Iterable[torch.nn.Parameter], rate: float) -> None:
        super().__init__(parameters, lr=rate, fused=True)  # fused: so that the state suits torch's fast Adam, too

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        arguments, parameters = Arguments(), group["params"]
        task = self.task(arguments, [arguments.tensor(parameter.grad) for parameter in parameters], [group["lr"]])
        kernel("adam", parameters[0].dtype)(ctypes.byref(task))

    def task(self, arguments: Arguments, gradients: Sequence[int], rates: Sequence[float]) -> AdamTask:
        """Steps with gradients at these addresses, one for each of the rates, which count as done from now on."""
        (group,) = self.param_groups
        parameters, (beta1, beta2) = group["params"], group["betas"]
        states = [self._state_of(parameter) for parameter in parameters]
        n_before, sizes = int(states[0]["step"].item()), [parameter.numel() for parameter in parameters]
        torch._foreach_add_([state["step"] for state in states], len(rates))
        numbers = range(n_before + 1, n_before + len(rates) + 1)
        return AdamTask(
            n_parameters=len(parameters),
            n_threads=n_threads_for(16 * sum(sizes)),
            beta1=beta1,
            beta2=beta2,
            epsilon=group["eps"],
            rates=arguments.array([rate / (1 - beta1**t) for t, rate in zip(numbers, rates, strict=True)], c_double),
            roots=arguments.array([math.sqrt(1 - beta2**t) for t in numbers], c_double),
            sizes=arguments.array(sizes),
            parameters=arguments.array([parameter.data_ptr() for parameter in parameters]),
            gradients=arguments.array(gradients),
            means=arguments.array([state["exp_avg"].data_ptr() for state in states]),
            squares=arguments.array([state["exp_avg_sq"].data_ptr() for state in states]),
        )

    step.hooked = True  # type: ignore[attr-defined]  # else torch wraps it for its profiler, which takes longer than it

    def _state_of(self, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        """The optimiser's state of a parameter, in torch's layout."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter, requires_grad=False) for _ in range(2))
        return state
