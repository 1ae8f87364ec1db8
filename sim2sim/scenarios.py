"""What a policy is put through: schedules of commands, starts, disturbances. All drawn from seeds.

A draw depends on (seed, kind, index) alone, never on how many scenarios run or in which process.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.teleop import DEMO, VELOCITY
from robot_runtime.policy.command import clip_command
from robot_runtime.policy.contract import PolicyContract

Kind = Literal["nominal", "disturbed", "command"]

_NAMES = ("stand", "forward", "sideways", "turn", "stop")
"""Names of the segments of the nominal schedule, `teleop.DEMO`."""

JOINT_OFFSET = 0.1
"""Largest offset of a joint at the start, [rad]."""
BASE_SPEED = 0.2
"""Largest speed of the base at the start, [m/s]."""
FRICTION = (0.4, 1.2)
"""Range of the coefficient of sliding friction."""
PAYLOAD = (-1.0, 1.5)
"""Range of the mass added to the base, [kg]."""
STRENGTH = 0.15
"""Largest relative change of a motor's effort."""
LATENCY = 0.02
"""Longest time from the loop's command to the motors, [s]."""
PUSH_SPEED = 0.5
"""Change of the base's horizontal velocity by a push, [m/s]."""
PUSH_EVERY = 4.0
"""Mean time between pushes, [s]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A command that is held for a while.

    Attributes:
        name: Name for people.
        duration: How long, [s].
        command: Command channels in contract order, within their ranges.
    """

    name: str
    duration: float
    command: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """How the robot begins.

    Attributes:
        yaw: Heading, [rad].
        joint_offsets: Added to the joints' positions, [rad], contract order.
        base_velocity: Horizontal velocity of the base, world frame, [m/s].
    """

    yaw: float
    joint_offsets: tuple[float, ...]
    base_velocity: tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Push:
    """A blow to the base.

    Attributes:
        time: When, [s].
        velocity: Added to the base's horizontal velocity, world frame, [m/s].
    """

    time: float
    velocity: tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbance:
    """What is not as in the model.

    Attributes:
        friction: Coefficient of sliding friction of every contact.
        payload: Mass added to the base, [kg].
        strength: Factor on each motor's effort after its limit, contract order, as in training.
        latency: Time from the loop's command to the motors, [s].
        pushes: Blows to the base.
    """

    friction: float
    payload: float
    strength: tuple[float, ...]
    latency: float
    pushes: tuple[Push, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One run.

    Attributes:
        kind: Family it belongs to.
        seed: Seed of all runs together.
        index: Its number in its family.
        segments: The commands, one after the other.
        start: How the robot begins; None for exactly the model's pose.
        disturbance: What is not as in the model, or None.
    """

    kind: Kind
    seed: int
    index: int
    segments: tuple[Segment, ...]
    start: Start | None
    disturbance: Disturbance | None

    @property
    def name(self) -> str:
        """Name for people: family, seed and number."""
        return self.kind if self.start is None else f"{self.kind} {self.seed}/{self.index}"

    @property
    def duration(self) -> float:
        """All segments together, [s]."""
        return sum(segment.duration for segment in self.segments)


def nominal_scenario(contract: PolicyContract, seed: int, index: int) -> Scenario:
    """The nominal schedule from a drawn start: yaw, joint offsets, base velocity."""
    rng = np.random.default_rng([seed, 0, index])
    return Scenario(
        kind="nominal",
        seed=seed,
        index=index,
        segments=nominal_schedule(contract)[0],
        start=_draw_start(contract, rng),
        disturbance=None,
    )


def disturbed_scenario(contract: PolicyContract, seed: int, index: int) -> Scenario:
    """The nominal schedule with friction, payload, motors, latency and pushes drawn as well."""
    rng = np.random.default_rng([seed, 1, index])
    segments = nominal_schedule(contract)[0]
    return Scenario(
        kind="disturbed",
        seed=seed,
        index=index,
        segments=segments,
        start=_draw_start(contract, rng),
        disturbance=_draw_disturbance(contract, rng, sum(s.duration for s in segments)),
    )


def command_scenario(
    contract: PolicyContract, command: NDArray[np.float64], duration: float
) -> tuple[Scenario, list[str]]:
    """One constant command from the model's own pose, and what had to be clipped."""
    clipped, notes = clip_command(contract, command)
    segment = Segment(name="command", duration=duration, command=clipped)
    scenario = Scenario(
        kind="command", seed=0, index=0, segments=(segment,), start=None, disturbance=None
    )
    return scenario, notes


def drawn_command_scenario(
    contract: PolicyContract, command: NDArray[np.float64], duration: float, seed: int, index: int
) -> Scenario:
    """One constant command, clipped to the contract's ranges, from a drawn start."""
    scenario, _ = command_scenario(contract, command, duration)
    start = _draw_start(contract, np.random.default_rng([seed, 2, index]))
    return dataclasses.replace(scenario, seed=seed, index=index, start=start)


def nominal_schedule(contract: PolicyContract) -> tuple[tuple[Segment, ...], list[str]]:
    """Stand, forward, sideways, turn, stop, as far as the contract's commands allow.

    Returns:
        The segments, and a line for everything that was left out or clipped.
    """
    names = contract.command_names
    segments: list[Segment] = []
    notes: list[str] = []
    for name, (duration, velocity) in zip(_NAMES, DEMO, strict=True):
        wanted: dict[str, float] = dict(zip(VELOCITY, velocity, strict=True))
        missing = [channel for channel, value in wanted.items() if value and channel not in names]
        if missing:
            notes.append(f"segment {name!r} is left out: the policy has no command {missing[0]}")
            continue
        command = np.array([wanted.get(channel, 0.0) for channel in names])
        clipped, lines = clip_command(contract, command)
        notes += [f"segment {name!r}: {line}" for line in lines]
        segments.append(Segment(name=name, duration=duration, command=clipped))
    return tuple(segments), notes


def schedule_arrays(segments: Sequence[Segment]) -> list[tuple[float, NDArray[np.float64]]]:
    """Durations and commands, as `teleop.Schedule` takes them."""
    return [(segment.duration, np.array(segment.command)) for segment in segments]


def _draw_start(contract: PolicyContract, rng: np.random.Generator) -> Start:
    yaw = rng.uniform(-math.pi, math.pi)
    offsets = rng.uniform(-JOINT_OFFSET, JOINT_OFFSET, size=len(contract.joints))
    return Start(
        yaw=float(yaw),
        joint_offsets=tuple(offsets.tolist()),
        base_velocity=_draw_vector(rng, rng.uniform(0.0, BASE_SPEED)),
    )


def _draw_disturbance(
    contract: PolicyContract, rng: np.random.Generator, duration: float
) -> Disturbance:
    strength = rng.uniform(1.0 - STRENGTH, 1.0 + STRENGTH, size=len(contract.joints))
    times = np.arange(PUSH_EVERY / 2.0, duration, PUSH_EVERY)
    times = times + rng.uniform(-1.0, 1.0, size=len(times))
    return Disturbance(
        friction=float(rng.uniform(*FRICTION)),
        payload=float(rng.uniform(*PAYLOAD)),
        strength=tuple(strength.tolist()),
        latency=float(rng.uniform(0.0, LATENCY)),
        pushes=tuple(
            Push(time=float(time), velocity=_draw_vector(rng, PUSH_SPEED)) for time in times
        ),
    )


def _draw_vector(rng: np.random.Generator, length: float) -> tuple[float, float]:
    angle = rng.uniform(-math.pi, math.pi)
    return (length * math.cos(angle), length * math.sin(angle))
