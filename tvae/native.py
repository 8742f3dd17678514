"""An optional accelerator on the CPU: kernel.cpp, compiled on first use by the system's C++ compiler.

It computes what `inference.e_step` and products with packed states compute, with the same random numbers, several times
as fast. Where there is no compiler, or with `TVAE_NATIVE=0` in the environment, the torch code does the work. The
library is kept in `TVAE_CACHE_DIR`, by default `tvae` in the user's cache folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import c_double, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tvae.config import EaConfig
from tvae.decoder import ACTIVATIONS
from tvae.evolution import SELECTIONS
from tvae.model import Model
from tvae.states import code_numbers, unpack
from tvae.streams import Stream

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernel.cpp")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-std=c++17", "-shared", "-fPIC")
C_TYPES = {torch.float32: "float", torch.float64: "double"}


class Task(ctypes.Structure):
    """The arguments of an E-step: kernel.cpp says what they are."""

    _fields_ = [
        *((name, c_int64) for name in ("batch", "n_states", "n_latents", "n_layers", "activation", "n_threads")),
        *((name, c_int64) for name in ("selection", "n_parents", "n_children", "n_generations", "n_flips", "n_drawn")),
        *((name, c_double) for name in ("log_off", "sigma2")),
        *((name, c_void_p) for name in ("sizes", "weights", "biases", "logit", "numbers", "keys", "x", "observed")),
        *((name, c_void_p) for name in ("packed", "new_packed", "error", "log_joint", "n_accepted")),
    ]


@lru_cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None."""
    if os.environ.get("TVAE_NATIVE") == "0":
        log.info("native kernel: switched off by TVAE_NATIVE=0")
        return None
    try:
        kernel = ctypes.CDLL(str(_compiled()))
    except (OSError, subprocess.SubprocessError) as error:
        log.info("native kernel: not available, torch does the work (%s)", error)
        return None
    # Two OpenMP runtimes would wait for each other in busy loops: take the threads of the one that torch depends on.
    entry = getattr(ctypes.CDLL(torch._C.__file__), "GOMP_parallel", None)
    kernel.set_parallel(ctypes.cast(entry, c_void_p) if entry else None)
    return kernel


def available() -> bool:
    return library() is not None


def _compiled() -> Path:
    """The library for this source, compiler and processor, compiled unless it is there already."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++"))), None)
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    key = hashlib.sha256(b"\0".join([SOURCE.read_bytes(), repr(FLAGS).encode(), version, _processor()])).hexdigest()
    folder = _cache_dir()
    path = folder / f"kernel-{key[:16]}.so"
    if not path.exists():
        handle, temporary = tempfile.mkstemp(suffix=".so", dir=folder)
        os.close(handle)
        try:
            subprocess.run(
                [compiler, *FLAGS, str(SOURCE), "-o", temporary], capture_output=True, check=True, timeout=300
            )
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return path


def _processor() -> bytes:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
    return "\n".join(
        sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))})
    ).encode()


def _cache_dir() -> Path:
    """A folder to keep the library in; a new temporary one where the user's cannot be written."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvae"
    folder = Path(os.environ.get("TVAE_CACHE_DIR") or default)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="tvae-"))
    return folder


def supports(ea: EaConfig, x: Tensor) -> bool:
    """Whether `e_step` can do what these options ask for."""
    wanted = ea.mutation == "uniform" and not ea.crossover and ea.selection in SELECTIONS
    return wanted and _usable(x)


def e_step(
    model: Model, ea: EaConfig, x: Tensor, packed: Tensor, rng: Stream | None, observed: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`inference.e_step`, its fields in their order; without `rng` the states are evaluated and stay as they are."""
    decoder = model.decoder
    batch, n_states, _ = packed.shape
    held: list[Any] = []  # what the kernel reads must live until it has returned

    def address(tensor: Tensor) -> int:
        held.append(tensor.detach().contiguous())
        return held[-1].data_ptr()

    def array(values: list[int]) -> int:
        held.append((c_int64 * len(values))(*values))
        return ctypes.addressof(held[-1])

    new_packed, n_accepted = torch.empty_like(packed), torch.empty(batch, dtype=torch.int64)
    error, log_joint = x.new_empty(batch, n_states), x.new_empty(batch, n_states)
    n_generations = ea.n_generations if rng is not None else 0
    task = Task(
        batch=batch,
        n_states=n_states,
        n_latents=model.n_latents,
        n_layers=len(decoder.weights),
        activation=list(ACTIVATIONS).index(decoder.activation),
        n_threads=torch.get_num_threads(),
        selection=SELECTIONS.index(ea.selection),
        n_parents=ea.n_parents,
        n_children=ea.n_children,
        n_generations=n_generations,
        n_flips=ea.n_flips,
        n_drawn=rng.n_drawn if rng is not None else 0,
        log_off=torch.log1p(-model.pi).sum().item(),
        sigma2=model.sigma2.item(),
        sizes=array(decoder.sizes),
        weights=array([address(weight) for weight in decoder.weights]),
        biases=array([address(bias) for bias in decoder.biases]),
        logit=address(torch.logit(model.pi)),
        numbers=address(code_numbers(model.n_latents, x.device)),
        keys=address(rng.key) if rng is not None else None,
        x=address(x),
        observed=address(observed) if observed is not None else None,
        packed=address(packed),
        new_packed=new_packed.data_ptr(),
        error=error.data_ptr(),
        log_joint=log_joint.data_ptr(),
        n_accepted=n_accepted.data_ptr(),
    )
    getattr(library(), f"e_step_{C_TYPES[x.dtype]}")(ctypes.byref(task))
    if rng is not None:
        n_selected = 0 if ea.selection == "best" else ea.n_parents
        rng.n_drawn += n_generations * (n_selected + ea.n_parents * ea.n_children * ea.n_flips)
    return new_packed, error, log_joint, n_accepted.sum()


def multiply(packed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """z @ weight + bias for packed states z: (R, ceil(H/8)), (H, M), (M,) -> (R, M)."""
    n_latents, n_columns = weight.shape
    if not _usable(weight):
        return torch.addmm(bias, unpack(packed, n_latents, weight.dtype), weight)
    out = weight.new_empty(len(packed), n_columns)
    _call("multiply", out, packed, weight, bias, out, len(packed), n_latents, n_columns)
    return out


def multiply_transposed(packed: Tensor, grad: Tensor, n_latents: int) -> Tensor:
    """z^T @ grad for packed states z: (R, ceil(H/8)), (R, M) -> (H, M)."""
    if not _usable(grad):
        return unpack(packed, n_latents, grad.dtype).T @ grad
    out = grad.new_empty(n_latents, grad.shape[1])
    _call("multiply_transposed", out, packed, grad, out, len(packed), n_latents, grad.shape[1])
    return out


def _usable(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in C_TYPES and available()


def _call(name: str, like: Tensor, *arguments: Tensor | int) -> None:
    """Call the kernel's function for the type of `like`, on as many threads as torch uses."""
    held = [a.contiguous() if isinstance(a, Tensor) else a for a in arguments]
    values = [c_void_p(a.data_ptr()) if isinstance(a, Tensor) else c_int64(a) for a in held]
    getattr(library(), f"{name}_{C_TYPES[like.dtype]}")(*values, c_int64(torch.get_num_threads()))


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
