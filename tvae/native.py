"""The inner loop on the CPU by kernel.cpp: same meaning and random numbers as the torch code, several times as fast.

`e_step` does what `inference.e_step` does, `gradient` what autograd does with `learning.decoder_loss`. The products
with packed states work everywhere: where the kernel cannot be used, they unpack.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_double, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from tvae.config import EaConfig
from tvae.decoder import ACTIVATIONS, Decoder
from tvae.evolution import SELECTIONS
from tvae.kernel import available, library
from tvae.model import Model
from tvae.states import code_numbers, unpack
from tvae.streams import Stream

C_TYPES = {torch.float32: "float", torch.float64: "double"}
WORTH_THREADS = 2**22  # multiplications; below, waking other threads takes longer than they save


class Network(ctypes.Structure):
    """A decoder: kernel.cpp says what the fields of this and the following are."""

    _fields_ = [
        *((name, c_int64) for name in ("n_layers", "activation")),
        *((name, c_void_p) for name in ("sizes", "weights", "biases")),
    ]


class EStepTask(ctypes.Structure):
    """An E-step."""

    _fields_ = [
        ("decoder", Network),
        *((name, c_int64) for name in ("batch", "n_states", "n_latents", "n_threads", "selection", "n_parents")),
        *((name, c_int64) for name in ("n_children", "n_generations", "n_flips", "seed", "n_drawn")),
        *((name, c_double) for name in ("log_off", "sigma2")),
        *((name, c_void_p) for name in ("logit", "numbers", "index", "x", "observed", "packed", "new_packed")),
        *((name, c_void_p) for name in ("error", "log_joint", "n_accepted")),
    ]


class GradientTask(ctypes.Structure):
    """A gradient."""

    _fields_ = [
        ("decoder", Network),
        *((name, c_int64) for name in ("n_rows", "n_latents", "n_threads")),
        ("scale", c_double),
        *((name, c_void_p) for name in ("point", "packed", "weight", "x", "observed")),
        *((name, c_void_p) for name in ("weight_gradients", "bias_gradients")),
    ]


class Arguments:
    """Addresses for the kernel, and the memory behind them, which must live until the kernel has returned."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def tensor(self, tensor: Tensor) -> int:
        self.held.append(tensor.detach().contiguous())
        return self.held[-1].data_ptr()

    def array(self, values: Sequence[int]) -> int:
        self.held.append((c_int64 * len(values))(*values))
        return ctypes.addressof(self.held[-1])

    def network(self, decoder: Decoder) -> Network:
        return Network(
            n_layers=len(decoder.weights),
            activation=list(ACTIVATIONS).index(decoder.activation),
            sizes=self.array(decoder.sizes),
            weights=self.array([self.tensor(weight) for weight in decoder.weights]),
            biases=self.array([self.tensor(bias) for bias in decoder.biases]),
        )


def usable(tensor: Tensor) -> bool:
    """Whether the kernel can work on this tensor."""
    return tensor.device.type == "cpu" and tensor.dtype in C_TYPES and available()


def kernel(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """The kernel's function of this name for this type."""
    return getattr(library(), f"{name}_{C_TYPES[dtype]}")


def n_weights(decoder: Decoder) -> int:
    return sum(a * b for a, b in itertools.pairwise(decoder.sizes))


_kernel_threads: int | None = None  # where they are more than torch's


def n_threads_for(n_multiplications: int) -> int:
    """As many as torch uses, or `torch_on_one_thread` has set aside, where there is enough to do."""
    return _kernel_threads or torch.get_num_threads() if n_multiplications > WORTH_THREADS else 1


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Within, torch works on one thread and the kernel on those that torch had.

    What a visit leaves to torch is tiny, and waking a second thread for each operation costs more than it brings: a
    little on an idle machine, most of the time on one whose cores have other work.
    """
    global _kernel_threads
    _kernel_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_kernel_threads)
        _kernel_threads = None


def supports(ea: EaConfig, x: Tensor) -> bool:
    """Whether `e_step` can do what these options ask for."""
    return ea.mutation == "uniform" and not ea.crossover and usable(x)


def e_step(
    model: Model, ea: EaConfig, x: Tensor, packed: Tensor, rng: Stream | None, observed: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`inference.e_step`, its fields in their order; without `rng` the states are evaluated and stay as they are."""
    batch, n_states, _ = packed.shape
    new_packed, n_accepted = torch.empty_like(packed), torch.empty(batch, dtype=torch.int64)
    error, log_joint = x.new_empty(batch, n_states), x.new_empty(batch, n_states)
    arguments = Arguments()
    task = EStepTask(
        decoder=arguments.network(model.decoder),
        batch=batch,
        n_states=n_states,
        n_latents=model.n_latents,
        n_threads=n_threads_for(batch * n_states * n_weights(model.decoder)),
        selection=SELECTIONS.index(ea.selection),
        n_parents=ea.n_parents,
        n_children=ea.n_children,
        n_generations=ea.n_generations if rng is not None else 0,
        n_flips=ea.n_flips,
        seed=rng.seed if rng is not None else 0,
        n_drawn=rng.n_drawn if rng is not None else 0,
        log_off=torch.log1p(-model.pi).sum().item(),
        sigma2=model.sigma2.item(),
        logit=arguments.tensor(torch.logit(model.pi)),
        numbers=arguments.tensor(code_numbers(model.n_latents, x.device)),
        index=arguments.tensor(rng.index) if rng is not None else None,
        x=arguments.tensor(x),
        observed=arguments.tensor(observed) if observed is not None else None,
        packed=arguments.tensor(packed),
        new_packed=new_packed.data_ptr(),
        error=error.data_ptr(),
        log_joint=log_joint.data_ptr(),
        n_accepted=n_accepted.data_ptr(),
    )
    kernel("e_step", x.dtype)(ctypes.byref(task))
    if rng is not None:
        n_selected = 0 if ea.selection == "best" else ea.n_parents
        rng.n_drawn += ea.n_generations * (n_selected + ea.n_parents * ea.n_children * ea.n_flips)
    return new_packed, error, log_joint, n_accepted.sum()


def has_gradient(decoder: Decoder, x: Tensor) -> bool:
    """Whether `gradient` can be used."""
    return (decoder.is_linear or decoder.activation == "relu") and usable(x)


def gradient(
    decoder: Decoder,
    x: Tensor,
    point: Tensor,
    packed: Tensor,
    weight: Tensor,
    scale: float,
    observed: Tensor | None = None,
) -> list[Tensor]:
    """Of scale / 2 sum_r weight_r |x_point(r) - mu(z_r)|^2, for each of the decoder's parameters in their order.

    x (B, D), point (R,), packed (R, ceil(H/8)), weight (R,), observed (B, D) bool.
    """
    gradients = [torch.empty_like(parameter) for parameter in (*decoder.weights, *decoder.biases)]
    addresses = [g.data_ptr() for g in gradients]
    n_layers = len(decoder.weights)
    arguments = Arguments()
    task = GradientTask(
        decoder=arguments.network(decoder),
        n_rows=len(packed),
        n_latents=decoder.sizes[0],
        n_threads=n_threads_for(len(packed) * n_weights(decoder)),
        scale=scale,
        point=arguments.tensor(point),
        packed=arguments.tensor(packed),
        weight=arguments.tensor(weight),
        x=arguments.tensor(x),
        observed=arguments.tensor(observed) if observed is not None else None,
        weight_gradients=arguments.array(addresses[:n_layers]),
        bias_gradients=arguments.array(addresses[n_layers:]),
    )
    kernel("gradient", x.dtype)(ctypes.byref(task))
    return gradients


def multiply(packed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """z @ weight + bias for packed states z: (R, ceil(H/8)), (H, M), (M,) -> (R, M)."""
    n_latents, n_columns = weight.shape
    if not usable(weight):
        return torch.addmm(bias, unpack(packed, n_latents, weight.dtype), weight)
    out = weight.new_empty(len(packed), n_columns)
    inputs = (packed.contiguous(), weight.detach().contiguous(), bias.detach().contiguous())
    sizes = (len(packed), n_latents, n_columns, n_threads_for(len(packed) * weight.numel()))
    kernel("multiply", out.dtype)(*(c_void_p(t.data_ptr()) for t in (*inputs, out)), *map(c_int64, sizes))
    return out


def multiply_transposed(packed: Tensor, grad: Tensor, n_latents: int) -> Tensor:
    """z^T @ grad for packed states z: (R, ceil(H/8)), (R, M) -> (H, M)."""
    if not usable(grad):
        return unpack(packed, n_latents, grad.dtype).T @ grad
    out = grad.new_empty(n_latents, grad.shape[1])
    inputs = (packed.contiguous(), grad.detach().contiguous())
    sizes = (len(packed), *out.shape, n_threads_for(len(packed) * out.numel()))
    kernel("multiply_transposed", out.dtype)(*(c_void_p(t.data_ptr()) for t in (*inputs, out)), *map(c_int64, sizes))
    return out


def add_moments(gram: Tensor, packed: Tensor, weight: Tensor, point: Tensor, n_points: int) -> Tensor:
    """Add sum_r weight_r y_r y_r^T to gram (H+1, H+1), y_r being the state z_r with a one behind it: the bias's latent.

    packed (R, ceil(H/8)), weight (R,), point (R,). Returns (B, H+1): the mean of y for each data point.
    """
    size = len(gram)
    mean = weight.new_zeros(n_points, size)
    if usable(weight) and gram.dtype == torch.float64:
        inputs = (packed.contiguous(), weight.contiguous(), point.contiguous())
        sizes = (len(packed), size - 1)
        kernel("add_moments", mean.dtype)(
            *(c_void_p(t.data_ptr()) for t in (*inputs, gram, mean)), *map(c_int64, sizes)
        )
        return mean
    y = with_bias(packed, size - 1, weight.dtype)
    weighted = y * weight[:, None]
    gram += weighted.T @ y
    return mean.index_add_(0, point, weighted)


def with_bias(packed: Tensor, n_latents: int, dtype: torch.dtype) -> Tensor:
    """(R, H+1): the states, and a last latent that is always on."""
    return torch.nn.functional.pad(unpack(packed, n_latents, dtype), (0, 1), value=1.0)


class FirstLayer(torch.autograd.Function):
    """`multiply` with gradients for weight and bias: the first layer of the decoder on packed states."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.n_latents = len(weight)
        return multiply(packed, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        (packed,) = ctx.saved_tensors
        return None, multiply_transposed(packed, grad, ctx.n_latents), grad.sum(0)
