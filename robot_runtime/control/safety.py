"""What can go wrong, how it is noticed, and the one table of what is done about it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from enum import Enum, IntFlag
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointCommand, RobotState


class Fault(IntFlag):
    """Everything that is counted as gone wrong. The bits stand in flight logs: never reuse one."""

    STATE_NONFINITE = 1 << 0
    """A measured number is NaN or infinite."""
    ATTITUDE_INVALID = 1 << 1
    """The quaternion is no rotation: an IMU that is not up gives zeros, which look upright."""
    JOINT_POSITION = 1 << 2
    """A joint is measured farther beyond its limit than a stop gives way."""
    JOINT_VELOCITY = 1 << 3
    """A joint is measured faster than it can turn, for several ticks."""
    TILT = 1 << 4
    """The base leans farther than a robot that will stay on its feet."""
    STATE_STALE = 1 << 5
    """No new measurement for a short while."""
    STATE_LOST = 1 << 6
    """No new measurement for too long."""
    TIME_BACKWARDS = 1 << 7
    """The measurement is older than the one before."""
    OBSERVATION_NONFINITE = 1 << 8
    """The observation has a NaN or an infinity."""
    ACTION_NONFINITE = 1 << 9
    """The network's output has a NaN or an infinity."""
    TARGET_NONFINITE = 1 << 10
    """What would be sent has a NaN or an infinity."""
    TARGET_LIMITED = 1 << 11
    """A target lay beyond a limit of its joint."""
    EFFORT = 1 << 12
    """The targets ask a joint for more than its motor gives, for long: it is blocked."""
    OPERATOR_SILENT = 1 << 13
    """The command source has not been heard of for a while."""
    OPERATOR_INVALID = 1 << 14
    """The command source failed, or gave a number that is none."""
    OVERRUN = 1 << 15
    """A tick's work was not done in time."""
    LOOP_STALLED = 1 << 16
    """Nothing was sent for so long that the robot was without control."""
    READ_FAILED = 1 << 17
    """Reading the robot raised."""
    POLICY_FAILED = 1 << 18
    """Observation, network or mapping raised."""
    WRITE_FAILED = 1 << 19
    """Sending to the robot raised."""
    CLOCK_FAILED = 1 << 20
    """Waiting for the next tick raised."""
    RECORDER_FAILED = 1 << 21
    """The flight log lost a record."""
    INTERNAL = 1 << 22
    """Anything else raised."""


class Reaction(Enum):
    """What is done about a fault."""

    NOTE = "note"
    """Counted; the robot walks on."""
    LIMIT = "limit"
    """The target was moved to the limit; the robot walks on."""
    ZERO_COMMAND = "zero command"
    """The policy is asked for zero velocity."""
    HOLD = "hold"
    """The last command is sent again; the policy waits."""
    DAMP = "damp"
    """Stiffness off, damping kept, latched: the robot sinks and the run ends."""


REACTIONS = MappingProxyType(
    {
        Fault.STATE_NONFINITE: Reaction.DAMP,
        Fault.ATTITUDE_INVALID: Reaction.DAMP,
        Fault.JOINT_POSITION: Reaction.DAMP,
        Fault.JOINT_VELOCITY: Reaction.DAMP,
        Fault.TILT: Reaction.DAMP,
        Fault.STATE_STALE: Reaction.HOLD,
        Fault.STATE_LOST: Reaction.DAMP,
        Fault.TIME_BACKWARDS: Reaction.DAMP,
        Fault.OBSERVATION_NONFINITE: Reaction.DAMP,
        Fault.ACTION_NONFINITE: Reaction.DAMP,
        Fault.TARGET_NONFINITE: Reaction.DAMP,
        Fault.TARGET_LIMITED: Reaction.LIMIT,
        Fault.EFFORT: Reaction.DAMP,
        Fault.OPERATOR_SILENT: Reaction.ZERO_COMMAND,
        Fault.OPERATOR_INVALID: Reaction.ZERO_COMMAND,
        Fault.OVERRUN: Reaction.NOTE,
        Fault.LOOP_STALLED: Reaction.DAMP,
        Fault.READ_FAILED: Reaction.DAMP,
        Fault.POLICY_FAILED: Reaction.DAMP,
        Fault.WRITE_FAILED: Reaction.DAMP,
        Fault.CLOCK_FAILED: Reaction.DAMP,
        Fault.RECORDER_FAILED: Reaction.NOTE,
        Fault.INTERNAL: Reaction.DAMP,
    }
)
"""The reaction to every fault. Nothing else decides."""


def faults_with(reaction: Reaction) -> Fault:
    """All faults that have this reaction, as one value to test against."""
    found = Fault(0)
    for fault, own in REACTIONS.items():
        if own is reaction:
            found |= fault
    return found


DAMP_FAULTS = faults_with(Reaction.DAMP)
HOLD_FAULTS = faults_with(Reaction.HOLD)
ZERO_COMMAND_FAULTS = faults_with(Reaction.ZERO_COMMAND)


@dataclass(frozen=True, kw_only=True, slots=True)
class SafetyLimits:
    """Where the guards draw their lines; limits of single joints come from the contract.

    Attributes:
        tilt: Largest angle between the base's z axis and the vertical, [rad].
        position_margin: How far beyond its limit a joint may be measured, [rad]: stops give way
            and encoders have offsets.
        velocity_ticks: Ticks in a row for which a joint may be too fast: an impact gives one.
        hold_after: Age of the state from which the last command is held, [periods].
        lost_after: Age of the state from which it counts as lost, [periods].
        effort_time: Time for which a joint may be asked for more than its motor gives, [s].
        command_age: Age from which a command source counts as silent, [s].
        stall: Longest gap between two ticks that still counts as control, [s].
        damping_time: How long damping is sent at the end, [s]; five ticks at least.
    """

    tilt: float = 1.0
    position_margin: float = 0.2
    velocity_ticks: int = 3
    hold_after: float = 1.5
    lost_after: float = 5.0
    effort_time: float = 1.0
    command_age: float = 0.5
    stall: float = 0.5
    damping_time: float = 1.0

    def __post_init__(self) -> None:
        """Refuse limits that would switch a guard off or fire always."""
        for field in self.__slots__:
            if not 0.0 < getattr(self, field) < math.inf:
                raise ValueError(f"{field} = {getattr(self, field)} is not positive and finite")
        if self.hold_after >= self.lost_after:
            raise ValueError(f"hold_after {self.hold_after} is not below {self.lost_after}")


class Guards:
    """Pure checks of one state and one command against the limits."""

    def __init__(self, contract: PolicyContract, limits: SafetyLimits) -> None:
        """Prepare the limits of a contract's joints."""
        self._names = contract.joint_names
        self._lower = contract.joint_array("lower")
        self._upper = contract.joint_array("upper")
        self._lowest = self._lower - limits.position_margin
        self._highest = self._upper + limits.position_margin
        self._speed = contract.joint_array("velocity_limit")
        self._effort = contract.joint_array("effort_limit")
        self._upside = -math.cos(limits.tilt)

    def check_state(self, state: RobotState) -> Fault:
        """What is wrong with a measured state by itself.

        Raises:
            ValueError: A vector has another length than the contract's joints.
        """
        if state.joint_pos.shape != self._lower.shape or state.joint_vel.shape != self._lower.shape:
            raise ValueError(
                f"the robot measured {state.joint_pos.shape} positions and "
                f"{state.joint_vel.shape} speeds for {len(self._names)} joints"
            )
        w, x, y, z = (float(value) for value in state.base_quat)
        if not _finite(state):
            return Fault.STATE_NONFINITE
        fault = Fault(0)
        norm = w * w + x * x + y * y + z * z
        if not 0.9 < norm < 1.1:
            fault |= Fault.ATTITUDE_INVALID
        elif 2.0 * (x * x + y * y) / norm - 1.0 > self._upside:
            fault |= Fault.TILT
        if (state.joint_pos < self._lowest).any() or (state.joint_pos > self._highest).any():
            fault |= Fault.JOINT_POSITION
        return fault

    def too_fast(self, state: RobotState) -> NDArray[np.bool_]:
        """Joints that turn faster than they can; bool, shape ``(num_joints,)``."""
        return np.abs(state.joint_vel) > self._speed

    def overloaded(self, state: RobotState, command: JointCommand) -> NDArray[np.bool_]:
        """Joints that a command asks for more than their motors give, shape ``(num_joints,)``."""
        effort = command.kp * (command.position - state.joint_pos)
        effort += command.kd * (command.velocity - state.joint_vel)
        effort += command.effort
        return np.abs(effort) > self._effort

    def limit(self, command: JointCommand) -> tuple[JointCommand, Fault]:
        """The command with every target inside its joint's limits, and what was wrong with it."""
        total = (
            command.position.sum()
            + command.velocity.sum()
            + command.effort.sum()
            + command.kp.sum()
            + command.kd.sum()
        )
        if not math.isfinite(total):
            return command, Fault.TARGET_NONFINITE
        position = np.minimum(np.maximum(command.position, self._lower), self._upper)
        velocity = np.minimum(np.maximum(command.velocity, -self._speed), self._speed)
        effort = np.minimum(np.maximum(command.effort, -self._effort), self._effort)
        same = (
            (position == command.position).all()
            and (velocity == command.velocity).all()
            and (effort == command.effort).all()
        )
        if same:
            return command, Fault(0)
        limited = JointCommand(
            position=position, velocity=velocity, effort=effort, kp=command.kp, kd=command.kd
        )
        return limited, Fault.TARGET_LIMITED

    def describe(self, fault: Fault, state: RobotState | None, command: JointCommand | None) -> str:
        """A line for people about a fault: the joint and the numbers where there are any."""
        if state is None:
            return ""
        if fault is Fault.TILT:
            _, x, y, _ = (float(value) for value in state.base_quat)
            angle = math.acos(min(1.0, max(-1.0, 1.0 - 2.0 * (x * x + y * y))))
            return f"base leans {angle:.2f} rad, limit {math.acos(-self._upside):.2f}"
        if fault is Fault.ATTITUDE_INVALID:
            return f"quaternion {np.array2string(np.asarray(state.base_quat), precision=3)}"
        if fault is Fault.JOINT_POSITION:
            beyond = np.maximum(self._lower - state.joint_pos, state.joint_pos - self._upper)
            i = int(np.argmax(beyond))
            return (
                f"{self._names[i]} at {state.joint_pos[i]:.3f} rad, "
                f"limits {self._lower[i]:.3f} to {self._upper[i]:.3f}"
            )
        if fault is Fault.JOINT_VELOCITY:
            i = int(np.argmax(np.abs(state.joint_vel) / self._speed))
            return f"{self._names[i]} at {state.joint_vel[i]:.1f} rad/s, limit {self._speed[i]:.1f}"
        if fault is Fault.STATE_NONFINITE:
            return _first_nonfinite(state, self._names)
        if fault is Fault.EFFORT and command is not None:
            blocked = np.flatnonzero(self.overloaded(state, command))
            return "blocked: " + ", ".join(self._names[i] for i in blocked)
        return ""


class Watchdog:
    """Guards that need to remember: age of the state, joints too fast or overloaded for long."""

    def __init__(self, guards: Guards, limits: SafetyLimits, period: float, count: int) -> None:
        """Prepare for a loop.

        Args:
            guards: The checks of single states.
            limits: The limits.
            period: Period of the loop, [s].
            count: Number of joints.
        """
        self._guards = guards
        self._hold = limits.hold_after * period
        self._lost = limits.lost_after * period
        self._fast_ticks = limits.velocity_ticks
        self._load_ticks = max(1, round(limits.effort_time / period))
        self._stall = limits.stall
        self._fast = np.zeros(count, dtype=np.int64)
        self._load = np.zeros(count, dtype=np.int64)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._time = -math.inf
        self._advanced = math.nan
        self._last_tick = math.nan
        self._fast.fill(0)
        self._load.fill(0)

    def tick(self, now: float) -> Fault:
        """Whether the loop itself came back in time."""
        stalled = now - self._last_tick > self._stall
        self._last_tick = now
        return Fault.LOOP_STALLED if stalled else Fault(0)

    def state(self, state: RobotState, now: float) -> Fault:
        """What is wrong with a state after those before it.

        Args:
            state: The state.
            now: Time of the loop's clock, [s].
        """
        fault = Fault(0)
        time = float(state.time)
        if time > self._time:
            self._time, self._advanced = time, now
        elif time < self._time:
            fault |= Fault.TIME_BACKWARDS
        elif now - self._advanced > self._lost:
            fault |= Fault.STATE_LOST
        elif now - self._advanced > self._hold:
            fault |= Fault.STATE_STALE
        if _count(self._fast, self._guards.too_fast(state)) >= self._fast_ticks:
            fault |= Fault.JOINT_VELOCITY
        return fault

    def command(self, state: RobotState, command: JointCommand) -> Fault:
        """What is wrong with a command after those before it."""
        longest = _count(self._load, self._guards.overloaded(state, command))
        return Fault.EFFORT if longest >= self._load_ticks else Fault(0)


def damping_command(contract: PolicyContract) -> JointCommand:
    """Stiffness off, the contract's damping kept.

    The positions are the default pose's, so that a driver that gets stiffness wrong does no harm.
    """
    limp = limp_command(contract)
    return dataclasses.replace(limp, kd=contract.joint_array("kd"))


def limp_command(contract: PolicyContract) -> JointCommand:
    """Nothing at all: no stiffness, no damping, no effort."""
    zero = np.zeros(len(contract.joints))
    position = contract.joint_array("default_pos")
    return JointCommand(position=position, velocity=zero, effort=zero, kp=zero, kd=zero)


def _count(counter: NDArray[np.int64], bad: NDArray[np.bool_]) -> int:
    """Count ticks in a row for which something is bad; returns the longest row."""
    if not bad.any():
        counter.fill(0)
        return 0
    counter += 1
    counter *= bad
    return int(counter.max())


def _finite(state: RobotState) -> bool:
    # A sum is not finite when one of its terms is not, and is half the price of asking each.
    total = state.joint_pos.sum() + state.joint_vel.sum()
    total += state.base_quat.sum() + state.base_ang_vel_b.sum()
    if state.base_lin_vel_b is not None:
        total += state.base_lin_vel_b.sum()
    return math.isfinite(total) and math.isfinite(state.time)


def _first_nonfinite(state: RobotState, names: tuple[str, ...]) -> str:
    for field in ("joint_pos", "joint_vel"):
        bad = np.flatnonzero(~np.isfinite(getattr(state, field)))
        if bad.size:
            return f"{field} of {names[bad[0]]} is {getattr(state, field)[bad[0]]}"
    for field in ("base_quat", "base_ang_vel_b", "base_lin_vel_b", "time"):
        value = getattr(state, field)
        if value is not None and not np.isfinite(value).all():
            return f"{field} is {value}"
    return ""
