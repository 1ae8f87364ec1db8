"""A control loop without a robot and without waiting: fake time, a robot in Python, a policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.clock import MonotonicClock
from robot_runtime.control.loop import ControlLoop
from robot_runtime.control.loop import Policy as AnyPolicy
from robot_runtime.control.record import MemoryRecorder
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointCommand, RobotState
from tests.helpers.contracts import quadruped_contract


class FakeTime:
    """Time that passes only where it is told to."""

    def __init__(self) -> None:
        self.time = 100.0
        self.oversleep: Callable[[], float] = lambda: 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, duration: float) -> None:
        assert duration > 0.0
        self.time += duration + self.oversleep()

    def clock(self, period: float = 0.02) -> MonotonicClock:
        return MonotonicClock(period, now=self.now, sleep=self.sleep)


class Network:
    """Gives an action that a function of the observation decides."""

    def __init__(self, function: Callable[[NDArray[np.float32]], Any]) -> None:
        self.function = function
        self.resets = 0

    def __call__(self, obs: NDArray[np.float32], /) -> NDArray[np.float32]:
        return np.asarray(self.function(obs), dtype=np.float32)

    def reset(self) -> None:
        self.resets += 1


class Policy:
    """A policy in Python."""

    def __init__(
        self,
        contract: PolicyContract | None = None,
        function: Callable[[NDArray[np.float32]], Any] | None = None,
    ) -> None:
        self._contract = contract or quadruped_contract()
        count = self._contract.num_actions
        self._network = Network(function or (lambda _: np.zeros(count)))

    @property
    def contract(self) -> PolicyContract:
        return self._contract

    def network(self) -> Network:
        return self._network


class FakeRobot:
    """Stands where it was put and remembers what it was sent; `follow` makes it go there at once.

    `change` may return another state than the measured one, given the number of the read.
    """

    def __init__(self, contract: PolicyContract, time: FakeTime, offset: float = 0.0) -> None:
        self.joint_names = contract.joint_names
        self.measures = frozenset({"base_lin_vel_b"})
        self.time = time
        self.joint_pos = contract.joint_array("default_pos") + offset
        self.sent: list[JointCommand] = []
        self.reads = 0
        self.closed = 0
        self.follow = False
        self.change: Callable[[int, RobotState], RobotState] = lambda _, state: state

    def read(self) -> RobotState:
        state = RobotState(
            time=self.time.now(),
            base_quat=np.array([1.0, 0.0, 0.0, 0.0]),
            base_ang_vel_b=np.zeros(3),
            base_lin_vel_b=np.zeros(3),
            joint_pos=np.array(self.joint_pos),
            joint_vel=np.zeros(len(self.joint_pos)),
        )
        self.reads += 1
        return self.change(self.reads - 1, state)

    def write(self, command: JointCommand) -> JointCommand:
        copy = JointCommand(
            **{f.name: np.array(getattr(command, f.name)) for f in dataclasses.fields(command)}
        )
        self.sent.append(copy)
        if self.follow and copy.kp.any():
            self.joint_pos = copy.position
        return command

    def close(self) -> None:
        self.closed += 1


class Bench:
    """A loop with everything around it in reach."""

    def __init__(
        self, policy: AnyPolicy | None = None, *, offset: float = 0.0, **arguments: Any
    ) -> None:
        self.time = FakeTime()
        self.policy = policy or Policy()
        self.contract = self.policy.contract
        self.robot = FakeRobot(self.contract, self.time, offset)
        self.memory = MemoryRecorder(self.contract)
        self.clock = self.time.clock(self.contract.timing.control_dt)
        arguments = {"recorder": self.memory, **arguments}
        self.loop = ControlLoop(self.policy, self.robot, self.clock, **arguments)

    @property
    def rows(self) -> NDArray[np.void]:
        return self.memory.rows
