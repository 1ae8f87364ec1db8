"""Networks with a memory: LSTM and GRU layers, and what their state is.

A state is a tuple of tensors ``(layers, N, hidden)``, one row per robot: h and c of an LSTM, h of a
GRU. An episode begins with zeros.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

State = tuple[Tensor, ...]


class Recurrent(Protocol):
    """A network over sequences that carries a state from step to step.

    Attributes:
        out_dim: Length of what it gives.
        state_shapes: Layers and length of each tensor of its state.
    """

    out_dim: int
    state_shapes: tuple[tuple[int, int], ...]

    def __call__(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Run over sequences.

        Args:
            x: Inputs, ``(L, N, in_dim)``.
            state: The state before the first step.

        Returns:
            Outputs ``(L, N, out_dim)``, and the state after the last step.
        """
        ...


class Lstm(nn.LSTM):
    """LSTM layers (Hochreiter and Schmidhuber 1997); see `Recurrent`."""

    def __init__(self, in_dim: int, hidden: int, layers: int, generator: torch.Generator) -> None:
        """Build the layers; see `_fill` for their start."""
        # On "meta" first: the default initialization would draw from torch's global generator.
        super().__init__(in_dim, hidden, layers, device="meta")
        self.to_empty(device="cpu")
        self.out_dim = hidden
        self.state_shapes = ((layers, hidden), (layers, hidden))
        _fill(self, 4, generator)
        for i in range(layers):
            # To remember is easier to unlearn than to learn (Jozefowicz et al. 2015).
            nn.init.ones_(getattr(self, f"bias_ih_l{i}")[hidden : 2 * hidden].detach())

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - one form for both kinds
        self, input: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """See `Recurrent`."""
        h, c = state
        return super().forward(input, (h, c))


class Gru(nn.GRU):
    """GRU layers (Cho et al. 2014) as torch has them; see `Recurrent`."""

    def __init__(self, in_dim: int, hidden: int, layers: int, generator: torch.Generator) -> None:
        """Build the layers; see `_fill` for their start."""
        super().__init__(in_dim, hidden, layers, device="meta")
        self.to_empty(device="cpu")
        self.out_dim = hidden
        self.state_shapes = ((layers, hidden),)
        _fill(self, 3, generator)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - one form for both kinds
        self, input: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """See `Recurrent`."""
        outputs, h = super().forward(input, state[0])
        return outputs, (h,)


def initial_state(network: Recurrent, count: int, like: Tensor) -> State:
    """Return the state in which an episode begins, on the device of `like`."""
    return tuple(
        torch.zeros(layers, count, hidden, device=like.device)
        for layers, hidden in network.state_shapes
    )


def forget(state: State, rows: Tensor) -> State:
    """Return the state with the rows that are True, bool ``(N,)``, as an episode begins."""
    return tuple(part.masked_fill(rows.unsqueeze(-1), 0.0) for part in state)


def _fill(rnn: nn.LSTM | nn.GRU, gates: int, generator: torch.Generator) -> None:
    """Orthogonal matrices gate by gate, which neither grow nor shrink the state; biases 0."""
    for name, parameter in rnn.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
        else:
            for block in parameter.detach().chunk(gates):
                nn.init.orthogonal_(block, generator=generator)
