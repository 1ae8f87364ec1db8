"""The mock robot follows its commands like the lag it claims to be, and fails on request."""

import dataclasses
import math

import numpy as np
import pytest

from robot_runtime.control.loop import ControlLoop
from robot_runtime.control.safety import damping_command
from robot_runtime.drivers import driver_names, load_driver
from robot_runtime.drivers.mock import MockOptions, MockRobot, make
from robot_runtime.errors import BadInput
from robot_runtime.policy.state import JointCommand
from tests.helpers.contracts import quadruped_contract
from tests.helpers.loops import FakeTime, Policy

CONTRACT = quadruped_contract()


def stiff(position: float) -> JointCommand:
    zero = np.zeros(12)
    return JointCommand(
        position=np.full(12, position),
        velocity=zero,
        effort=zero,
        kp=CONTRACT.joint_array("kp"),
        kd=CONTRACT.joint_array("kd"),
    )


def robot(**options: object) -> tuple[MockRobot, FakeTime]:
    time = FakeTime()
    return MockRobot(CONTRACT, MockOptions(**options), now=time.now), time  # pyright: ignore


def test_a_stiff_joint_covers_63_percent_in_its_response_time() -> None:
    mock, time = robot(response=0.1)
    begin = mock.read().joint_pos
    mock.write(stiff(1.0))
    time.time += 0.1
    state = mock.read()
    np.testing.assert_allclose((state.joint_pos - begin) / (1.0 - begin), 1 - 1 / math.e, rtol=1e-9)
    np.testing.assert_allclose(state.joint_vel, (state.joint_pos - begin) / 0.1, rtol=1e-9)
    time.time += 5.0
    np.testing.assert_allclose(mock.read().joint_pos, 1.0, atol=1e-9)


def test_no_joint_is_faster_than_its_limit() -> None:
    mock, time = robot(response=0.001)
    mock.read()
    mock.write(stiff(4.0))
    time.time += 0.01
    assert np.abs(mock.read().joint_vel).max() == pytest.approx(30.0)


def test_a_damped_joint_stays_where_it_is() -> None:
    mock, time = robot(offset=0.3)
    begin = mock.read().joint_pos
    np.testing.assert_allclose(begin, CONTRACT.joint_array("default_pos") + 0.3)
    mock.write(damping_command(CONTRACT))
    time.time += 1.0
    np.testing.assert_array_equal(mock.read().joint_pos, begin)


def test_what_was_sent_is_within_the_motors_limits_and_the_callers_arrays_are_not_kept() -> None:
    mock, time = robot()
    mock.read()
    command = dataclasses.replace(stiff(1.0), effort=np.full(12, -1000.0))
    sent = mock.write(command)
    np.testing.assert_array_equal(sent.effort, -CONTRACT.joint_array("effort_limit"))
    command.position[:] = -1.0
    time.time += 10.0
    np.testing.assert_allclose(mock.read().joint_pos, 1.0, atol=1e-9)


@pytest.mark.parametrize(
    ("fail", "cause"),
    [
        ("stale", "STATE_LOST"),
        ("nan", "STATE_NONFINITE: joint_pos of FL_hip_joint is nan"),
        ("tilt", "TILT: base leans 1.57 rad"),
        ("jump", "JOINT_POSITION: FL_hip_joint at"),
        ("read", "READ_FAILED: OSError"),
        ("write", "WRITE_FAILED: OSError"),
        ("frozen", "EFFORT: blocked: FL_hip_joint, FL_thigh_joint"),
    ],
)
def test_every_failure_is_noticed_and_damped(fail: str, cause: str) -> None:
    # An action of 8 asks the hips for 2 rad: frozen joints are asked for more than they have.
    policy = Policy(CONTRACT, lambda _: np.full(12, 8.0))
    mock, time = robot(fail=fail, at=1.2)
    loop = ControlLoop(policy, mock, time.clock())
    summary = loop.run(5.0)
    assert summary.cause.startswith(cause)
    assert summary.ended == "fault"


def test_dropped_packets_are_survived() -> None:
    mock, time = robot(drop=0.3)
    summary = ControlLoop(Policy(CONTRACT), mock, time.clock()).run(10.0)
    assert summary.ended == "done"
    assert summary.faults["STATE_STALE"] > 10


def test_options_by_name() -> None:
    policy = Policy(CONTRACT)
    mock = make(policy, {"fail": "nan", "at": "3", "offset": "-0.5"})
    np.testing.assert_allclose(mock.read().joint_pos, CONTRACT.joint_array("default_pos") - 0.5)
    for options, message in (
        ({"fial": "nan"}, "no option 'fial'; known: fail, at, drop, offset, response"),
        ({"fail": "explode"}, "'explode' is not one of none, stale, nan"),
        ({"at": "soon"}, "at = 'soon' is not a number"),
        ({"drop": "1"}, "drop = 1.0 is not in"),
        ({"response": "nan"}, "response = nan s"),
    ):
        with pytest.raises(BadInput, match=message):
            make(policy, options)


def test_drivers_are_found_by_name() -> None:
    assert "mock" in driver_names()
    assert load_driver("mock") is make
    with pytest.raises(BadInput, match=r"called 'go7'; there are: .*mock"):
        load_driver("go7")
