"""When each foot shall be on the ground, as the gait clock tells."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from array_api_compat import array_namespace
from numpy.typing import NDArray
from torch import Tensor

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.gait import gait_phase


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


class GaitTable:
    """What the clock asks for at every step of an episode, computed once: it is always the same.

    Until somebody stands, the phase depends on nothing but the time since the episode began.
    """

    def __init__(self, contract: PolicyContract, config: GaitConfig) -> None:
        """Compute the first steps; more when they are asked for.

        Args:
            contract: Has a gait clock of one phase.
            config: The gait.
        """
        self._contract = contract
        self._config = config
        self._offsets = torch.tensor(config.offsets, dtype=torch.float64)
        self._height = self._compute(512)

    def target(self, step: NDArray[np.int64], standing: NDArray[np.bool_]) -> GaitTarget:
        """Say what the clock asks of every foot; see `gait_target`.

        Args:
            step: Control steps since the episode began, shape (n,).
            standing: Who is asked to stand, shape (n,).
        """
        try:
            height = self._height[step]
        except IndexError:
            self._height = self._compute(2 * int(step.max()))
            height = self._height[step]
        stance = (height < 0.0) | standing[:, None]
        height[stance] = 0.0
        return GaitTarget(stance=torch.from_numpy(stance), height=torch.from_numpy(height))

    def _compute(self, steps: int) -> NDArray[np.float32]:
        """Heights, [m], -1 for a foot on the ground, shape (steps, num_feet)."""
        clock = self._contract.phase
        assert clock is not None
        elapsed = torch.arange(steps).to(torch.float64) * self._contract.timing.control_dt
        # So fast in all channels that nobody stands.
        command = torch.full((steps, len(self._contract.commands)), math.inf)
        phase = gait_phase(clock, elapsed, command, array_namespace(elapsed))
        nobody = torch.zeros(steps, dtype=torch.bool)
        target = gait_target(phase, nobody, self._config, self._offsets)
        return torch.where(target.stance, -1.0, target.height).numpy()
