"""Multi-layer perceptrons."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from trainer.networks.kernels import Elu, Linear


class _Tanh(nn.Module):
    """tanh that overwrites its input: the derivative follows from the result."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh_(x)


_PLAIN: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": Elu,
    "relu": functools.partial(nn.ReLU, inplace=True),
    "silu": nn.SiLU,
    "tanh": _Tanh,
}


def make_mlp(
    in_dim: int,
    hidden: Sequence[int],
    out_dim: int,
    *,
    activation: str,
    out_gain: float,
    generator: torch.Generator,
) -> nn.Sequential:
    """Build linear layers with a nonlinearity between them, and none at the end.

    Weights are orthogonal with gain sqrt(2) inside and `out_gain` at the end, biases 0
    (Andrychowicz et al. 2021, "What matters for on-policy deep actor-critic methods?").

    Args:
        in_dim: Length of the input.
        hidden: Widths of the hidden layers; empty makes a linear map.
        out_dim: Length of the output.
        activation: `elu`, `relu`, `silu` or `tanh`.
        out_gain: Gain of the last layer.
        generator: Source of the random weights, on the CPU.
    """
    widths = [in_dim, *hidden, out_dim]
    layers: list[nn.Module] = []
    for i, (n_in, n_out) in enumerate(itertools.pairwise(widths)):
        last = i == len(widths) - 2
        layers.append(make_linear(n_in, n_out, out_gain if last else math.sqrt(2.0), generator))
        if not last:
            layers.append(_ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def plain_activation(name: str) -> nn.Module:
    """Build a nonlinearity that overwrites nothing, for any place in a network."""
    return _PLAIN[name]()


def make_linear(n_in: int, n_out: int, gain: float, generator: torch.Generator) -> Linear:
    """Build one linear layer, orthogonal weights with a gain and zero biases."""
    # On "meta" first: the default initialization would draw from torch's global generator.
    layer = Linear(n_in, n_out, device="meta").to_empty(device="cpu")
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
