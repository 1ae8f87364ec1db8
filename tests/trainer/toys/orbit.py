"""A toy with a motion to imitate: points in the plane, and others that run around a circle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.env import Observations, StepResult
from trainer.extensions.motion import Motion

TURN = 0.2
"""Angle of the reference per step, [rad]."""

NAMES = ("position[x]", "position[y]")


class PlaneEnv:
    """Points that an action moves by up to 0.3 per axis; nothing is rewarded.

    They start near the unit circle, at any angle; episodes are truncated after 20 steps. The group
    ``motion`` shows where they are, as ``policy`` does.
    """

    def __init__(self, num_envs: int, seed: int = 0, *, final: bool = True) -> None:
        """Seed; `final` is whether final observations are given."""
        self.num_envs, self.num_actions = num_envs, 2
        self.obs_dims: Mapping[str, int] = {"policy": 2, "motion": 2}
        self.feature_names = {"motion": NAMES}
        self.step_dt = 0.1
        self.max_episode_length = 20
        self.device = torch.device("cpu")
        self._final = final
        self._generator = torch.Generator().manual_seed(seed)
        self._position = torch.zeros(num_envs, 2)
        self._age = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Start every episode anew."""
        del random_episode_length
        self._restart(torch.ones(self.num_envs, dtype=torch.bool))
        return self._observe()

    def step(self, actions: Tensor) -> StepResult:
        """Move every point."""
        self._position = self._position + 0.3 * actions.clamp(-1.0, 1.0)
        self._age = self._age + 1
        final = self._observe()
        truncated = self._age >= self.max_episode_length
        self._restart(truncated)
        return StepResult(
            obs=self._observe(),
            reward=torch.zeros(self.num_envs),
            terminated=torch.zeros_like(truncated),
            truncated=truncated,
            final_obs=final if self._final else None,
            log={},
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
        self._position, self._age = state["position"].clone(), state["age"].clone()
        self._generator.set_state(state["generator"])

    def _restart(self, rows: Tensor) -> None:
        u = torch.rand(2, self.num_envs, generator=self._generator)
        angle, radius = 2.0 * math.pi * u[0], 0.8 + 0.4 * u[1]
        fresh = radius.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], dim=-1)
        self._position = torch.where(rows.unsqueeze(-1), fresh, self._position)
        self._age = torch.where(rows, 0, self._age)

    def _observe(self) -> Observations:
        return {"policy": self._position.clone(), "motion": self._position.clone()}


def orbit(turn: float = TURN) -> Motion:
    """The unit circle, counterclockwise, a few times around from different angles."""
    clips: list[np.ndarray] = []
    for start in np.linspace(0.0, 2.0 * math.pi, 8, endpoint=False):
        angle = start + turn * np.arange(32)
        clips.append(np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32))
    return Motion(names=NAMES, dt=0.1, clips=tuple(clips))
