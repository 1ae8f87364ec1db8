"""Commands by gamepad, read from the joystick device of Linux; standard library only.

The device gives events of eight bytes: time [ms], value, type (1 button, 2 axis), number; on
opening, one for every axis and button with its present value (joystick-api.rst of the kernel's
documentation). Axes and buttons are numbered as the kernel's `xpad` driver does.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct

import numpy as np

from robot_runtime.control.modes import Event
from robot_runtime.control.teleop import Asked
from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract

DEVICE = "/dev/input/js0"
"""The first gamepad."""

DEAD_ZONE = 0.1
"""Share of an axis that counts as its middle: sticks do not come back to zero."""

GAMEPAD_HELP = "left stick forward and sideways, right stick turn, B damping, Back motors off"

_EVENT = struct.Struct("<IhBB")
_BUTTON, _AXIS, _INITIAL = 1, 2, 0x80
_FULL = 32767.0
_MOST_EVENTS = 64
_GET_NUM_AXES = 0x80016A11
# Sticks are positive to the right and down, velocities to the front and left.
_CHANNEL_OF_AXIS = {0: "lin_vel_y", 1: "lin_vel_x", 3: "ang_vel_z"}
_EVENT_OF_BUTTON = {1: Event.DAMP, 6: Event.ESTOP}


class Gamepad:
    """Sticks ask for a share of the contract's command ranges, as far as they are moved.

    When the device goes away nobody can stop the robot any more: that is `Fault.OPERATOR_LOST`.
    """

    def __init__(self, contract: PolicyContract, device: str = DEVICE) -> None:
        """Open the device.

        Args:
            contract: The contract with the command channels.
            device: A joystick device, or a pipe that gives its events.

        Raises:
            BadInput: It cannot be opened or is no joystick device.
        """
        self._names = contract.command_names
        self._lower = np.array([min(channel.lower, 0.0) for channel in contract.commands])
        self._upper = np.array([max(channel.upper, 0.0) for channel in contract.commands])
        self._values = np.zeros(len(self._names))
        self._rest = b""
        self._lost = False
        try:
            self._file = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadInput(f"gamepad '{device}': {reason}") from None
        if not _is_joystick(self._file):
            os.close(self._file)
            raise BadInput(f"gamepad '{device}': no joystick device as {DEVICE} is one")

    def poll(self, now: float, elapsed: float) -> Asked:
        """What sticks and buttons ask for."""
        event = None
        for value, kind, number in self._events():
            if kind == _AXIS and _CHANNEL_OF_AXIS.get(number) in self._names:
                self._move(self._names.index(_CHANNEL_OF_AXIS[number]), -value / _FULL)
            elif kind == _BUTTON and value and number in _EVENT_OF_BUTTON:
                # Of several the strongest.
                event = Event.ESTOP if event is Event.ESTOP else _EVENT_OF_BUTTON[number]
        if self._lost:
            self._values[:] = 0.0
        return Asked(values=np.array(self._values), event=event, lost=self._lost)

    def close(self) -> None:
        """Close the device; a second time is nothing."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _move(self, channel: int, share: float) -> None:
        beyond = min(max(abs(share) - DEAD_ZONE, 0.0) / (1.0 - DEAD_ZONE), 1.0)
        end = self._upper if share > 0.0 else -self._lower
        self._values[channel] = np.copysign(beyond * end[channel], share)

    def _events(self) -> list[tuple[int, int, int]]:
        """Value, type and number of the events since the last call."""
        try:
            read = os.read(self._file, _MOST_EVENTS * _EVENT.size)
            self._lost = self._lost or not read
        except BlockingIOError:
            return []
        except OSError:
            self._lost = True
            return []
        data = self._rest + read
        whole = len(data) - len(data) % _EVENT.size
        self._rest = data[whole:]
        events = _EVENT.iter_unpack(data[:whole])
        return [(value, kind & ~_INITIAL, number) for _, value, kind, number in events]


def _is_joystick(file: int) -> bool:
    mode = os.fstat(file).st_mode
    if not stat.S_ISCHR(mode):
        return stat.S_ISFIFO(mode)
    try:
        return fcntl.ioctl(file, _GET_NUM_AXES, bytes(1)) != bytes(1)
    except OSError:
        return False
