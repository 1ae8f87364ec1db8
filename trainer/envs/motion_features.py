"""How a robot moves, as numbers that a reference motion is compared with: no noise, no command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.state import RobotState

GROUP = "amp"
"""The observation group of a robot environment that holds them, on request."""

_AXES = ("x", "y", "z")


def motion_labels(joints: Sequence[str]) -> tuple[str, ...]:
    """Return what each number is, such as ``joint_pos[FL_hip_joint]``; joints in contract order."""
    return (
        *(f"joint_pos[{name}]" for name in joints),
        *(f"joint_vel[{name}]" for name in joints),
        "base_height",
        *(f"base_lin_vel_b[{axis}]" for axis in _AXES),
        *(f"base_ang_vel_b[{axis}]" for axis in _AXES),
    )


def motion_features(state: RobotState, base_height: NDArray[Any]) -> NDArray[np.float32]:
    """Return joint positions and velocities, base height and velocities, SI, ``(n, dim)``.

    Args:
        state: What the robots measure, noise-free, base velocity included, NumPy arrays.
        base_height: Height of the base over the ground, [m], ``(n,)``.
    """
    parts = [
        state.joint_pos,
        state.joint_vel,
        base_height[:, None],
        state.base_lin_vel_b,
        state.base_ang_vel_b,
    ]
    return np.concatenate(parts, axis=-1, dtype=np.float32)
