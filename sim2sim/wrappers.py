"""What goes wrong between loop and robot, as wrappers around a `Robot`.

The loop under test is the loop that ships; only the robot behind the seam is a worse one.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.robot import Robot
from robot_runtime.policy.rotation import multiply
from robot_runtime.policy.state import JointCommand, RobotState


class Wrapper:
    """A robot that passes everything on; its kin change one thing."""

    def __init__(self, inner: Robot) -> None:
        """Wrap a robot."""
        self.inner = inner

    @property
    def joint_names(self) -> tuple[str, ...]:
        """The robot's joints."""
        return self.inner.joint_names

    @property
    def measures(self) -> frozenset[str]:
        """What the robot measures."""
        return self.inner.measures

    def read(self) -> RobotState:
        """The robot's state."""
        return self.inner.read()

    def write(self, command: JointCommand) -> JointCommand:
        """Send a command."""
        return self.inner.write(command)

    def close(self) -> None:
        """Let go of the robot."""
        self.inner.close()


class Latency(Wrapper):
    """Commands reach the robot later than they were sent.

    Whoever advances time calls `deliver` before every step.
    """

    def __init__(self, inner: Robot, delay: float, now: Callable[[], float]) -> None:
        """Wrap a robot.

        Args:
            inner: The robot.
            delay: Time from `write` to the robot, [s].
            now: Gives the robot's time, [s].
        """
        super().__init__(inner)
        self._delay = delay
        self._now = now
        self._under_way: deque[tuple[float, JointCommand]] = deque()

    def write(self, command: JointCommand) -> JointCommand:
        """Send a command on its way."""
        self._under_way.append((self._now() + self._delay, _copied(command)))
        return command

    def deliver(self) -> None:
        """Hand over what has arrived by now."""
        while self._under_way and self._under_way[0][0] <= self._now() + 1e-9:
            self.inner.write(self._under_way.popleft()[1])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NoiseLevels:
    """Half-widths of uniform sensor noise.

    Attributes:
        attitude: Angle about each axis of the base, [rad].
        ang_vel: Each axis, [rad/s].
        lin_vel: Each axis, [m/s].
        joint_pos: Each joint, [rad].
        joint_vel: Each joint, [rad/s].
    """

    attitude: float = 0.02
    ang_vel: float = 0.1
    lin_vel: float = 0.1
    joint_pos: float = 0.01
    joint_vel: float = 0.5


class SensorNoise(Wrapper):
    """Every measurement is off by a draw of its own."""

    def __init__(self, inner: Robot, levels: NoiseLevels, rng: np.random.Generator) -> None:
        """Wrap a robot.

        Args:
            inner: The robot.
            levels: How noisy its sensors are.
            rng: Where the draws come from.
        """
        super().__init__(inner)
        self._levels = levels
        self._rng = rng

    def read(self) -> RobotState:
        """A noisy state."""
        state, levels = self.inner.read(), self._levels
        turn = np.concatenate([[1.0], 0.5 * self._draw(levels.attitude, 3)])
        lin_vel = state.base_lin_vel_b
        return RobotState(
            time=state.time,
            base_quat=multiply(state.base_quat, turn / np.linalg.norm(turn)),
            base_ang_vel_b=state.base_ang_vel_b + self._draw(levels.ang_vel, 3),
            base_lin_vel_b=None if lin_vel is None else lin_vel + self._draw(levels.lin_vel, 3),
            joint_pos=state.joint_pos + self._draw(levels.joint_pos, len(state.joint_pos)),
            joint_vel=state.joint_vel + self._draw(levels.joint_vel, len(state.joint_vel)),
        )

    def _draw(self, half_width: float, size: int) -> NDArray[np.float64]:
        return self._rng.uniform(-half_width, half_width, size=size)


class PacketLoss(Wrapper):
    """Packets get lost: a lost state leaves the one before, a lost command is never sent."""

    def __init__(self, inner: Robot, probability: float, rng: np.random.Generator) -> None:
        """Wrap a robot.

        Args:
            inner: The robot.
            probability: Chance of each packet, both ways, to be lost.
            rng: Where the draws come from.
        """
        super().__init__(inner)
        self._probability = probability
        self._rng = rng
        self._last: RobotState | None = None

    def read(self) -> RobotState:
        """The newest state that came through; the first one always does."""
        lost = self._rng.random() < self._probability
        if self._last is None or not lost:
            self._last = self.inner.read()
        return self._last

    def write(self, command: JointCommand) -> JointCommand:
        """Send a command that may get lost; the sender cannot tell."""
        if self._rng.random() >= self._probability:
            self.inner.write(command)
        return command


def _copied(command: JointCommand) -> JointCommand:
    return JointCommand(
        position=command.position.copy(),
        velocity=command.velocity.copy(),
        effort=command.effort.copy(),
        kp=command.kp.copy(),
        kd=command.kd.copy(),
    )
