"""The driver `sim` follows the wall clock, here a clock of the test's own."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest

from robot_runtime.control.clock import Tick
from robot_runtime.control.loop import ControlLoop
from robot_runtime.control.modes import Mode
from robot_runtime.control.record import MemoryRecorder
from robot_runtime.control.safety import limp_command
from robot_runtime.drivers import load_driver
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.file import PolicyFile, open_policy
from sim2sim.driver import RELEASE_AFTER, Gantry, RealTimeRobot, make
from sim2sim.model import build_model, find_model
from sim2sim.mujoco_robot import MujocoRobot
from sim2sim.placement import place
from tests.helpers.tiny_robot import tiny_xml
from tests.sim2sim.conftest import hold_command


class WallClock:
    """Wall time that passes when the loop waits."""

    def __init__(self, period: float) -> None:
        self.period, self.time = period, 100.0

    def now(self) -> float:
        return self.time

    def start(self) -> None: ...

    def wait(self) -> Tick:
        self.time += self.period
        return Tick(lateness=0.0, skipped=0, overrun=False)


@pytest.fixture(scope="module")
def policy(still_policy: Path) -> PolicyFile:
    return open_policy(still_policy)


def _robot(policy: PolicyFile, clock: WallClock) -> RealTimeRobot:
    robot = MujocoRobot(build_model(policy.contract, find_model(policy.contract, None)))
    place(robot, None)
    return RealTimeRobot(robot, None, clock.now)


def test_it_is_the_driver_sim(policy: PolicyFile) -> None:
    assert load_driver("sim") is make
    assert make(policy, {}).joint_names == policy.contract.joint_names


@pytest.mark.parametrize(
    ("options", "error", "culprit"),
    [
        ({"speed": "2"}, BadInput, "'speed'; known: model, physics_dt, gantry"),
        ({"gantry": "yes"}, BadInput, "'yes'"),
        ({"physics_dt": "slow"}, BadInput, "'slow' is not a number"),
        ({"physics_dt": "0.003"}, BadInput, "does not divide"),
        ({"model": "gone.xml"}, BadInput, "gone.xml"),
        ({"model": "{tiny}"}, Refused, "'trunk'"),
    ],
)
def test_bad_options_are_refused(
    policy: PolicyFile,
    tmp_path: Path,
    options: dict[str, str],
    error: type[Exception],
    culprit: str,
) -> None:
    tiny = tmp_path / "tiny.xml"
    tiny.write_text(tiny_xml())
    filled = {name: value.format(tiny=tiny) for name, value in options.items()}
    with pytest.raises(error, match=culprit):
        make(policy, filled)


def test_nothing_moves_before_the_first_command(policy: PolicyFile) -> None:
    clock = WallClock(0.02)
    robot = _robot(policy, clock)
    before = robot.read()
    clock.time += 5.0
    after = robot.read()
    assert after.time == before.time == 0.0
    np.testing.assert_array_equal(after.joint_pos, before.joint_pos)


def test_simulated_time_follows_the_wall(policy: PolicyFile) -> None:
    clock = WallClock(0.02)
    robot = _robot(policy, clock)
    robot.read()
    robot.write(hold_command(robot.robot))
    for passed, simulated in ((0.020, 0.020), (0.004, 0.020), (0.004, 0.025), (0.033, 0.060)):
        clock.time += passed
        assert robot.read().time == pytest.approx(simulated, abs=1e-9)


def test_a_slow_computer_makes_the_simulation_late_and_says_so_once(
    policy: PolicyFile, caplog: pytest.LogCaptureFixture
) -> None:
    clock = WallClock(0.02)
    robot = _robot(policy, clock)
    robot.write(hold_command(robot.robot))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            clock.time += 3.0
            robot.read()
    assert robot.read().time == pytest.approx(0.2)
    clock.time += 0.02
    assert robot.read().time == pytest.approx(0.22)
    assert len(caplog.records) == 1
    assert "late" in caplog.text


@pytest.mark.parametrize("gantry", ["on", "off"])
def test_a_run_stands_up_and_ends_in_damping(policy: PolicyFile, gantry: str) -> None:
    robot, clock = make(policy, {"gantry": gantry}), WallClock(0.02)
    robot._now = clock.now  # the driver's clock is the wall's
    recorder = MemoryRecorder(policy.contract)
    summary = ControlLoop(policy, robot, clock, recorder=recorder).run(1.0)
    assert summary.ended == "done"
    assert summary.faults == {}
    rows = recorder.rows
    modes = [Mode(int(mode)) for mode in rows["mode"]]
    assert list(dict.fromkeys(modes)) == [Mode.PASSIVE, Mode.STAND, Mode.POLICY, Mode.DAMPING]
    policing = rows[rows["mode"] == Mode.POLICY]
    assert len(policing) == 50
    assert np.abs(policing["base_lin_vel_b"][-1]).max() < 0.1
    default = policy.contract.joint_array("default_pos")
    assert np.abs(policing["joint_pos"][-1] - default).max() < 0.2
    # The gantry holds the base until the joints are stiff; without it the robot sinks first.
    standing = rows[rows["mode"] == Mode.STAND]
    fastest = np.abs(standing["base_lin_vel_b"][:25]).max()
    assert fastest == 0.0 if gantry == "on" else fastest > 0.05
    # In damping it sinks to the floor.
    assert robot.robot.data.qpos[2] < 0.25


@pytest.mark.parametrize(
    ("kp", "kd", "effort"), [(1.0, 1.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 2.0)]
)
def test_the_gantry_lets_go_of_every_kind_of_policy(
    policy: PolicyFile, kp: float, kd: float, effort: float
) -> None:
    """Also of one that commands efforts alone, whose joints never have any stiffness."""
    joints = tuple(
        dataclasses.replace(j, kp=kp * j.kp, kd=kd * j.kd) for j in policy.contract.joints
    )
    contract = dataclasses.replace(policy.contract, joints=joints)
    robot = MujocoRobot(build_model(contract, find_model(contract, None)))
    place(robot, None)
    gantry, height = Gantry(robot), robot.data.qpos[2]
    driven = dataclasses.replace(hold_command(robot), effort=np.full(12, effort))
    limp = limp_command(contract)
    for command, let_go in ((limp, False), (driven, True)):
        robot.write(command)
        for _ in range(2 + round(RELEASE_AFTER / 0.02)):
            gantry.feel(command)
            robot.advance(contract.decimation)
        assert (robot.data.qpos[2] != height) == let_go
