"""Each wrapper makes the robot worse in its one way and in no other."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from robot_runtime.policy.state import JointCommand, RobotState
from sim2sim.wrappers import Latency, NoiseLevels, PacketLoss, SensorNoise


class FakeRobot:
    """Counts reads in the state's time, and keeps what was written."""

    joint_names = ("a", "b")
    measures = frozenset({"base_lin_vel_b"})

    def __init__(self) -> None:
        self.reads = 0
        self.written: list[JointCommand] = []
        self.closed = False

    def read(self) -> RobotState:
        self.reads += 1
        return RobotState(
            time=float(self.reads),
            base_quat=np.array([1.0, 0.0, 0.0, 0.0]),
            base_ang_vel_b=np.zeros(3),
            base_lin_vel_b=np.zeros(3),
            joint_pos=np.zeros(2),
            joint_vel=np.zeros(2),
        )

    def write(self, command: JointCommand) -> JointCommand:
        self.written.append(command)
        return command

    def close(self) -> None:
        self.closed = True


def _command(value: float) -> JointCommand:
    array = np.full(2, value)
    return JointCommand(
        position=array.copy(), velocity=array.copy(), effort=array.copy(), kp=array, kd=array.copy()
    )


def _positions(robot: FakeRobot) -> list[float]:
    return [float(command.position[0]) for command in robot.written]


def test_latency_delivers_in_order_when_due() -> None:
    robot, now = FakeRobot(), 0.0
    late = Latency(robot, 0.012, lambda: now)
    arrived: list[list[float]] = []
    for step in range(6):
        now = 0.005 * step
        if step % 2 == 0:
            command = _command(float(step))
            late.write(command)
            command.position[:] = -1.0  # the caller may change it afterwards
        late.deliver()
        arrived.append(_positions(robot))
    # Sent at 0, 10 and 20 ms; due at 12, 22 and 32 ms; looked at every 5 ms.
    assert arrived == [[], [], [], [0.0], [0.0], [0.0, 2.0]]


def test_no_latency_is_no_delay() -> None:
    robot = FakeRobot()
    late = Latency(robot, 0.0, lambda: 1.0)
    late.write(_command(3.0))
    late.deliver()
    assert _positions(robot) == [3.0]


def test_noise_stays_within_its_levels_and_fills_them() -> None:
    levels = NoiseLevels(attitude=0.02, ang_vel=0.1, lin_vel=0.3, joint_pos=0.01, joint_vel=0.5)
    noisy = SensorNoise(FakeRobot(), levels, np.random.default_rng(0))
    states = [noisy.read() for _ in range(500)]
    for field, level in (
        ("base_ang_vel_b", 0.1),
        ("base_lin_vel_b", 0.3),
        ("joint_pos", 0.01),
        ("joint_vel", 0.5),
    ):
        values = np.stack([getattr(state, field) for state in states])
        assert 0.95 * level < np.abs(values).max() <= level
        assert np.abs(values.mean(axis=0)).max() < 0.1 * level
        assert (np.ptp(values, axis=1) > 0.0).all(), "every axis has its own draw"
    quats = np.stack([state.base_quat for state in states])
    np.testing.assert_allclose(np.linalg.norm(quats, axis=1), 1.0, atol=1e-12)
    angles = 2.0 * np.arccos(np.minimum(1.0, quats[:, 0]))
    assert 0.01 < angles.max() <= math.sqrt(3.0) * 0.02
    assert [state.time for state in states[:3]] == [1.0, 2.0, 3.0]


def test_noise_keeps_what_is_not_measured_missing() -> None:
    class Blind(FakeRobot):
        def read(self) -> RobotState:
            return dataclasses.replace(super().read(), base_lin_vel_b=None)

    noisy = SensorNoise(Blind(), NoiseLevels(), np.random.default_rng(0))
    assert noisy.read().base_lin_vel_b is None


def test_lost_packets_leave_the_state_before_and_are_never_sent() -> None:
    robot = FakeRobot()
    lossy = PacketLoss(robot, 0.3, np.random.default_rng(1))
    times = [lossy.read().time for _ in range(1000)]
    assert times[0] == 1.0, "the first state comes through"
    repeated = sum(a == b for a, b in itertools.pairwise(times))
    assert times == sorted(times)
    assert 250 < repeated < 350
    for i in range(1000):
        assert lossy.write(_command(float(i))).position[0] == float(i)
    assert 650 < len(robot.written) < 750


def test_wrappers_pass_the_rest_on() -> None:
    robot = FakeRobot()
    rng = np.random.default_rng(0)
    outer = SensorNoise(PacketLoss(robot, 0.0, rng), NoiseLevels(), rng)
    assert outer.joint_names == ("a", "b")
    assert outer.measures == {"base_lin_vel_b"}
    assert outer.read().time == 1.0
    outer.close()
    assert robot.closed
