"""An environment that plays given numbers, for tests that must know every one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.env import Observations, StepResult


class ScriptedEnv:
    """Plays arrays step by step and remembers the actions it was given.

    Attributes:
        actions: What it was given, in order.
        was_reset: The masks `reset_rows` was called with.
    """

    def __init__(
        self,
        obs: Mapping[str, Tensor],
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        *,
        final_obs: Mapping[str, Tensor] | None,
        num_actions: int = 2,
    ) -> None:
        """Take observations ``(T + 1, N, dim)`` and the other arrays ``(T, N, ...)``."""
        self._obs, self._reward = dict(obs), reward
        self._terminated, self._truncated, self._final = terminated, truncated, final_obs
        self.max_episode_length, self.num_envs = reward.shape[:2]
        self.num_actions = num_actions
        self.obs_dims: Mapping[str, int] = {name: x.shape[-1] for name, x in obs.items()}
        self.device = torch.device("cpu")
        self.actions: list[Tensor] = []
        self.was_reset: list[Tensor] = []

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        return {name: x[0] for name, x in self._obs.items()}

    def step(self, actions: Tensor) -> StepResult:
        t = len(self.actions)
        self.actions.append(actions.clone())
        final = None if self._final is None else {k: x[t] for k, x in self._final.items()}
        return StepResult(
            obs={name: x[t + 1] for name, x in self._obs.items()},
            reward=self._reward[t],
            terminated=self._terminated[t],
            truncated=self._truncated[t],
            final_obs=final,
            log={"step": torch.tensor(float(t))},
        )

    def reset_rows(self, rows: Tensor) -> Observations:
        self.was_reset.append(rows.clone())
        return {name: torch.zeros(self.num_envs, dim) for name, dim in self.obs_dims.items()}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state


def scripted(steps: int = 6, envs: int = 4, *, critic: bool = False) -> ScriptedEnv:
    """Return an environment of random numbers in which nothing ends."""
    g = torch.Generator().manual_seed(0)
    dims = {"policy": 3} | ({"critic": 5} if critic else {})
    none = torch.zeros(steps, envs, dtype=torch.bool)
    return ScriptedEnv(
        {name: torch.randn(steps + 1, envs, dim, generator=g) for name, dim in dims.items()},
        torch.randn(steps, envs, generator=g),
        none,
        none.clone(),
        final_obs={name: torch.randn(steps, envs, d, generator=g) for name, d in dims.items()},
    )
