"""The guards: how it is noticed that something goes wrong. What is done then: `faults.py`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.faults import NO_FAULT, Fault
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointCommand, RobotState


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
        measured = (state.joint_pos, state.joint_vel, state.base_quat, state.base_ang_vel_b)
        lin_vel = state.base_lin_vel_b
        if not finite(*measured) or not math.isfinite(state.time):
            return Fault.STATE_NONFINITE
        if lin_vel is not None and not finite(lin_vel):
            return Fault.STATE_NONFINITE
        fault = NO_FAULT
        w, x, y, z = (float(value) for value in state.base_quat)
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
        if not finite(command.position, command.velocity, command.effort, command.kp, command.kd):
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
            return command, NO_FAULT
        limited = JointCommand(
            position=position, velocity=velocity, effort=effort, kp=command.kp, kd=command.kd
        )
        return limited, Fault.TARGET_LIMITED

    def describe(self, fault: Fault, state: RobotState | None, command: JointCommand | None) -> str:
        """A line for people about a fault: the joint and the numbers where there are any."""
        if state is None:
            return ""
        if fault is Fault.TILT:
            w, x, y, z = (float(value) for value in state.base_quat)
            norm = w * w + x * x + y * y + z * z
            angle = math.acos(min(1.0, max(-1.0, 1.0 - 2.0 * (x * x + y * y) / norm)))
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
        return Fault.LOOP_STALLED if stalled else NO_FAULT

    def state(self, state: RobotState, now: float) -> Fault:
        """What is wrong with a state after those before it.

        Args:
            state: The state.
            now: Time of the loop's clock, [s].
        """
        fault = NO_FAULT
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
        return Fault.EFFORT if longest >= self._load_ticks else NO_FAULT


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


def finite(*arrays: NDArray[Any]) -> bool:
    """Whether no element of any array is NaN or infinite."""
    return all(bool(np.isfinite(array).all()) for array in arrays)


def _count(counter: NDArray[np.int64], bad: NDArray[np.bool_]) -> int:
    """Count ticks in a row for which something is bad; returns the longest row."""
    if not bad.any():
        counter.fill(0)
        return 0
    counter += 1
    counter *= bad
    return int(counter.max())


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
