"""Networks for export tests: an LSTM or GRU with a head, what a trainer of recurrent nets has."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from export.graph import Source, make_policy, spec_or_none
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.extremes import synthesize
from robot_runtime.policy.spec import RecurrentState
from tests.helpers.contracts import quadruped_contract, with_network
from trainer.networks.graph_spec import (
    GraphSpec,
    Squash,
    dense_layers,
    normalization_of,
    recurrent_layers,
)
from trainer.normalizer import RunningNormalizer

SQUASHES = ("", "tanh", "beta")


class Recurrent(nn.Module):
    """Normalizer, LSTM or GRU or nothing, dense layers, squash: ``(obs, *states)`` in and out."""

    def __init__(
        self,
        dims: tuple[int, int],
        *,
        kind: str = "lstm",
        layers: int = 1,
        hidden: int = 24,
        activation: type[nn.Module] = nn.ELU,
        squash: str = "",
        seed: int = 0,
    ) -> None:
        """Random weights, a normalizer that has seen 500 observations."""
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        obs_dim, num_actions = dims
        self.normalizer = RunningNormalizer(obs_dim)
        self.normalizer.update(torch.randn(500, obs_dim, generator=generator) * 2.0 + 0.5)
        rnn = {"lstm": nn.LSTM, "gru": nn.GRU}.get(kind)
        self.rnn = rnn(obs_dim, hidden, num_layers=layers) if rnn else None
        outputs = num_actions * (2 if squash == "beta" else 1)
        self.net = nn.Sequential(
            nn.Linear(hidden if rnn else obs_dim, 16), activation(), nn.Linear(16, outputs)
        )
        with torch.no_grad():
            for weight in self.parameters():
                size = weight.shape[-1] ** -0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * size)
        self.squash = squash
        self.register_buffer("scale", torch.linspace(0.5, 2.0, num_actions))
        self.register_buffer("offset", torch.linspace(-0.2, 0.3, num_actions))
        self.scale: Tensor
        self.offset: Tensor

    def forward(self, obs: Tensor, *states: Tensor) -> Any:
        """One step."""
        x = self.normalizer(obs)
        following: tuple[Tensor, ...] = ()
        if self.rnn is not None:
            x, after = self.rnn(x.unsqueeze(0), states if len(states) > 1 else states[0])  # type: ignore[misc]
            following, x = after if isinstance(after, tuple) else (after,), x.squeeze(0)
        x = self.net(x)
        if self.squash == "tanh":
            x = self.offset + self.scale * torch.tanh(x)
        elif self.squash == "beta":
            a, b = (1.0 + nn.functional.softplus(part) for part in x.chunk(2, dim=-1))
            x = self.offset + self.scale * (a / (a + b))
        return (x, *following) if following else x

    def graph_spec(self) -> GraphSpec:
        """The same as plain arrays."""
        squash = None
        if self.squash:
            scale, offset = self.scale.numpy().copy(), self.offset.numpy().copy()
            squash = Squash(kind=self.squash, scale=scale, offset=offset)  # type: ignore[arg-type]
        return GraphSpec(
            normalization=normalization_of(self.normalizer),
            recurrent=() if self.rnn is None else recurrent_layers(self.rnn),
            layers=dense_layers(self.net),
            squash=squash,
        )


class Convolution(nn.Module):
    """A network that is no chain of known layers: it convolves over the observation."""

    def __init__(self, dims: tuple[int, int], seed: int = 0) -> None:
        """Random weights."""
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv1d(1, 4, kernel_size=5, stride=2)
        self.head = nn.Linear(4 * ((dims[0] - 5) // 2 + 1), dims[1])

    def forward(self, obs: Tensor) -> Tensor:
        """One step."""
        return self.head(nn.functional.elu(self.conv(obs.unsqueeze(1))).flatten(1))


def recurrent_contract(module: Recurrent, contract: PolicyContract | None = None) -> PolicyContract:
    """A contract with the module's states."""
    names = ("h", "c")[: len(module.graph_spec().state_shapes)]
    states = tuple(
        RecurrentState(input=f"{name}_in", output=f"{name}_out", shape=shape)
        for name, shape in zip(names, module.graph_spec().state_shapes, strict=True)
    )
    base = contract or quadruped_contract()
    return with_network(base, normalizer="in_graph", states=states)


def make_source(module: nn.Module, contract: PolicyContract) -> Source:
    """A policy ready for export, with a trace recorded by the module itself."""
    policy = make_policy(module, len(contract.network.states))
    states: list[Tensor] = []

    def reset() -> None:
        states[:] = [torch.zeros(state.shape) for state in contract.network.states]

    def act(obs: np.ndarray) -> np.ndarray:
        result = module(torch.from_numpy(np.asarray(obs, np.float32))[None], *states)
        if not states:
            return result.numpy()[0]
        action, *states[:] = result
        return action.numpy()[0]

    reset()
    spec = spec_or_none(module)
    return Source(
        contract=contract,
        trace=synthesize(contract, act, reset=reset),
        module=policy,
        spec=spec,
        normalization=None if spec is None else spec.normalization,
        constant_features=(),
        origin={"source": "test", "iteration": 0},
    )


def recurrent_source(**settings: Any) -> Source:
    """A source of a `Recurrent` over the plain quadruped; see there for the settings."""
    contract = quadruped_contract()
    module = Recurrent((contract.observation_dim, contract.num_actions), **settings)
    return make_source(module.requires_grad_(False).eval(), recurrent_contract(module))


def changed(source: Source, **changes: Any) -> Source:
    """The source with some fields replaced."""
    return dataclasses.replace(source, **changes)
