"""The modes of a robot and what moves it from one to another, as one table."""

from __future__ import annotations

from enum import Enum, IntEnum
from types import MappingProxyType


class Mode(IntEnum):
    """What the loop sends to the motors. The numbers stand in flight logs: never reuse one."""

    PASSIVE = 0
    """Nothing: no stiffness, no damping. Before anything was asked for."""
    STAND = 1
    """From the measured pose to the default pose, gains from zero up; then held."""
    POLICY = 2
    """What the policy wants."""
    DAMPING = 3
    """No stiffness, the contract's damping: the robot sinks. Latched: only E-stop leaves it."""
    ESTOP = 4
    """Motors limp, at once. Final."""


class Event(Enum):
    """What may change the mode."""

    STAND = "stand"
    """The operator, or the sequence, asks the robot to stand up."""
    ENGAGE = "engage"
    """The robot stands and the policy may have it."""
    DAMP = "damp"
    """A fault, the end of the run, or the operator."""
    ESTOP = "estop"
    """The operator wants the motors off."""


TRANSITIONS = MappingProxyType(
    {
        (Mode.PASSIVE, Event.STAND): Mode.STAND,
        (Mode.PASSIVE, Event.ENGAGE): Mode.PASSIVE,  # nobody walks off without standing up
        (Mode.PASSIVE, Event.DAMP): Mode.DAMPING,
        (Mode.PASSIVE, Event.ESTOP): Mode.ESTOP,
        (Mode.STAND, Event.STAND): Mode.STAND,
        (Mode.STAND, Event.ENGAGE): Mode.POLICY,
        (Mode.STAND, Event.DAMP): Mode.DAMPING,
        (Mode.STAND, Event.ESTOP): Mode.ESTOP,
        (Mode.POLICY, Event.STAND): Mode.STAND,
        (Mode.POLICY, Event.ENGAGE): Mode.POLICY,
        (Mode.POLICY, Event.DAMP): Mode.DAMPING,
        (Mode.POLICY, Event.ESTOP): Mode.ESTOP,
        (Mode.DAMPING, Event.STAND): Mode.DAMPING,
        (Mode.DAMPING, Event.ENGAGE): Mode.DAMPING,
        (Mode.DAMPING, Event.DAMP): Mode.DAMPING,
        (Mode.DAMPING, Event.ESTOP): Mode.ESTOP,
        (Mode.ESTOP, Event.STAND): Mode.ESTOP,
        (Mode.ESTOP, Event.ENGAGE): Mode.ESTOP,
        (Mode.ESTOP, Event.DAMP): Mode.ESTOP,
        (Mode.ESTOP, Event.ESTOP): Mode.ESTOP,
    }
)
"""The mode that follows on an event, for every mode and event. Nothing else changes a mode."""
