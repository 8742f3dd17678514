"""mu(z; W): the decoder. The contract, and a linear map or multilayer perceptron of any depth with a linear output.

    mu(z) = W_L^T f(... f(W_1^T z + b_1) ...) + b_L

A decoder is cut in two: `first` is cheap on binary states, and cheaper still for a state that differs from another in
one latent; `rest` does what remains. The perceptron is cut after its first affine map: `first(z)` is a sum of the rows
of W_1 whose latents are on, and flipping one latent adds or subtracts one row. For a linear decoder `rest` is the
identity, so a flipped latent costs O(D).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.model.packed import UNPACKED, FirstLayer, Products, unpack
from tvae.model.parts import Start

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


class Decoder(nn.Module, ABC):
    """The contract: mu(z) = rest(first(z)), for any number of states at once."""

    kind: ClassVar[str]
    n_latents: int
    n_outputs: int

    @classmethod
    @abstractmethod
    def start(cls, start: Start) -> Decoder:
        """The decoder before training, in single precision."""

    @abstractmethod
    def first(self, z: Tensor) -> Tensor:
        """(..., H) zeros and ones -> (..., M): the part that is cheap to change by a flip."""

    @abstractmethod
    def flip(self, pre: Tensor, latent: Tensor, sign: Tensor) -> Tensor:
        """(..., M): `first` after latent (...) was switched on (sign +1) or off (-1); may overwrite `pre`."""

    @abstractmethod
    def rest(self, pre: Tensor) -> Tensor:
        """(..., M) -> (..., D)."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Plain values from which `from_spec` makes a decoder of the same shape; `decoder`: its `kind`, unless Mlp."""

    @classmethod
    @abstractmethod
    def from_spec(cls, spec: dict[str, Any]) -> Decoder:
        """A decoder of that shape; its parameters are arbitrary."""

    @property
    @abstractmethod
    def cost(self) -> int:
        """Multiplications that a dense evaluation of one state takes."""

    @property
    def is_linear(self) -> bool:
        return False

    def first_of_packed(self, packed: Tensor, products: Products = UNPACKED) -> Tensor:
        """`first` of packed states (R, ceil(H/8)), with gradients for its parameters."""
        return self.first(unpack(packed, self.n_latents, next(self.parameters()).dtype))

    def forward(self, z: Tensor) -> Tensor:
        return self.rest(self.first(z))


class Mlp(Decoder):
    """Weights are stored (inputs, outputs), so that a latent owns a contiguous row of the first one."""

    kind = "mlp"

    def __init__(self, n_latents: int, hidden: Sequence[int], n_outputs: int, activation: str, rng: torch.Generator):
        super().__init__()
        self.n_latents, self.n_outputs = n_latents, n_outputs
        self.sizes = [n_latents, *hidden, n_outputs]
        self.activation = activation
        self.weights = nn.ParameterList(
            nn.init.xavier_normal_(torch.empty(n_in, n_out), generator=rng)
            for n_in, n_out in itertools.pairwise(self.sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(n_out) for n_out in self.sizes[1:])

    @classmethod
    def start(cls, start: Start) -> Mlp:
        """Glorot weights, zero biases."""
        options = start.options
        return cls(options.n_latents, options.hidden, start.n_outputs, options.activation, start.rng)

    @property
    def is_linear(self) -> bool:
        return len(self.sizes) == 2

    @property
    def cost(self) -> int:
        return sum(n_in * n_out for n_in, n_out in itertools.pairwise(self.sizes))

    def spec(self) -> dict[str, Any]:
        return {"sizes": self.sizes, "activation": self.activation}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> Mlp:
        n_latents, *hidden, n_outputs = spec["sizes"]
        return cls(n_latents, hidden, n_outputs, spec["activation"], torch.Generator())

    def first(self, z: Tensor) -> Tensor:
        return F.linear(z, self.weights[0].T, self.biases[0])

    def flip(self, pre: Tensor, latent: Tensor, sign: Tensor) -> Tensor:
        return pre.addcmul_(sign[..., None].to(pre.dtype), self.weights[0][latent])

    def first_of_packed(self, packed: Tensor, products: Products = UNPACKED) -> Tensor:
        return FirstLayer.apply(packed, self.weights[0], self.biases[0], products)

    def rest(self, pre: Tensor) -> Tensor:
        f = ACTIVATIONS[self.activation]
        for weight, bias in list(zip(self.weights, self.biases, strict=True))[1:]:  # slicing them would build modules
            pre = F.linear(f(pre), weight.T, bias)
        return pre

    @torch.no_grad()
    def start_from_linear(self, linear: Mlp) -> None:
        """Become the same function: the linear weights in the output layer, the identity above it.

        Hidden units beyond the H latents keep their incoming weights and start with outgoing weights zero.
        """
        n_latents = linear.sizes[0]
        for problem in why_not_from_linear(self.sizes, self.activation, linear.sizes):
            raise ValueError(problem)
        *above, output = self.weights
        for weight, bias in zip(above, self.biases, strict=False):
            weight[n_latents:] = 0
            bias.zero_()
            weight[:n_latents, :n_latents] = torch.eye(n_latents)
        output[:n_latents] = linear.weights[0]
        output[n_latents:] = 0
        self.biases[-1].copy_(linear.biases[0])


DECODERS: dict[str, type[Decoder]] = {Mlp.kind: Mlp}


def decoder_from(spec: dict[str, Any], parameters: dict[str, Tensor]) -> Decoder:
    """The decoder whose `spec` and `state_dict` were saved, in the precision of those parameters."""
    decoder = DECODERS[spec.get("decoder", Mlp.kind)].from_spec(spec)
    decoder.to(next(iter(parameters.values())).dtype).load_state_dict(parameters)
    return decoder


def why_not_from_linear(sizes: Sequence[int], activation: str, linear_sizes: Sequence[int]) -> list[str]:
    """Reasons against starting a deep decoder of these sizes from a linear one, a line each."""
    zero_and_one = torch.tensor([0.0, 1.0])
    problems = []
    if len(linear_sizes) != 2:
        problems.append(f"the decoder to start from is not linear: its layers are {list(linear_sizes)}")
    if (sizes[0], sizes[-1]) != (linear_sizes[0], linear_sizes[-1]):
        problems.append(
            f"the decoder to start from maps {linear_sizes[0]} latents to {linear_sizes[-1]} values, "
            f"this one {sizes[0]} to {sizes[-1]}"
        )
    if min(sizes[1:-1], default=sizes[0]) < sizes[0]:
        problems.append(f"every hidden layer needs at least {sizes[0]} units to hold the identity, got {sizes[1:-1]}")
    if not torch.equal(ACTIVATIONS[activation](zero_and_one), zero_and_one):
        problems.append(f"an identity start needs an activation that maps 0 to 0 and 1 to 1; {activation} does not")
    return problems
