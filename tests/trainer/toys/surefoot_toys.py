"""A toy task, registered like one of another package: points in the plane that should go home.

`tests/trainer/conftest.py` puts this folder on `sys.path`, and with it the entry point of its
`.dist-info` becomes visible.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config import NetworkConfig, PPOConfig, SymmetryConfig, TrainConfig
from trainer.env import Observations, StepResult
from trainer.symmetry import Mirror, MirrorTable
from trainer.tasks.base import ActMean, TaskRun

REACH = 0.1
"""How far a full action moves a point."""


class PointEnv:
    """Points start in the unit square; an action moves by ``REACH * clip(action, -1, 1)``.

    The reward is minus the squared distance to the origin after the move. Episodes are truncated
    after 20 steps, and terminated beyond a distance of 3. The best action is
    ``clip(-position / REACH, -1, 1)``.
    """

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        """Seed; `reset` starts the episodes."""
        self.num_envs = num_envs
        self.num_actions = 2
        self.obs_dims: Mapping[str, int] = {"policy": 2}
        self.max_episode_length = 20
        self.device = torch.device("cpu")
        self._generator = torch.Generator().manual_seed(seed)
        self._position = torch.zeros(num_envs, 2)
        self._age = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Start every episode anew."""
        self._restart(torch.ones(self.num_envs, dtype=torch.bool))
        if random_episode_length:
            self._age = torch.randint(
                self.max_episode_length, (self.num_envs,), generator=self._generator
            )
        return self._observe()

    def step(self, actions: Tensor) -> StepResult:
        """Move every point."""
        self._position = self._position + REACH * actions.clamp(-1.0, 1.0)
        self._age += 1
        final = self._observe()
        distance = self._position.square().sum(-1)
        terminated = distance > 9.0
        truncated = self._age >= self.max_episode_length
        self._restart(terminated | truncated)
        return StepResult(
            obs=self._observe(),
            reward=-distance,
            terminated=terminated,
            truncated=truncated,
            final_obs=final,
            log={"reward/distance": distance.mean()},
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        """Restart some episodes."""
        self._restart(rows)
        return self._observe()

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on."""
        generator = self._generator.get_state()
        return {"position": self._position, "age": self._age, "generator": generator}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was taken."""
        if state["position"].shape != self._position.shape:
            raise ValueError(f"position has shape {tuple(state['position'].shape)}")
        self._position = state["position"].clone()
        self._age = state["age"].clone()
        self._generator.set_state(state["generator"])

    def _restart(self, rows: Tensor) -> None:
        fresh = 2.0 * torch.rand(self.num_envs, 2, generator=self._generator) - 1.0
        self._position = torch.where(rows.unsqueeze(-1), fresh, self._position)
        self._age = torch.where(rows, 0, self._age)

    def _observe(self) -> Observations:
        return {"policy": self._position.clone()}


def best_action(position: Tensor) -> Tensor:
    """Return the best action of the toy task."""
    return (-position / REACH).clamp(-1.0, 1.0)


class PointDeployment:
    """A contract and a golden trace that stand for those of a robot."""

    def contract_json(self) -> str:
        """Return some JSON."""
        return json.dumps({"robot": "point"})

    def record_trace(self, act: ActMean) -> dict[str, np.ndarray]:
        """Return observations on a line and the actions there."""
        obs = torch.linspace(-2.0, 2.0, 10).unsqueeze(-1).repeat(1, 2)
        return {"obs": obs.numpy(), "action": act(obs).numpy(), "names": np.array(["x", "y"])}


MIRROR = MirrorTable(
    obs={"policy": Mirror.of([0, 1], [1.0, -1.0])}, action=Mirror.of([0, 1], [1.0, -1.0])
)
"""The reflection of the second axis."""

RECIPE = TrainConfig(
    num_envs=32,
    iterations=40,
    checkpoint_every=10,
    network=NetworkConfig(actor_hidden=(16,), critic_hidden=(16,), init_std=0.5),
    ppo=PPOConfig(
        num_steps=16,
        epochs=4,
        gamma=0.9,
        entropy_coef=0.0,
        learning_rate=3e-3,
        symmetry=SymmetryConfig(augment=True),
    ),
)


def make(*, num_envs: int, seed: int, device: str, num_threads: int) -> TaskRun:
    """Build the toy task."""
    del device, num_threads
    return TaskRun(
        env=PointEnv(num_envs, seed), train=RECIPE, symmetry=MIRROR, deployment=PointDeployment()
    )
