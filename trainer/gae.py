"""Generalized advantage estimation (Schulman et al. 2016, arXiv:1506.02438)."""

from __future__ import annotations

import torch
from torch import Tensor


def generalized_advantages(
    reward: Tensor,
    value: Tensor,
    last_value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lam: float,
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns of a rollout, eq. 16 of the paper, episode by episode.

    With ``V'`` the worth of what follows step t, ``delta = r + gamma V' - V(s_t)`` and
    ``A_t = delta_t + gamma lam A_{t+1}``, where

    - inside an episode ``V'`` is ``V(s_{t+1})``;
    - at a terminated step it is 0, and the sum over later steps is cut;
    - at a truncated step it is V(final observation), not V of the next episode's first
      observation, and the sum is cut as well;
    - a step that is both counts as terminated.

    Args:
        reward: Rewards, float32, shape ``(T, N)``.
        value: V(s_t), shape ``(T, N)``.
        last_value: V(s_T), shape ``(N,)``.
        final_value: V(final observation), shape ``(T, N)``; read only where truncated.
        terminated: bool, shape ``(T, N)``.
        truncated: bool, shape ``(T, N)``.
        gamma: Discount per step.
        lam: Decay lambda.
        valid: False where a sample is excluded: its advantage is 0 and the sum of the step
            before it ends at its value. bool, shape ``(T, N)``. None: all are valid.

    Returns:
        Advantages and returns (advantage + value), both of shape ``(T, N)``.
    """
    following = torch.cat([value[1:], last_value.unsqueeze(0)])
    following = torch.where(truncated, final_value, following)
    following = following.masked_fill(terminated, 0.0)
    delta = reward + gamma * following - value
    carry = (gamma * lam) * (~(terminated | truncated)).to(reward.dtype)
    if valid is not None:
        # torch.where, not a product: what is excluded may be NaN, and 0 * NaN is NaN.
        delta = torch.where(valid, delta, 0.0)
        carry = torch.where(valid, carry, 0.0)
    advantage = torch.empty_like(delta)
    running = torch.zeros_like(last_value)
    for t in range(delta.shape[0] - 1, -1, -1):
        running = torch.addcmul(delta[t], carry[t], running, out=advantage[t])
    return advantage, advantage + value
