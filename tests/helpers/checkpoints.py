"""Checkpoints for tests, without a training run: a small actor that has seen observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.extremes import synthesize
from tests.helpers.contracts import quadruped_contract, with_network
from trainer.checkpoint import Checkpoint, package_versions, save_checkpoint, trace_from_arrays
from trainer.config import NetworkConfig, TrainConfig
from trainer.networks.actor_critic import Actor
from trainer.networks.policy import DeterministicPolicy, with_states
from trainer.normalizer import RunningNormalizer

CONSTANT = (4, 30)
"""Two features of the plain quadruped: a gravity and a joint velocity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeCheckpoint:
    """A checkpoint that was written, and the actor inside."""

    path: Path
    actor: Actor
    contract: PolicyContract

    @property
    def normalizer(self) -> RunningNormalizer:
        """The actor's normalizer."""
        assert isinstance(self.actor.normalizer, RunningNormalizer)
        return self.actor.normalizer


def make_actor(
    contract: PolicyContract,
    network: NetworkConfig,
    *,
    seed: int = 0,
    constant: tuple[int, ...] = (),
) -> Actor:
    """An actor with actions of about 1 whose normalizer has seen 500 observations.

    Args:
        contract: The contract with the lengths.
        network: Settings of the network.
        seed: Seed of weights and observations.
        constant: Features that never change in what the normalizer sees.
    """
    generator = torch.Generator().manual_seed(seed)
    actor = Actor(contract.observation_dim, contract.num_actions, network, generator)
    seen = torch.randn(500, contract.observation_dim, generator=generator) * 2.0 + 0.5
    seen[:, list(constant)] = 0.25
    if isinstance(actor.normalizer, RunningNormalizer):
        actor.normalizer.update(seen)
    last = actor.net[-1]
    assert isinstance(last, torch.nn.Linear)
    with torch.no_grad():
        # A fresh last layer is small on purpose; a trained one is not.
        last.weight.mul_(100.0)
        last.bias.copy_(torch.randn(last.bias.shape, generator=generator))
    return actor.eval().requires_grad_(False)


def make_checkpoint(
    path: Path,
    contract: PolicyContract | None = None,
    *,
    network: NetworkConfig | None = None,
    constant: tuple[int, ...] = (),
    changes: Mapping[str, Any] | None = None,
) -> MadeCheckpoint:
    """Write a checkpoint whose golden trace was recorded with its own actor, in torch.

    Args:
        path: Where to write it.
        contract: Its contract; None for a plain quadruped with a normalizer in the graph.
        network: Settings of the network.
        constant: Features that never changed in training.
        changes: Fields of the checkpoint to set instead.
    """
    contract = contract or with_network(quadruped_contract(), normalizer="in_graph")
    network = network or NetworkConfig(actor_hidden=(32, 16))
    actor = make_actor(contract, network, constant=constant)

    contract = PolicyContract.from_json(with_states(contract.to_json(), actor))
    policy = DeterministicPolicy(actor)

    def act(obs: NDArray[np.float32]) -> NDArray[np.float32]:
        return policy(torch.from_numpy(obs)[None]).numpy()[0]

    fields: dict[str, Any] = {
        "task": "quadruped-test",
        "config": TrainConfig(network=network, seed=7),
        "obs_dims": {"policy": contract.observation_dim},
        "num_actions": contract.num_actions,
        "iteration": 12,
        "env_steps": 3456,
        "agent": {"actor": actor.state_dict()},
        "collector": {},
        "progress": {},
        "rng": {},
        "versions": package_versions(),
        "contract": contract.to_json(),
        "trace": trace_from_arrays(synthesize(contract, act, reset=policy.reset).to_arrays()),
    }
    save_checkpoint(path, Checkpoint(**{**fields, **(changes or {})}))
    return MadeCheckpoint(path=path, actor=actor, contract=contract)
