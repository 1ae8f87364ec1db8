"""What goes into a policy and what comes out: values over arrays with any leading batch shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = Any
"""A NumPy array or a torch tensor; functions of this package take either."""

AsArray: TypeAlias = Callable[[NDArray[Any]], Array]
"""Makes a constant of the caller's array library: picks library, dtype and device."""


def as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """The `AsArray` of the robot: NumPy, float32."""
    return np.asarray(values, dtype=np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class RobotState:
    """What the robot measures, in the order of the contract's joints.

    Attributes:
        time: Time of the measurement, [s], a float or shape ``(...)``. Never decreases.
        base_quat: Orientation of the base, unit quaternion w, x, y, z, body to world, ``(..., 4)``.
        base_ang_vel_b: Angular velocity of the base, body frame, [rad/s], shape ``(..., 3)``.
        base_lin_vel_b: Velocity of the base origin, body frame, [m/s], ``(..., 3)``; None where
            nothing measures it.
        joint_pos: Joint positions, [rad], shape ``(..., num_joints)``.
        joint_vel: Joint velocities, [rad/s], shape ``(..., num_joints)``.
    """

    time: Array
    base_quat: Array
    base_ang_vel_b: Array
    base_lin_vel_b: Array | None
    joint_pos: Array
    joint_vel: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class JointTargets:
    """What the policy wants of every joint, in the order of the contract's joints.

    Attributes:
        position: Position targets, [rad], shape ``(..., num_joints)``.
        velocity: Velocity targets, [rad/s], shape ``(..., num_joints)``.
        effort: Feed-forward efforts, [Nm], shape ``(..., num_joints)``.
    """

    position: Array
    velocity: Array
    effort: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class JointCommand:
    """What is sent to the motors: targets and the gains they are tracked with.

    Attributes:
        position: Position targets, [rad], shape ``(num_joints,)``.
        velocity: Velocity targets, [rad/s], shape ``(num_joints,)``.
        effort: Feed-forward efforts, [Nm], shape ``(num_joints,)``.
        kp: Stiffness, [Nm/rad], shape ``(num_joints,)``.
        kd: Damping, [Nm s/rad], shape ``(num_joints,)``.
    """

    position: NDArray[np.float64]
    velocity: NDArray[np.float64]
    effort: NDArray[np.float64]
    kp: NDArray[np.float64]
    kd: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyInputs:
    """Everything one observation is computed from.

    Attributes:
        state: The robot's state; see `RobotState`.
        command: Command channels in contract order, within their ranges, ``(..., num_commands)``.
        raw_action: The network's previous output, zeros before the first; ``(..., num_actions)``.
        applied_action: The same after clip and filter, shape ``(..., num_actions)``.
        elapsed: Time since the policy (or the episode) began, [s], float64, shape ``(...)``.
    """

    state: RobotState
    command: Array
    raw_action: Array
    applied_action: Array
    elapsed: Array
