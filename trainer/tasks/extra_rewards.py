"""Reward terms of a task's own, beside those of `trainer.tasks.rewards`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.tasks.rewards import RewardInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtraReward:
    """A term and its weight.

    Attributes:
        name: Its name; it is logged as ``reward/NAME``.
        term: What it is, one number per robot, shape (n,).
        weight: Its weight, per second; a penalty is positive and its weight negative.
    """

    name: str
    term: Callable[[RewardInputs], Tensor]
    weight: float


def evaluate_extra(x: RewardInputs, extra: Sequence[ExtraReward]) -> Tensor:
    """Compute every term times its weight, per second, float32, shape (n, len(extra))."""
    return torch.stack([one.weight * one.term(x) for one in extra], dim=-1)
