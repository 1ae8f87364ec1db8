"""What can go wrong, and the one table of what is done about it."""

from __future__ import annotations

from enum import Enum, IntFlag
from types import MappingProxyType


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
    OPERATOR_LOST = 1 << 23
    """The device that commands came from is gone, and nobody can stop the robot with it."""


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
        Fault.OPERATOR_LOST: Reaction.DAMP,
    }
)
"""The reaction to every fault. Nothing else decides."""


NO_FAULT = Fault(0)


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
