"""What differs from robot to robot while it learns (domain randomization).

Tobin et al., "Domain Randomization for Transferring Deep Neural Networks from Simulation to the
Real World", IROS 2017; the ranges are those legged locomotion commonly uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from array_api_compat import array_namespace

from robot_runtime.policy.state import Array

Range = tuple[float, float]
"""Lowest and highest value of a uniform draw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomizationConfig:
    """Ranges of the uniform draws, one per episode unless said otherwise.

    Attributes:
        friction: Sliding friction between robot and ground; None for the model's own.
        payload_kg: Mass added to the base, [kg].
        kp: Factor on the stiffness of each joint.
        kd: Factor on the damping of each joint.
        strength: Factor on all efforts, common to the joints.
        latency_s: Delay of the targets beyond the contract's, [s], in PD periods.
        push_speed: Largest sudden change of the base's horizontal velocity, per axis, [m/s].
        push_interval_s: Shortest and longest time between two pushes, [s].
        sensor_noise: Factor on the noise the contract states for its observations.
        start_joint_pos: Largest offset of a joint at the start, [rad].
        start_lin_vel: Largest velocity of the base at the start, per axis, [m/s].
        start_ang_vel: Largest angular velocity of the base at the start, per axis, [rad/s].
        start_tilt: Largest roll and pitch at the start, [rad].
        start_yaw: Largest heading at the start, [rad].
    """

    friction: Range | None = (0.4, 1.2)
    payload_kg: Range = (-1.0, 1.5)
    kp: Range = (0.85, 1.15)
    kd: Range = (0.8, 1.2)
    strength: Range = (0.85, 1.15)
    latency_s: Range = (0.0, 0.02)
    push_speed: float = 0.5
    push_interval_s: Range = (3.0, 5.0)
    sensor_noise: float = 1.0
    start_joint_pos: float = 0.1
    start_lin_vel: float = 0.3
    start_ang_vel: float = 0.3
    start_tilt: float = 0.1
    start_yaw: float = math.pi


NOMINAL = RandomizationConfig(
    friction=None,
    payload_kg=(0.0, 0.0),
    kp=(1.0, 1.0),
    kd=(1.0, 1.0),
    strength=(1.0, 1.0),
    latency_s=(0.0, 0.0),
    push_speed=0.0,
    sensor_noise=0.0,
    start_joint_pos=0.0,
    start_lin_vel=0.0,
    start_ang_vel=0.0,
    start_tilt=0.0,
    start_yaw=0.0,
)
"""The robot as it is written: no draw changes anything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RobotDraw:
    """The physics of some robots, of the kind of the draws; None for the model's own value.

    Attributes:
        friction: Sliding friction, shape (n,), or None.
        payload: Mass added to the base, [kg], shape (n,).
        kp_scale: Shape (n, num_joints).
        kd_scale: Shape (n, num_joints).
        strength: Shape (n, num_joints).
        latency: Delay of the targets, [s], shape (n,).
    """

    friction: Array | None
    payload: Array
    kp_scale: Array
    kd_scale: Array
    strength: Array
    latency: Array


def num_robot_draws(num_joints: int) -> int:
    """How many numbers `draw_robots` needs per robot."""
    return 4 + 2 * num_joints


def draw_robots(u: Array, config: RandomizationConfig, num_joints: int) -> RobotDraw:
    """Draw the physics of some robots.

    Args:
        u: Draws in [0, 1), NumPy or torch, shape (n, num_robot_draws(num_joints)).
        config: The ranges.
        num_joints: Number of joints.
    """
    kp, kd = u[:, 4 : 4 + num_joints], u[:, 4 + num_joints :]
    strength = uniform_in(u[:, 2:3], config.strength)
    return RobotDraw(
        friction=None if config.friction is None else uniform_in(u[:, 0], config.friction),
        payload=uniform_in(u[:, 1], config.payload_kg),
        strength=array_namespace(u).broadcast_to(strength, kp.shape),
        latency=uniform_in(u[:, 3], config.latency_s),
        kp_scale=uniform_in(kp, config.kp),
        kd_scale=uniform_in(kd, config.kd),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StartDraw:
    """How some robots start, of the kind of the draws.

    Attributes:
        quat: Orientation w, x, y, z, body to world, shape (n, 4).
        lin_vel_w: Velocity of the base, world frame, [m/s], shape (n, 3).
        ang_vel_b: Angular velocity of the base, body frame, [rad/s], shape (n, 3).
        joint_offset: Offset from the default pose, [rad], shape (n, num_joints).
    """

    quat: Array
    lin_vel_w: Array
    ang_vel_b: Array
    joint_offset: Array


def num_start_draws(num_joints: int) -> int:
    """How many numbers `draw_starts` needs per robot."""
    return 9 + num_joints


def draw_starts(u: Array, config: RandomizationConfig) -> StartDraw:
    """Draw how some robots start.

    Args:
        u: Draws in [0, 1), NumPy or torch, shape (n, num_start_draws(num_joints)).
        config: The ranges.
    """
    signed = 2.0 * u - 1.0
    tilt = config.start_tilt * signed[:, 1:3]
    return StartDraw(
        quat=quat_from_euler(tilt[:, 0], tilt[:, 1], config.start_yaw * signed[:, 0]),
        lin_vel_w=config.start_lin_vel * signed[:, 3:6],
        ang_vel_b=config.start_ang_vel * signed[:, 6:9],
        joint_offset=config.start_joint_pos * signed[:, 9:],
    )


def uniform_in(u: Array, bounds: Range) -> Array:
    """Stretch draws in [0, 1) to a range."""
    low, high = bounds
    return low + (high - low) * u


def quat_from_euler(roll: Array, pitch: Array, yaw: Array) -> Array:
    """Turn roll about x, then pitch about y, then yaw about z, all in the world frame.

    Args:
        roll: [rad], shape (n,).
        pitch: [rad], shape (n,).
        yaw: [rad], shape (n,).

    Returns:
        Unit quaternions w, x, y, z, body to world, shape (n, 4).
    """
    xp = array_namespace(roll)
    half = xp.stack([roll, pitch, yaw]) / 2
    cr, cp, cy = xp.unstack(xp.cos(half))
    sr, sp, sy = xp.unstack(xp.sin(half))
    return xp.stack(
        [
            cr * cp * cy + sr * sp * sy,
            sr * cp * cy - cr * sp * sy,
            cr * sp * cy + sr * cp * sy,
            cr * cp * sy - sr * sp * cy,
        ],
        axis=-1,
    )
