"""The environment seam: what the trainer asks of anything it trains in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Observations = dict[str, torch.Tensor]
"""Observation groups by name, each float32 of shape ``(num_envs, dim)``.

The group ``policy`` is what the robot can measure; ``critic``, where present, is what the
value function sees instead.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one environment step returns. Every tensor lives on the environment's device.

    Attributes:
        obs: Observations the next action is computed from, after any automatic reset.
        reward: Rewards of the step, float32, shape ``(num_envs,)``.
        terminated: True where the episode ended by the task's own rule (a fall): the value of
            what follows is zero. bool, shape ``(num_envs,)``.
        truncated: True where the episode was cut short (time limit): what follows is worth
            V(final observation). bool, shape ``(num_envs,)``. Where both are True the step
            counts as terminated.
        final_obs: Last observations of the episodes that ended in this step, valid in the rows
            where ``terminated | truncated``; the other rows equal ``obs``. None when the
            environment cannot tell, in which case V(s_t) has to stand in.
        log: Scalars to average over the rollout, by name (``reward/tracking``...), 0-d tensors.
        valid: False where the step did nothing but reset the environment, which is how gymnasium
            resets by default. Such a step is learned from and counted nowhere. It has to be
            truncated as well, so that whatever ends with an episode ends there: it is an episode
            of its own without a sample. bool, shape ``(num_envs,)``; None: True everywhere.
    """

    obs: Observations
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    final_obs: Observations | None
    log: Mapping[str, torch.Tensor]
    valid: torch.Tensor | None = None


class VecEnv(Protocol):
    """A batch of environments that reset themselves row by row.

    Attributes:
        num_envs: Number of environments stepped together.
        num_actions: Length of one action vector.
        obs_dims: Length of each observation group, by name; has at least ``policy``.
        max_episode_length: Steps after which an episode is truncated.
        device: Where every tensor in and out lives.
    """

    num_envs: int
    num_actions: int
    obs_dims: Mapping[str, int]
    max_episode_length: int
    device: torch.device

    def reset(self, *, random_episode_length: bool = False) -> Observations:
        """Start every episode anew; optionally at a random age, to decorrelate the time limits."""
        ...

    def step(self, actions: torch.Tensor) -> StepResult:
        """Advance every environment by one control period.

        Args:
            actions: Raw actions, float32, shape ``(num_envs, num_actions)``.
        """
        ...

    def reset_rows(self, rows: torch.Tensor) -> Observations:
        """Restart the environments where ``rows`` (bool, shape ``(num_envs,)``) is True."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, as tensors and plain containers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> Observations | None:
        """Continue exactly where ``state`` was taken.

        Returns:
            None; or, from an environment that cannot do that and has begun every episode anew,
            the observations to go on from.

        Raises:
            ValueError: The state belongs to another environment; the message names the field.
        """
        ...
