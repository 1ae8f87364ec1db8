"""A robot that is not there: joints follow their targets, and it fails when it is asked to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.loop import Policy
from robot_runtime.drivers.options import Option, Value, read_options, takes
from robot_runtime.errors import BadInput
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointCommand, RobotState

Failure = Literal["none", "stale", "nan", "tilt", "jump", "read", "write", "frozen"]
"""What breaks, see `OPTIONS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MockOptions:
    """How the mock behaves; what the fields mean is said in `OPTIONS`."""

    fail: Failure = "none"
    at: float = 1.0
    drop: float = 0.0
    offset: float = 0.0
    response: float = 0.05

    def __post_init__(self) -> None:
        """Refuse what is no behaviour; the message lists what is."""
        if self.fail not in get_args(Failure):
            known = ", ".join(get_args(Failure))
            raise BadInput(f"mock robot: fail = {self.fail!r} is not one of {known}")
        if not 0.0 <= self.drop < 1.0:
            raise BadInput(f"mock robot: drop = {self.drop} is not in [0, 1)")
        if not self.response > 0.0:
            raise BadInput(f"mock robot: response = {self.response} s is not positive")
        for name in ("at", "offset", "response"):
            if not math.isfinite(getattr(self, name)):
                raise BadInput(f"mock robot: {name} = {getattr(self, name)} is not finite")


_MEANINGS = {
    "fail": "what breaks: the state's time stands still, a NaN, the base lies on its side, a joint "
    "far beyond its limits, read() raises, write() raises, the joints are blocked",
    "at": "when it breaks, [s] after the first read",
    "drop": "share of reads that bring nothing new, in [0, 1)",
    "offset": "where the joints start, relative to the default pose, [rad]",
    "response": "time in which a stiff joint covers 63 % of the way to its target, [s]",
}

OPTIONS = tuple(
    Option(
        name=field.name,
        help=_MEANINGS[field.name],
        kind=float if isinstance(field.default, float) else str,
        default=cast("Value", field.default),
        choices=get_args(Failure) if field.name == "fail" else (),
    )
    for field in fields(MockOptions)
)
"""Options of the driver ``mock``."""


class MockRobot:
    """Mirrors commands: every joint is a first-order lag that moves as far as it is stiff.

    The base stands still and upright and measures everything.
    """

    def __init__(
        self,
        contract: PolicyContract,
        options: MockOptions | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put the joints where the options say.

        Args:
            contract: Names, gains and limits of the joints.
            options: How to behave.
            now: Gives the time, [s].
        """
        self._options = options or MockOptions()
        self._names = contract.joint_names
        self._kp = np.maximum(contract.joint_array("kp"), 1e-9)
        self._speed = contract.joint_array("velocity_limit")
        self._limit = contract.joint_array("effort_limit")
        self._now = now
        self._random = np.random.default_rng(0)
        self._position = contract.joint_array("default_pos") + self._options.offset
        self._velocity = np.zeros(len(self._names))
        self._target = np.array(self._position)
        self._stiffness = np.zeros(len(self._names))
        self._start = self._last = math.nan
        self._state: RobotState | None = None

    @property
    def joint_names(self) -> tuple[str, ...]:
        """The contract's joints."""
        return self._names

    @property
    def measures(self) -> frozenset[str]:
        """Everything."""
        return frozenset({"base_lin_vel_b"})

    def read(self) -> RobotState:
        """Let the joints move for the time since the last read, and measure them.

        Raises:
            OSError: It was asked to fail so.
        """
        now = self._now()
        if math.isnan(self._start):
            self._start = self._last = now
        self._move(now - self._last)
        self._last = now
        if self._failing("read"):
            raise OSError("mock robot: the connection is gone")
        old = self._state
        if old is not None and (self._failing("stale") or self._dropped()):
            return old
        self._state = self._measure(now)
        return self._state

    def write(self, command: JointCommand) -> JointCommand:
        """Take new targets and gains; feed-forward effort is limited as motors do.

        Raises:
            OSError: It was asked to fail so.
        """
        if self._failing("write"):
            raise OSError("mock robot: nobody takes the command")
        effort = np.minimum(np.maximum(command.effort, -self._limit), self._limit)
        sent = JointCommand(
            position=np.array(command.position),
            velocity=np.array(command.velocity),
            effort=effort,
            kp=np.array(command.kp),
            kd=np.array(command.kd),
        )
        self._target = sent.position
        self._stiffness = np.minimum(sent.kp / self._kp, 1.0)
        return sent

    def close(self) -> None:
        """Nothing to let go of."""

    def _failing(self, kind: Failure) -> bool:
        return self._options.fail == kind and self._last - self._start >= self._options.at

    def _dropped(self) -> bool:
        return self._options.drop > 0.0 and self._random.random() < self._options.drop

    def _move(self, dt: float) -> None:
        if dt <= 0.0 or self._failing("frozen"):
            self._velocity[:] = 0.0
            return
        share = -np.expm1(-dt * self._stiffness / self._options.response)
        reach = self._speed * dt
        step = np.minimum(np.maximum(share * (self._target - self._position), -reach), reach)
        self._position = self._position + step
        self._velocity = step / dt

    def _measure(self, now: float) -> RobotState:
        position: NDArray[np.float64] = np.array(self._position)
        quat = np.array([1.0, 0.0, 0.0, 0.0])
        if self._failing("nan"):
            position[0] = math.nan
        if self._failing("jump"):
            position[0] += 2.0 * math.pi
        if self._failing("tilt"):
            quat = np.array([math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0])
        return RobotState(
            time=now - self._start,
            base_quat=quat,
            base_ang_vel_b=np.zeros(3),
            base_lin_vel_b=np.zeros(3),
            joint_pos=position,
            joint_vel=np.array(self._velocity),
        )


@takes(OPTIONS)
def make(policy: Policy, options: Mapping[str, str]) -> MockRobot:
    """The driver ``mock``.

    Args:
        policy: The policy that will run.
        options: See `OPTIONS`.

    Raises:
        BadInput: An option does not exist or has a bad value; the message lists what exists.
    """
    values: dict[str, Any] = dict(read_options("mock robot", OPTIONS, options))
    return MockRobot(policy.contract, MockOptions(**values))
