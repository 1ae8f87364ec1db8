"""When each foot shall be on the ground, as the gait clock tells."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class GaitConfig:
    """A gait.

    Attributes:
        offsets: Phase of each foot against the clock, [cycles], in the order of the feet.
        duty: Share of the cycle a foot is on the ground.
        swing_height: How high a foot is lifted in mid-swing, [m].
        contact_height: A foot lower than this above the ground counts as touching it, [m].
    """

    offsets: tuple[float, ...]
    duty: float = 0.5
    swing_height: float = 0.08
    contact_height: float = 0.004


@dataclass(frozen=True, kw_only=True, slots=True)
class GaitTarget:
    """What the clock asks of every foot.

    Attributes:
        stance: Whether the foot shall be on the ground, bool, shape (n, num_feet).
        height: How high it shall be, [m], shape (n, num_feet).
    """

    stance: Tensor
    height: Tensor


def gait_target(phase: Tensor, standing: Tensor, config: GaitConfig, offsets: Tensor) -> GaitTarget:
    """Say what the clock asks of every foot; who stands keeps all feet down.

    Args:
        phase: Phase of the clock, [cycles], shape (n, 1).
        standing: Who is asked to stand, bool, shape (n,).
        config: The gait.
        offsets: ``config.offsets`` as a tensor, shape (num_feet,).
    """
    own = torch.frac(phase + offsets)
    stance = (own < config.duty) | standing.unsqueeze(-1)
    # Raised cosine: the foot leaves and meets the ground at zero vertical speed.
    progress = (own - config.duty) * (2.0 * math.pi / (1.0 - config.duty))
    height = 0.5 * config.swing_height * (1.0 - torch.cos(progress))
    height = torch.where(stance, 0.0, height).to(torch.float32)
    return GaitTarget(stance=stance, height=height)
