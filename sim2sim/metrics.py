"""Figures of a run, and the verdict over many. Pure functions of what was recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.teleop import VELOCITY
from sim2sim.probe import Truth
from sim2sim.scenarios import Scenario

FALL_TILT = math.radians(60.0)
"""Tilt of the base from which a robot has fallen, [rad]."""
FALL_HEIGHT = 0.55
"""Share of the starting height of the centre of mass below which a robot has fallen.

The centre of mass, because some models have their base at the feet.
"""
TRANSIENT = 1.0
"""Beginning of a segment that is left out of its means, [s]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """What a policy must keep to pass.

    Attributes:
        lin_vel_error: Largest difference between a segment's mean horizontal velocity and its
            command, length of the vector, mean over the nominal runs, [m/s].
        ang_vel_error: The same of the turning velocity, [rad/s].
        nominal_falls: Largest share of nominal runs that do not reach their end.
        disturbed_falls: Largest share of disturbed runs that do not reach their end.
    """

    lin_vel_error: float = 0.12
    ang_vel_error: float = 0.12
    nominal_falls: float = 0.0
    disturbed_falls: float = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentMetrics:
    """How well one command was followed, after its first second.

    Attributes:
        name: Name of the segment.
        command: Forward, sideways [m/s] and turning [rad/s] velocity asked for.
        velocity: Their means.
        lin_vel_error: Length of the difference of the means, horizontal, [m/s].
        ang_vel_error: Difference of the means, [rad/s].
        lin_vel_rmse: Root mean square of the horizontal error, [m/s].
        ang_vel_rmse: Root mean square of the turning error, [rad/s].
        drift: Distance between where the base was at the first and at the last sample, [m].
    """

    name: str
    command: tuple[float, float, float]
    velocity: tuple[float, float, float]
    lin_vel_error: float
    ang_vel_error: float
    lin_vel_rmse: float
    ang_vel_rmse: float
    drift: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMetrics:
    """Figures of one run.

    Attributes:
        segments: The segments that were reached and lasted longer than their transient.
        duration: How long the policy ran, [s].
        fell: Why the robot counts as fallen; empty where it does not.
        saturation: Share of PD steps and joints with the effort at its limit.
        saturated_joint: The joint that was at its limit most, or empty where none was.
        action_rate: Mean absolute change of an action element per second, [1/s].
        height: Lowest height of the centre of mass as a share of its start.
        tilt: Largest tilt, [rad].
    """

    segments: tuple[SegmentMetrics, ...]
    duration: float
    fell: str
    saturation: float
    saturated_joint: str
    action_rate: float
    height: float
    tilt: float


def fallen(tilt: float, com_height: float, start_height: float) -> str:
    """Why a robot counts as fallen, or an empty text.

    Args:
        tilt: Angle between the base's z axis and the vertical, [rad].
        com_height: Height of the centre of mass, [m].
        start_height: The same at the start, [m].
    """
    if tilt > FALL_TILT:
        return f"tilt {math.degrees(tilt):.0f} deg"
    if com_height < FALL_HEIGHT * start_height:
        return f"centre of mass at {com_height:.2f} m, {start_height:.2f} m at the start"
    return ""


def run_metrics(
    scenario: Scenario,
    command_names: tuple[str, ...],
    joint_names: tuple[str, ...],
    truth: Truth,
    actions: NDArray[np.float32],
) -> RunMetrics:
    """Figures of one run.

    Args:
        scenario: What was run.
        command_names: The contract's commands.
        joint_names: The contract's joints.
        truth: What the probe saw while the policy ran.
        actions: Applied actions, shape ``(ticks, num_actions)``.
    """
    period = float(np.median(np.diff(truth.time))) if len(truth.time) > 1 else math.nan
    change = np.abs(np.diff(actions.astype(np.float64), axis=0))
    share = truth.saturation[1:].mean(axis=0) if len(truth.time) > 1 else truth.saturation[0]
    worst = int(np.argmax(share))
    falls = [
        fallen(float(t), float(h), float(truth.com_height[0]))
        for t, h in zip(truth.tilt, truth.com_height, strict=True)
    ]
    return RunMetrics(
        segments=_segments(scenario, command_names, truth),
        duration=float(truth.time[-1] - truth.time[0]),
        fell=next(filter(None, falls), ""),
        saturation=float(share.mean()),
        saturated_joint=joint_names[worst] if share[worst] > 0.0 else "",
        action_rate=float(change.mean() / period) if change.size else 0.0,
        height=float(truth.com_height.min() / truth.com_height[0]),
        tilt=float(truth.tilt.max()),
    )


def _segments(
    scenario: Scenario, command_names: tuple[str, ...], truth: Truth
) -> tuple[SegmentMetrics, ...]:
    found: list[SegmentMetrics] = []
    begin = float(truth.time[0])
    for segment in scenario.segments:
        end = begin + segment.duration
        inside = (truth.time >= begin + TRANSIENT - 1e-6) & (truth.time <= end + 1e-6)
        if truth.time[-1] >= end - 1e-6 and inside.any():
            command = velocity_command(segment.command, command_names)
            found.append(_segment(segment.name, command, truth, inside))
        begin = end
    return tuple(found)


def velocity_command(
    command: Sequence[float], command_names: tuple[str, ...]
) -> tuple[float, float, float]:
    """Forward, sideways and turning velocity of a command; zero where there is no channel."""
    values = dict(zip(command_names, command, strict=True))
    forward, sideways, turning = (float(values.get(name, 0.0)) for name in VELOCITY)
    return forward, sideways, turning


def _segment(
    name: str, command: tuple[float, float, float], truth: Truth, inside: NDArray[np.bool_]
) -> SegmentMetrics:
    velocity = truth.velocity[inside]
    mean = velocity.mean(axis=0)
    error = velocity - np.array(command)
    place = truth.base_pos_w[inside, :2]
    forward, sideways, turning = mean.tolist()
    return SegmentMetrics(
        name=name,
        command=command,
        velocity=(forward, sideways, turning),
        lin_vel_error=float(np.hypot(mean[0] - command[0], mean[1] - command[1])),
        ang_vel_error=float(abs(mean[2] - command[2])),
        lin_vel_rmse=float(np.sqrt((error[:, :2] ** 2).sum(axis=1).mean())),
        ang_vel_rmse=float(np.sqrt((error[:, 2] ** 2).mean())),
        drift=float(np.linalg.norm(place[-1] - place[0])),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentSummary:
    """One segment over many runs.

    Attributes:
        name: Name of the segment.
        command: Velocity asked for.
        velocity: Mean velocity over all runs.
        lin_vel_error: Length of their horizontal difference, [m/s].
        ang_vel_error: Their turning difference, [rad/s].
        worst_lin_vel_error: The same of the worst run, [m/s].
        worst_ang_vel_error: The same of the worst run, [rad/s].
        lin_vel_rmse: Mean over the runs, [m/s].
        ang_vel_rmse: Mean over the runs, [rad/s].
        drift: Mean over the runs, [m].
        runs: How many runs came through it.
    """

    name: str
    command: tuple[float, float, float]
    velocity: tuple[float, float, float]
    lin_vel_error: float
    ang_vel_error: float
    worst_lin_vel_error: float
    worst_ang_vel_error: float
    lin_vel_rmse: float
    ang_vel_rmse: float
    drift: float
    runs: int


def summarize_segments(runs: Sequence[RunMetrics]) -> tuple[SegmentSummary, ...]:
    """Every segment over all runs that came through it, in order of the schedule."""
    groups: dict[str, list[SegmentMetrics]] = {}
    for run in runs:
        for segment in run.segments:
            groups.setdefault(segment.name, []).append(segment)
    return tuple(_summarize(group) for group in groups.values())


def _summarize(group: list[SegmentMetrics]) -> SegmentSummary:
    command = group[0].command
    mean = np.mean([segment.velocity for segment in group], axis=0)
    forward, sideways, turning = mean.tolist()
    return SegmentSummary(
        name=group[0].name,
        command=command,
        velocity=(forward, sideways, turning),
        lin_vel_error=float(np.hypot(mean[0] - command[0], mean[1] - command[1])),
        ang_vel_error=float(abs(mean[2] - command[2])),
        worst_lin_vel_error=max(segment.lin_vel_error for segment in group),
        worst_ang_vel_error=max(segment.ang_vel_error for segment in group),
        lin_vel_rmse=float(np.mean([segment.lin_vel_rmse for segment in group])),
        ang_vel_rmse=float(np.mean([segment.ang_vel_rmse for segment in group])),
        drift=float(np.mean([segment.drift for segment in group])),
        runs=len(group),
    )
