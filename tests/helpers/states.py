"""Random robot states for tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.state import RobotState


def random_state(rng: np.random.Generator, joints: int) -> dict[str, NDArray[np.float64]]:
    """A state far from rest, float64: any attitude, a few rad/s, joints within a radian or two."""
    quat = rng.normal(size=4)
    return {
        "base_quat": quat / np.linalg.norm(quat),
        "base_ang_vel_b": rng.normal(size=3) * 5.0,
        "base_lin_vel_b": rng.normal(size=3) * 2.0,
        "joint_pos": rng.normal(size=joints),
        "joint_vel": rng.normal(size=joints) * 12.0,
    }


def robot_state(values: dict[str, NDArray[np.float64]], time: float = 0.0) -> RobotState:
    """The same values as a `RobotState`."""
    return RobotState(
        time=time,
        base_quat=values["base_quat"],
        base_ang_vel_b=values["base_ang_vel_b"],
        base_lin_vel_b=values["base_lin_vel_b"],
        joint_pos=values["joint_pos"],
        joint_vel=values["joint_vel"],
    )
