"""Some robots at one instant: what their observations are computed from."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from trainer.envs.random import UInt64Array

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Robots at one instant, in NumPy, which takes and joins rows in half of torch's time.

    Attributes:
        key: Keys of their random numbers, uint64, shape (n,), from `row_keys`.
        step: Control steps since the episode began, int64, shape (n,).
        base_pos_w: World frame, [m], shape (n, 3).
        base_quat: Orientation w, x, y, z, body to world, shape (n, 4).
        base_lin_vel_b: Body frame, [m/s], shape (n, 3).
        base_ang_vel_b: Body frame, [rad/s], shape (n, 3).
        joint_pos: [rad], shape (n, num_joints), contract order.
        joint_vel: [rad/s], shape (n, num_joints), contract order.
        foot_pos_w: Positions of the feet, world frame, [m], shape (n, num_feet, 3).
        command: What the policy is told, shape (n, num_commands).
        raw_action: Last output of the policy, shape (n, num_actions).
        action: The same after clip and filter, shape (n, num_actions).
        mean_error: Averaged velocity minus command, see `RewardInputs`, shape (n, 3).
        friction: Sliding friction, shape (n,).
        base_mass: Mass of the base body, [kg], shape (n,).
        strength: Factor on the efforts, shape (n, num_joints).
        delay: Delay of the targets, [PD periods], int64, shape (n,).
    """

    key: UInt64Array
    step: NDArray[np.int64]
    base_pos_w: FloatArray
    base_quat: FloatArray
    base_lin_vel_b: FloatArray
    base_ang_vel_b: FloatArray
    joint_pos: FloatArray
    joint_vel: FloatArray
    foot_pos_w: FloatArray
    command: FloatArray
    raw_action: FloatArray
    action: FloatArray
    mean_error: FloatArray
    friction: FloatArray
    base_mass: FloatArray
    strength: FloatArray
    delay: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Moment:
        """Copy the rows of these numbers, shape (k,)."""
        return Moment(**{name: getattr(self, name)[rows] for name in _FIELDS})

    def join(self, other: Moment) -> Moment:
        """Put the rows of another moment behind these."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in _FIELDS}
        return Moment(**{name: np.concatenate(pair) for name, pair in pairs.items()})


_FIELDS = tuple(field.name for field in fields(Moment))
