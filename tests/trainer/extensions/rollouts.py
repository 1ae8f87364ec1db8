"""Rollouts of given numbers, for tests that know every one of them."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.rollout import Rollout


def make_rollout(
    obs: Tensor,
    reward: Tensor,
    *,
    terminated: Tensor | None = None,
    truncated: Tensor | None = None,
    last: Tensor | None = None,
    group: str = "policy",
) -> Rollout:
    """A rollout with one group of observations ``(T + 1, N, dim)`` and ``(T, N)`` rewards."""
    none = torch.zeros_like(reward, dtype=torch.bool)
    return Rollout(
        obs={group: obs},
        final_obs=torch.zeros_like(obs[:-1]),
        action=torch.zeros(*reward.shape, 1),
        outputs=torch.zeros(*reward.shape, 1),
        reward=reward,
        terminated=none if terminated is None else terminated,
        truncated=none if truncated is None else truncated,
        log={},
        last={} if last is None else {group: last},
    )
