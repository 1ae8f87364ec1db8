"""A toy task whose only reward is too far away to be found by chance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.env import Observations, StepResult
from trainer.envs.action_space import ActionSpace


class CorridorEnv:
    """A corridor of cells; the last one pays 1 and ends the episode, nothing else pays anything.

    One of four actions goes on, which one depends on the cell; the others lead back to the first
    cell. Who walks at random gets through 15 doors once in 4^15 tries, a billion. An episode ends
    after twice as many steps as the corridor has cells. The observation is the cell, one-hot.
    """

    def __init__(self, num_envs: int, *, length: int = 16) -> None:
        """Everything starts in cell 0; there is nothing to draw."""
        self.num_envs, self.num_actions = num_envs, 1
        self.action_space = ActionSpace(kind="discrete", num_actions=1, sizes=(4,))
        self.obs_dims: Mapping[str, int] = {"policy": length}
        self.max_episode_length = 2 * length
        self.device = torch.device("cpu")
        self._length = length
        generator = torch.Generator().manual_seed(0)
        self._forward = torch.randint(4, (length,), generator=generator)
        self._cell = torch.zeros(num_envs, dtype=torch.int64)
        self._age = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Start every episode anew."""
        del random_episode_length
        self._cell, self._age = torch.zeros_like(self._cell), torch.zeros_like(self._age)
        return self._observe()

    def step(self, actions: Tensor) -> StepResult:
        """Go on, or back to the start."""
        right = actions[:, 0].long() == self._forward[self._cell]
        self._cell = torch.where(right, self._cell + 1, 0)
        self._age = self._age + 1
        final = self._observe()
        terminated = self._cell == self._length - 1
        truncated = (self._age >= self.max_episode_length) & ~terminated
        ended = terminated | truncated
        self._cell, self._age = (torch.where(ended, 0, x) for x in (self._cell, self._age))
        return StepResult(
            obs=self._observe(),
            reward=terminated.float(),
            terminated=terminated,
            truncated=truncated,
            final_obs=final,
            log={},
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        """Restart some episodes."""
        self._cell, self._age = (torch.where(rows, 0, x) for x in (self._cell, self._age))
        return self._observe()

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on."""
        return {"cell": self._cell, "age": self._age}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was taken."""
        self._cell, self._age = state["cell"].clone(), state["age"].clone()

    def _observe(self) -> Observations:
        return {"policy": torch.nn.functional.one_hot(self._cell, self._length).float()}
