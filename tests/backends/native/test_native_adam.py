"""The native Adam against that of torch."""

import subprocess
import sys

import torch
from native_samples import needs_kernel

from tvae.backends import torch_backend
from tvae.backends.native import Adam

pytestmark = needs_kernel


def steps(make, start, n_steps):
    """Parameters and optimiser after steps with random gradients and a falling rate."""
    rng = torch.Generator().manual_seed(1)
    parameters = [torch.nn.Parameter(p.clone()) for p in start]
    optimiser = make(parameters, 0.01)
    for i in range(n_steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=rng).to(parameter.dtype)
        optimiser.param_groups[0]["lr"] = 0.01 / (i + 1)
        optimiser.step()
    return parameters, optimiser


def test_adam_is_that_of_torch():
    rng = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        start = [torch.randn(40, 1000, generator=rng).to(dtype), torch.randn(3, generator=rng).to(dtype)]
        (ours, our_adam), (theirs, their_adam) = (steps(make, start, 5) for make in (Adam, torch_backend.adam))
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(our_adam.state_dict()["state"], their_adam.state_dict()["state"])
        assert our_adam.state_dict()["param_groups"] == their_adam.state_dict()["param_groups"]


def test_torch_resumes_from_its_state():
    start = [torch.ones(30, 2), torch.ones(2)]
    expected, _ = steps(Adam, start, 2)
    first, adam = steps(Adam, start, 1)
    other = torch_backend.adam(first, 1.0)
    other.load_state_dict(adam.state_dict())
    rng = torch.Generator().manual_seed(1)
    for parameter in 2 * first:  # the gradients of the first step, then those of the second
        parameter.grad = torch.randn(parameter.shape, generator=rng)
    other.param_groups[0]["lr"] = 0.01 / 2
    other.step()
    torch.testing.assert_close(first, expected)


STEP = """
import sys, torch
from tvae.backends.native import Adam
parameter = torch.nn.Parameter(torch.zeros(3))
parameter.grad = torch.ones(3)
optimiser = Adam([parameter], 0.01)
optimiser.step()
optimiser.zero_grad()
optimiser.load_state_dict(optimiser.state_dict())
assert parameter[0] < 0
assert "torch._dynamo" not in sys.modules
"""


def test_adam_does_not_import_the_compiler():
    subprocess.run([sys.executable, "-c", STEP], check=True)
