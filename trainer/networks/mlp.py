"""Multi-layer perceptrons."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class Activation(nn.Module):
    """A nonlinearity that overwrites its input where that is safe.

    The input is the fresh output of a linear layer, which nothing else needs: ELU, ReLU and tanh
    have derivatives that follow from their result, so one array less is written and kept.
    """

    def __init__(self, name: str) -> None:
        """Choose `elu`, `relu`, `silu` or `tanh`."""
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        """Apply the nonlinearity to every element."""
        if self.name == "elu":
            return functional.elu(x, inplace=True)
        if self.name == "relu":
            return functional.relu(x, inplace=True)
        if self.name == "silu":
            return functional.silu(x)
        return torch.tanh_(x)


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
        layers.append(_linear(n_in, n_out, out_gain if last else math.sqrt(2.0), generator))
        if not last:
            layers.append(Activation(activation))
    return nn.Sequential(*layers)


def _linear(n_in: int, n_out: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """Build one linear layer, orthogonal weights and zero biases."""
    # On "meta" first: the default initialization would draw from torch's global generator.
    layer = nn.Linear(n_in, n_out, device="meta").to_empty(device="cpu")
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
