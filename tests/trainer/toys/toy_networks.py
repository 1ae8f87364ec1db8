"""Networks of another package: an encoder that brings a loss along, and a memory of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.batch import Minibatch
from trainer.losses import AuxiliaryLoss
from trainer.network_config import EncoderConfig
from trainer.networks.recurrent import State


class Guess(nn.Module):
    """A linear encoder; one layer on top guesses what the critic sees first."""

    def __init__(self, in_dim: int, config: EncoderConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.out_dim = config.width
        self.weight = nn.Parameter(torch.randn(config.width, in_dim, generator=generator) * 0.3)
        self.guess = nn.Parameter(torch.zeros(config.width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight.T)

    def auxiliary_losses(self, seen: Tensor, data: Minibatch) -> dict[str, AuxiliaryLoss]:
        assert isinstance(data.critic_in, Tensor)
        loss = (seen @ self.guess - data.critic_in[:, 0]).square().mean()
        return {"guess": AuxiliaryLoss(coef=2.0, loss=loss)}


class Leak(nn.Module):
    """A leaking sum: h = 0.9 h + W x, step by step."""

    def __init__(self, in_dim: int, hidden: int, layers: int, generator: torch.Generator) -> None:
        super().__init__()
        assert layers == 1
        self.out_dim = hidden
        self.state_shapes = ((1, hidden),)
        self.weight = nn.Parameter(torch.randn(hidden, in_dim, generator=generator) * 0.5)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        h, outputs = state[0][0], []
        for now in x:
            h = 0.9 * h + now @ self.weight.T
            outputs.append(h)
        return torch.stack(outputs), (h.unsqueeze(0),)
