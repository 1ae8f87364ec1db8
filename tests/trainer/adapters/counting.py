"""An environment whose episodes can be told apart: it counts."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

LENGTHS = ((3, "truncated"), (5, "terminated"), (1, "truncated"), (4, "truncated"), (2, "both"))
"""Length and end of the episodes, over and over."""


class Counting(gymnasium.Env[Any, Any]):
    """Observes its number, the episode and the step; pays for the action.

    Observation: ``(env, episode, step)``. Reward: ``0.1 * step + action``, the step before it is
    counted on. Episodes end as `LENGTHS` says.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.observation_space = gymnasium.spaces.Box(-100.0, 100.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._episode, self._step = -1, 0
        self.actions: list[float] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.actions.append(float(action[0]))
        reward = 0.1 * self._step + float(action[0])
        self._step += 1
        length, end = LENGTHS[(self._episode + self.number) % len(LENGTHS)]
        over = self._step >= length
        terminated = over and end in ("terminated", "both")
        truncated = over and end in ("truncated", "both")
        return self._observe(), reward, terminated, truncated, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.number, self._episode, self._step], np.float32)
