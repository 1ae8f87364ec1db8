"""Reward terms of walking at a commanded velocity, each a plain function of tensors.

Every function takes the inputs of one control step and returns one number per robot, shape (n,).
Penalties are positive here; their weights are negative. The set follows what legged locomotion
commonly uses (Rudin et al., "Learning to Walk in Minutes Using Massively Parallel Deep
Reinforcement Learning", CoRL 2021; Siekmann et al., "Sim-to-Real Learning of All Common Bipedal
Gaits via Periodic Reward Composition", ICRA 2021).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.tasks.gait import GaitTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardInputs:
    """What the reward of one step is computed from, float32 unless said otherwise.

    Attributes:
        standing: Who is asked to stand, bool, shape (n,).
        error: Velocity minus command, forward, left [m/s] and yaw rate [rad/s], shape (n, 3).
        mean_error: The same, averaged over about a gait cycle, shape (n, 3).
        base_lin_vel_b: Body frame, [m/s], shape (n, 3).
        base_ang_vel_b: Body frame, [rad/s], shape (n, 3).
        cos_tilt: Cosine of the angle between the base and upright, shape (n,).
        base_height: Above the ground, [m], shape (n,).
        joint_offset: From the default pose, [rad], shape (n, num_joints).
        joint_vel: [rad/s], shape (n, num_joints).
        joint_effort: [Nm], shape (n, num_joints).
        action: Applied action, shape (n, num_actions).
        last_action: The one before, shape (n, num_actions).
        earlier_action: The one before that, shape (n, num_actions).
        foot_height: Clearance of the soles above the ground, [m], shape (n, num_feet).
        foot_vel_w: World frame, [m/s], shape (n, num_feet, 3).
        foot_contact: Whether a foot touches the ground, bool, shape (n, num_feet).
        gait: What the gait clock asks for.
        pose_weight: How much each joint's distance to the default pose counts, (num_joints,).
    """

    standing: Tensor
    error: Tensor
    mean_error: Tensor
    base_lin_vel_b: Tensor
    base_ang_vel_b: Tensor
    cos_tilt: Tensor
    base_height: Tensor
    joint_offset: Tensor
    joint_vel: Tensor
    joint_effort: Tensor
    action: Tensor
    last_action: Tensor
    earlier_action: Tensor
    foot_height: Tensor
    foot_vel_w: Tensor
    foot_contact: Tensor
    gait: GaitTarget
    pose_weight: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardConfig:
    """Weights of the terms, per second, and their shapes.

    Attributes:
        track_lin_vel: exp(-|error|^2 / lin_vel_width^2) of the horizontal velocity.
        track_mean_lin_vel: exp(-|averaged error| / mean_width): what makes it exact.
        track_ang_vel: exp(-error^2 / ang_vel_width^2) of the yaw rate.
        track_mean_ang_vel: The same of the yaw rate.
        gait: Share of the feet that are where the clock asks, on the ground or off it.
        swing_height: Squared distance of swinging feet to their asked height.
        foot_slip: Squared horizontal speed of feet on the ground.
        lin_vel_z: Squared vertical velocity.
        ang_vel_xy: Squared roll and pitch rate.
        orientation: Squared tilt.
        base_height: Squared distance to the asked height.
        pose: Squared distance to the default pose, weighted joint by joint.
        stand_pose: The same for all joints of who is asked to stand.
        stand_still: Squared joint speed of who is asked to stand.
        torque: Squared effort.
        action_rate: Squared change of the action.
        action_smooth: Squared second difference of the action.
        joint_vel: Squared joint speed.
        termination: Once when the episode ends in a fall; not multiplied by the period.
        lin_vel_width: [m/s].
        ang_vel_width: [rad/s].
        mean_width: Width of the averaged errors, [m/s] and [rad/s].
        mean_time_s: Time constant of the average, [s].
        height_target: Height of the base while walking, [m].
        only_positive: Whether a negative sum counts as zero, so that early ends never pay.
    """

    track_lin_vel: float = 1.0
    track_mean_lin_vel: float = 0.5
    track_ang_vel: float = 0.5
    track_mean_ang_vel: float = 0.25
    gait: float = 0.5
    swing_height: float = -40.0
    foot_slip: float = -0.1
    lin_vel_z: float = -1.0
    ang_vel_xy: float = -0.03
    orientation: float = -2.0
    base_height: float = -20.0
    pose: float = -0.3
    stand_pose: float = -0.5
    stand_still: float = -0.01
    torque: float = -1e-4
    action_rate: float = -0.01
    action_smooth: float = -0.005
    joint_vel: float = 0.0
    termination: float = -0.5
    lin_vel_width: float = 0.5
    ang_vel_width: float = 0.5
    mean_width: float = 0.15
    mean_time_s: float = 0.5
    height_target: float = 0.3
    only_positive: bool = True


def track_lin_vel(x: RewardInputs, config: RewardConfig) -> Tensor:
    """How well the horizontal velocity follows the command, 1 at best."""
    return torch.exp(x.error[:, :2].square().sum(-1) * (-1.0 / config.lin_vel_width**2))


def track_mean_lin_vel(x: RewardInputs, config: RewardConfig) -> Tensor:
    """How well the averaged horizontal velocity follows the command, 1 at best.

    Within a gait cycle the velocity sways by more than its mean shall be wrong. The kernel has a
    tip: a bell would hardly tell a small error from none.
    """
    return torch.exp(torch.hypot(x.mean_error[:, 0], x.mean_error[:, 1]) / -config.mean_width)


def track_ang_vel(x: RewardInputs, config: RewardConfig) -> Tensor:
    """How well the yaw rate follows the command, 1 at best."""
    return torch.exp(x.error[:, 2].square() * (-1.0 / config.ang_vel_width**2))


def track_mean_ang_vel(x: RewardInputs, config: RewardConfig) -> Tensor:
    """How well the averaged yaw rate follows the command, 1 at best."""
    return torch.exp(x.mean_error[:, 2].abs() / -config.mean_width)


def gait(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Share of the feet that do what the clock asks, from -1 (none) to 1 (all)."""
    return 2.0 * (x.foot_contact == x.gait.stance).float().mean(-1) - 1.0


def swing_height(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared distance of the feet to their asked height, [m^2], summed over swinging feet."""
    error = (x.foot_height - x.gait.height).square()
    return (error * (~x.gait.stance)).sum(-1)


def foot_slip(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared horizontal speed of feet on the ground, [m^2/s^2], summed."""
    return (x.foot_vel_w[..., :2].square().sum(-1) * x.foot_contact).sum(-1)


def lin_vel_z(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared vertical velocity, [m^2/s^2]."""
    return x.base_lin_vel_b[:, 2].square()


def ang_vel_xy(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared roll and pitch rate, [rad^2/s^2]."""
    return x.base_ang_vel_b[:, :2].square().sum(-1)


def orientation(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared sine of the tilt."""
    return 1.0 - x.cos_tilt.square()


def base_height(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared distance of the base to its asked height, [m^2]."""
    return (x.base_height - config.height_target).square()


def pose(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared distance to the default pose, [rad^2], weighted and summed."""
    return x.joint_offset.square() @ x.pose_weight


def stand_pose(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Distance to the default pose of who stands, [rad^2], summed."""
    return x.joint_offset.square().sum(-1) * x.standing


def stand_still(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared joint speed of who stands, [rad^2/s^2], summed."""
    return x.joint_vel.square().sum(-1) * x.standing


def torque(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared effort, [N^2 m^2], summed."""
    return x.joint_effort.square().sum(-1)


def action_rate(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared change of the applied action, summed."""
    return (x.action - x.last_action).square().sum(-1)


def action_smooth(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared second difference of the applied action, summed."""
    return (x.action - 2.0 * x.last_action + x.earlier_action).square().sum(-1)


def joint_vel(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Squared joint speed, [rad^2/s^2], summed."""
    return x.joint_vel.square().sum(-1)


RewardTerm = Callable[[RewardInputs, RewardConfig], Tensor]

TERMS: dict[str, RewardTerm] = {
    term.__name__: term
    for term in (
        track_lin_vel,
        track_mean_lin_vel,
        track_ang_vel,
        track_mean_ang_vel,
        gait,
        swing_height,
        foot_slip,
        lin_vel_z,
        ang_vel_xy,
        orientation,
        base_height,
        pose,
        stand_pose,
        stand_still,
        torque,
        action_rate,
        action_smooth,
        joint_vel,
    )
}
"""All terms by name; each has a weight of the same name in `RewardConfig`."""


@functools.cache
def active_terms(config: RewardConfig) -> tuple[str, ...]:
    """Names of the terms whose weight is not zero."""
    return tuple(name for name in TERMS if getattr(config, name) != 0.0)


def evaluate_terms(x: RewardInputs, config: RewardConfig) -> Tensor:
    """Compute every active term times its weight, per second.

    Returns:
        float32, shape (n, len(active_terms(config))).
    """
    names = active_terms(config)
    return torch.stack([TERMS[name](x, config) for name in names], dim=-1) * _weights(config)


def total_reward(
    terms: Tensor, terminated: Tensor, config: RewardConfig, control_dt: float
) -> Tensor:
    """Sum the terms of one step and charge the fall.

    Args:
        terms: Weighted terms per second, shape (n, k).
        terminated: Who fell in this step, bool, shape (n,).
        config: Weights.
        control_dt: Control period, [s].

    Returns:
        Rewards, shape (n,).
    """
    total = terms.sum(-1)
    if config.only_positive:
        total = total.clamp_min(0.0)
    return total * control_dt + config.termination * terminated


@functools.cache
def _weights(config: RewardConfig) -> Tensor:
    return torch.tensor([getattr(config, name) for name in active_terms(config)])
