"""Where commands come from: a constant, a schedule, the keyboard."""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import sys
import termios
import tty
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.modes import Event
from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract

VELOCITY = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
"""The channels behind three numbers without names, [m/s], [m/s], [rad/s]."""

DEMO = (
    (2.0, (0.0, 0.0, 0.0)),
    (4.0, (0.5, 0.0, 0.0)),
    (4.0, (0.0, 0.3, 0.0)),
    (4.0, (0.0, 0.0, 0.8)),
    (2.0, (0.0, 0.0, 0.0)),
)
"""Stand, walk, step sideways, turn, stop: durations [s] with velocities."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the operator asks for.

    Attributes:
        values: Command channels in contract order, float64, shape ``(num_commands,)``.
        age: Time since the source last showed a sign of life, [s].
        event: A change of mode that the operator wants, or None.
        lost: Whether the source is gone for good and the robot shall not walk on without it.
    """

    values: NDArray[np.float64]
    age: float = 0.0
    event: Event | None = None
    lost: bool = False


class CommandSource(Protocol):
    """Asked once per tick; must not block."""

    def poll(self, now: float, elapsed: float) -> Asked:
        """What is asked for.

        Args:
            now: Time of the loop's clock, [s].
            elapsed: Time since the policy engaged, [s]; 0 before.
        """
        ...

    def close(self) -> None:
        """Let go of the device."""
        ...


class Constant:
    """Asks for the same all the time."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        """Take the command, shape ``(num_commands,)``."""
        self.commands = (np.array(values, dtype=np.float64),)
        """All that it asks for."""
        self._asked = Asked(values=self.commands[0])

    def poll(self, now: float, elapsed: float) -> Asked:
        """The constant."""
        return self._asked

    def close(self) -> None:
        """Nothing to let go of."""


class Schedule:
    """Asks for one command after another, then for the last one."""

    def __init__(self, segments: Sequence[tuple[float, NDArray[np.float64]]]) -> None:
        """Prepare.

        Args:
            segments: Durations, [s], with the command asked for, shape ``(num_commands,)``.

        Raises:
            BadInput: There are no segments, or a duration is not positive.
        """
        if not segments or not all(0.0 < duration < math.inf for duration, _ in segments):
            raise BadInput("a schedule needs at least one segment, each of positive duration")
        self.commands = tuple(np.array(values, dtype=np.float64) for _, values in segments)
        """All that it asks for, in order."""
        self._asked = [Asked(values=values) for values in self.commands]
        self._ends = np.cumsum([duration for duration, _ in segments])
        self.duration = float(self._ends[-1])
        """All segments together, [s]."""

    def poll(self, now: float, elapsed: float) -> Asked:
        """The command of the segment that runs at this time after the policy engaged."""
        # Half a microsecond, because ticks of 20 ms add up to 1.9999999999999998 s.
        segment = int(np.searchsorted(self._ends, elapsed + 5e-7, side="right"))
        return self._asked[min(segment, len(self._asked) - 1)]

    def close(self) -> None:
        """Nothing to let go of."""


_KEYS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "w": ("lin_vel_x", 0.1),
        "s": ("lin_vel_x", -0.1),
        "a": ("lin_vel_y", 0.1),
        "d": ("lin_vel_y", -0.1),
        "q": ("ang_vel_z", 0.2),
        "e": ("ang_vel_z", -0.2),
    }
)

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;]*[@-~]|O.)")
"""What arrow and function keys send: an escape and characters that are keys of their own."""
_BEGUN = re.compile(r"\x1b(?:\[[0-9;]*|O)?\Z")

KEYBOARD_HELP = "w/s forward, a/d sideways, q/e turn, space stop, z damping, x motors off"


class Keyboard:
    """Keys change the velocity step by step; it stays until another key is pressed.

    The terminal tells no key-up, so the sign of life is that it is still there: when it goes away,
    the age grows and the loop asks for zero velocity.
    """

    def __init__(self, contract: PolicyContract, descriptor: int | None = None) -> None:
        """Take the terminal out of line mode.

        Args:
            contract: The contract with the command channels.
            descriptor: File descriptor of a terminal; None for stdin.

        Raises:
            BadInput: It is no terminal.
        """
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        if not os.isatty(self._descriptor):
            raise BadInput("the keyboard needs a terminal, and standard input is none")
        self._names = contract.command_names
        self._lower = np.array([channel.lower for channel in contract.commands])
        self._upper = np.array([channel.upper for channel in contract.commands])
        self._values = np.zeros(len(self._names))
        self._gone: float | None = None
        self._begun = ""
        self._before: list[Any] = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)

    def poll(self, now: float, elapsed: float) -> Asked:
        """What the keys pressed so far ask for."""
        event = None
        for key in self._pressed(now):
            if key in _KEYS and _KEYS[key][0] in self._names:
                i = self._names.index(_KEYS[key][0])
                moved = self._values[i] + _KEYS[key][1]
                self._values[i] = min(max(moved, self._lower[i]), self._upper[i])
            elif key == " ":
                self._values[:] = 0.0
            elif key == "z" and event is None:
                event = Event.DAMP
            elif key == "x":
                event = Event.ESTOP
        age = 0.0 if self._gone is None else now - self._gone
        return Asked(values=np.array(self._values), age=age, event=event)

    def close(self) -> None:
        """Put the terminal back into the mode it was in."""
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def _pressed(self, now: float) -> str:
        if self._gone is not None:
            return ""
        try:
            ready, _, _ = select.select([self._descriptor], [], [], 0.0)
            if not ready:
                return ""
            keys = os.read(self._descriptor, 64)
        except OSError:
            keys = b""
        if not keys:
            self._gone = now
        text = _SEQUENCE.sub("", self._begun + keys.decode(errors="replace"))
        begun = _BEGUN.search(text)
        self._begun = begun.group() if begun else ""
        return text[: len(text) - len(self._begun)].lower()


def command_array(
    contract: PolicyContract, values: Mapping[str, float], what: str = "command"
) -> NDArray[np.float64]:
    """A command by channel names, zero where nothing is given.

    Args:
        contract: The contract with the command channels.
        values: Numbers by channel name.
        what: What the values are, for messages.

    Returns:
        float64, shape ``(num_commands,)``.

    Raises:
        BadInput: A channel does not exist, or a number is not finite.
    """
    names = contract.command_names
    array = np.zeros(len(names))
    for name, value in values.items():
        if name not in names:
            known = ", ".join(names) or "none"
            raise BadInput(f"{what}: this policy has no channel {name!r}; it has {known}")
        if not math.isfinite(value):
            raise BadInput(f"{what}: {name} = {value} is not a finite number")
        array[names.index(name)] = value
    return array


def parse_command(contract: PolicyContract, text: str) -> NDArray[np.float64]:
    """Read a command that a user typed.

    Args:
        contract: The contract with the command channels.
        text: ``vx,vy,wz`` in [m/s] and [rad/s], or ``channel=number`` with commas between.

    Raises:
        BadInput: Neither of both, or see `command_array`.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        if any("=" in part for part in parts):
            pairs = [part.split("=", 1) for part in parts]
            values = {pair[0].strip(): float(pair[1]) for pair in pairs}
            if len(values) < len(pairs):
                raise BadInput(f"command {text!r}: a channel is given twice")
        else:
            numbers = [float(part) for part in parts]
            values = {str(name): n for name, n in zip(VELOCITY, numbers, strict=True)}
    except (ValueError, IndexError):
        raise BadInput(
            f"command {text!r}: expected three numbers vx,vy,wz or channel=number,..."
        ) from None
    return command_array(contract, values, f"command {text!r}")


def parse_source(contract: PolicyContract, text: str) -> Constant | Schedule:
    """Read one command, or a schedule ``seconds: command; seconds: command; ...``.

    Raises:
        BadInput: A part is neither; see `parse_command`.
    """
    if ":" not in text:
        return Constant(parse_command(contract, text))
    segments: list[tuple[float, NDArray[np.float64]]] = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        seconds, _, command = part.partition(":")
        try:
            duration = float(seconds)
        except ValueError:
            raise BadInput(f"schedule {part!r}: expected seconds: command") from None
        if not 0.0 < duration < math.inf:
            raise BadInput(f"schedule {part!r}: {duration:g} s is no positive duration")
        try:
            segments.append((duration, parse_command(contract, command)))
        except BadInput as error:
            raise BadInput(f"schedule {part!r}: {error}") from None
    return Schedule(segments)


def demo_schedule(contract: PolicyContract) -> Schedule:
    """`DEMO` as far as this policy has the channels, within their ranges."""
    segments: list[tuple[float, NDArray[np.float64]]] = []
    for duration, velocity in DEMO:
        wanted = zip(VELOCITY, velocity, strict=True)
        known = {name: value for name, value in wanted if name in contract.command_names}
        segments.append((duration, command_array(contract, known)))
    return Schedule(segments)
