"""Toy tasks with discrete actions and known best policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.env import Observations, StepResult
from trainer.envs.action_space import ActionSpace

MOVES = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])
"""What the four actions of `GridEnv` do to the position."""


class GridEnv:
    """Cells of a square; an episode starts anywhere and ends at cell (0, 0), or after 20 steps.

    The observation is the position, one-hot in both axes. A step costs 1, so that the best return
    is minus the distance in steps; a move into a wall stays where it is.
    """

    def __init__(self, num_envs: int, seed: int = 0, *, size: int = 4) -> None:
        """Seed; `reset` starts the episodes."""
        self.num_envs, self.num_actions = num_envs, 1
        self.action_space = ActionSpace(kind="discrete", num_actions=1, sizes=(4,))
        self.obs_dims: Mapping[str, int] = {"policy": 2 * size}
        self.max_episode_length = 20
        self.device = torch.device("cpu")
        self._size = size
        self._generator = torch.Generator().manual_seed(seed)
        self._cell = torch.zeros(num_envs, 2, dtype=torch.int64)
        self._age = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Start every episode anew."""
        del random_episode_length
        self._restart(torch.ones(self.num_envs, dtype=torch.bool))
        return self.observe(self._cell)

    def step(self, actions: Tensor) -> StepResult:
        """Move."""
        self._cell = (self._cell + MOVES[actions[:, 0].long()]).clamp(0, self._size - 1)
        self._age += 1
        final = self.observe(self._cell)
        terminated = (self._cell == 0).all(-1)
        truncated = self._age >= self.max_episode_length
        self._restart(terminated | truncated)
        return StepResult(
            obs=self.observe(self._cell),
            reward=-torch.ones(self.num_envs),
            terminated=terminated,
            truncated=truncated,
            final_obs=final,
            log={},
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        """Restart some episodes."""
        self._restart(rows)
        return self.observe(self._cell)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: no test resumes it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""

    def observe(self, cell: Tensor) -> Observations:
        """Return what is seen from cells, ``(N, 2)``."""
        return {"policy": torch.nn.functional.one_hot(cell, self._size).flatten(1).float()}

    def _restart(self, rows: Tensor) -> None:
        shape = (self.num_envs, 2)
        fresh = torch.randint(self._size, shape, generator=self._generator)
        # Not where it would be over at once.
        fresh[(fresh == 0).all(-1)] = self._size - 1
        self._cell = torch.where(rows.unsqueeze(-1), fresh, self._cell)
        self._age = torch.where(rows, 0, self._age)


class LeverEnv:
    """A bandit: each of six contexts has one right lever among three and one among four.

    The reward is the share of the two levers that are right; an episode is one step.
    """

    SIZES = (3, 4)

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        """Seed; which levers are right does not depend on it."""
        self.num_envs, self.num_actions = num_envs, 2
        self.action_space = ActionSpace(kind="discrete", num_actions=2, sizes=self.SIZES)
        self.obs_dims: Mapping[str, int] = {"policy": 6}
        self.max_episode_length = 1
        self.device = torch.device("cpu")
        self._generator = torch.Generator().manual_seed(seed)
        context = torch.arange(6)
        self.right = torch.stack([context % 3, (context * 3 + 1) % 4], dim=-1)
        self._context = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Draw contexts."""
        del random_episode_length
        self._context = torch.randint(6, (self.num_envs,), generator=self._generator)
        return {"policy": torch.nn.functional.one_hot(self._context, 6).float()}

    def step(self, actions: Tensor) -> StepResult:
        """Pull two levers."""
        reward = (actions.long() == self.right[self._context]).float().mean(-1)
        obs = self.reset()
        ended = torch.ones(self.num_envs, dtype=torch.bool)
        return StepResult(
            obs=obs, reward=reward, terminated=ended, truncated=~ended, final_obs=obs, log={}
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        """Draw contexts, for all: an episode is one step."""
        del rows
        return self.reset()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: no test resumes it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""
