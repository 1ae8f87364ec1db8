"""Every guard on both sides of its line, with the fault it must name."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from robot_runtime.control.faults import DAMP_FAULTS, REACTIONS, Fault, Reaction
from robot_runtime.control.safety import (
    Guards,
    SafetyLimits,
    Watchdog,
    damping_command,
    limp_command,
)
from robot_runtime.policy.state import JointCommand, RobotState
from tests.helpers.contracts import joint_names, make_joint, quadruped_contract

LIMITS = SafetyLimits()
CONTRACT = quadruped_contract(
    joints=tuple(make_joint(name, lower=-2.0, upper=2.0) for name in joint_names())
)
GUARDS = Guards(CONTRACT, LIMITS)


def state(**changes: Any) -> RobotState:
    """A robot that stands still and upright in its default pose."""
    fields: dict[str, Any] = {
        "time": 1.0,
        "base_quat": np.array([1.0, 0.0, 0.0, 0.0]),
        "base_ang_vel_b": np.zeros(3),
        "base_lin_vel_b": np.zeros(3),
        "joint_pos": CONTRACT.joint_array("default_pos"),
        "joint_vel": np.zeros(12),
    }
    return RobotState(**{**fields, **changes})


def command(**changes: Any) -> JointCommand:
    """The default pose at full gains."""
    fields: dict[str, Any] = {
        "position": CONTRACT.joint_array("default_pos"),
        "velocity": np.zeros(12),
        "effort": np.zeros(12),
        "kp": CONTRACT.joint_array("kp"),
        "kd": CONTRACT.joint_array("kd"),
    }
    return JointCommand(**{**fields, **changes})


def with_one(values: np.ndarray, index: int, value: float) -> np.ndarray:
    changed = np.array(values, dtype=np.float64)
    changed[index] = value
    return changed


def leaning(angle: float, axis: tuple[float, float, float]) -> np.ndarray:
    direction = np.array(axis) / np.linalg.norm(axis)
    return np.concatenate([[math.cos(angle / 2)], math.sin(angle / 2) * direction])


def watchdog() -> Watchdog:
    return Watchdog(GUARDS, LIMITS, 0.02, 12)


def test_every_fault_has_exactly_one_reaction() -> None:
    assert set(REACTIONS) == set(Fault)
    # Loss of state, control or policy damps; what the table lets pass is listed here on purpose.
    assert {fault for fault, reaction in REACTIONS.items() if reaction is not Reaction.DAMP} == {
        Fault.STATE_STALE,
        Fault.TARGET_LIMITED,
        Fault.OPERATOR_SILENT,
        Fault.OPERATOR_INVALID,
        Fault.OVERRUN,
        Fault.RECORDER_FAILED,
    }
    assert not DAMP_FAULTS & Fault.TARGET_LIMITED
    # One bit each, so that a log's word can be taken apart.
    assert all(fault.value.bit_count() == 1 for fault in Fault)


def test_a_good_state_has_no_fault() -> None:
    assert GUARDS.check_state(state()) == Fault(0)
    assert GUARDS.check_state(state(base_lin_vel_b=None)) == Fault(0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "field", ["base_quat", "base_ang_vel_b", "base_lin_vel_b", "joint_pos", "joint_vel"]
)
def test_a_number_that_is_none(field: str, bad: float) -> None:
    values = getattr(state(), field)
    for i in range(len(values)):
        broken = state(**{field: with_one(values, i, bad)})
        assert GUARDS.check_state(broken) == Fault.STATE_NONFINITE
        assert field in GUARDS.describe(Fault.STATE_NONFINITE, broken, None)


def test_infinities_of_both_signs_do_not_cancel() -> None:
    broken = state(joint_pos=with_one(with_one(np.zeros(12), 0, math.inf), 1, -math.inf))
    assert GUARDS.check_state(broken) == Fault.STATE_NONFINITE


def test_a_time_that_is_none() -> None:
    assert GUARDS.check_state(state(time=math.nan)) == Fault.STATE_NONFINITE


@pytest.mark.parametrize("axis", [(1, 0, 0), (0, 1, 0), (-1, 2, 0)])
def test_tilt_on_both_sides_of_its_limit(axis: tuple[float, float, float]) -> None:
    assert GUARDS.check_state(state(base_quat=leaning(LIMITS.tilt - 0.01, axis))) == Fault(0)
    fallen = state(base_quat=leaning(LIMITS.tilt + 0.01, axis))
    assert GUARDS.check_state(fallen) == Fault.TILT
    assert "1.01 rad" in GUARDS.describe(Fault.TILT, fallen, None)
    # The angle is that of the rotation, whatever the length of the quaternion.
    longer = state(base_quat=1.04 * fallen.base_quat)
    assert GUARDS.check_state(longer) == Fault.TILT
    assert "1.01 rad" in GUARDS.describe(Fault.TILT, longer, None)
    assert GUARDS.check_state(state(base_quat=leaning(math.pi, axis))) == Fault.TILT


def test_turning_around_the_vertical_is_no_tilt() -> None:
    assert GUARDS.check_state(state(base_quat=leaning(3.0, (0, 0, 1)))) == Fault(0)


@pytest.mark.parametrize("quat", [(0, 0, 0, 0), (0.5, 0, 0, 0), (2, 0, 0, 0)])
def test_a_quaternion_that_is_no_rotation(quat: tuple[float, ...]) -> None:
    broken = state(base_quat=np.array(quat, dtype=np.float64))
    assert GUARDS.check_state(broken) == Fault.ATTITUDE_INVALID


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_joint_position_beyond_its_stop(side: float) -> None:
    pose = CONTRACT.joint_array("default_pos")
    inside = side * (2.0 + LIMITS.position_margin - 1e-6)
    beyond = side * (2.0 + LIMITS.position_margin + 1e-6)
    assert GUARDS.check_state(state(joint_pos=with_one(pose, 4, inside))) == Fault(0)
    broken = state(joint_pos=with_one(pose, 4, beyond))
    assert GUARDS.check_state(broken) == Fault.JOINT_POSITION
    assert "FR_thigh_joint at" in GUARDS.describe(Fault.JOINT_POSITION, broken, None)


def test_joints_without_limits_are_never_beyond_them() -> None:
    free = quadruped_contract(
        joints=tuple(
            make_joint(n, lower=None, upper=None, velocity_limit=None, effort_limit=None)
            for n in joint_names()
        )
    )
    guards = Guards(free, LIMITS)
    wild = state(joint_pos=np.full(12, 1e6), joint_vel=np.full(12, 1e6))
    assert guards.check_state(wild) == Fault(0)
    assert not guards.too_fast(wild).any()
    assert not guards.overloaded(wild, command()).any()
    asked = command(position=np.full(12, -1e6))
    assert guards.limit(asked) == (asked, Fault(0))


@pytest.mark.parametrize("field", ["joint_pos", "joint_vel"])
def test_vectors_of_another_length_raise(field: str) -> None:
    with pytest.raises(ValueError, match="12 joints"):
        GUARDS.check_state(state(**{field: np.zeros(1)}))


def test_targets_inside_their_limits_pass_as_they_are() -> None:
    asked = command(position=np.full(12, 2.0), velocity=np.full(12, -30.0))
    assert GUARDS.limit(asked)[0] is asked


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("position", 2.5, 2.0),
        ("position", -7.0, -2.0),
        ("velocity", 31.0, 30.0),
        ("velocity", -99.0, -30.0),
        ("effort", 24.0, 23.7),
        ("effort", -1e9, -23.7),
    ],
)
def test_targets_are_moved_to_their_limits(field: str, value: float, limit: float) -> None:
    asked = command()
    asked = dataclasses.replace(asked, **{field: with_one(getattr(asked, field), 3, value)})
    limited, fault = GUARDS.limit(asked)
    assert fault == Fault.TARGET_LIMITED
    for other in dataclasses.fields(JointCommand):
        expected = np.array(getattr(asked, other.name))
        if other.name == field:
            expected[3] = limit
        np.testing.assert_array_equal(getattr(limited, other.name), expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["position", "velocity", "effort", "kp", "kd"])
def test_a_target_that_is_none(field: str, bad: float) -> None:
    asked = command()
    asked = dataclasses.replace(asked, **{field: with_one(getattr(asked, field), 11, bad)})
    assert GUARDS.limit(asked)[1] == Fault.TARGET_NONFINITE


def test_state_that_stands_still_is_held_and_then_lost() -> None:
    dog = watchdog()
    seen = [dog.state(state(time=5.0), 0.02 * tick) for tick in range(8)]
    # New at tick 0; one period old is the jitter of two clocks; held until five periods.
    stale, lost = Fault.STATE_STALE, Fault.STATE_LOST
    assert seen == [Fault(0), Fault(0), stale, stale, stale, stale, lost, lost]


def test_state_that_comes_back_is_no_longer_stale() -> None:
    dog = watchdog()
    for tick in range(4):
        dog.state(state(time=5.0), 0.02 * tick)
    assert dog.state(state(time=5.06), 0.08) == Fault(0)
    assert dog.state(state(time=5.06), 0.10) == Fault(0)


def test_time_that_runs_backwards() -> None:
    dog = watchdog()
    dog.state(state(time=5.0), 0.0)
    assert dog.state(state(time=4.9), 0.02) == Fault.TIME_BACKWARDS


def test_a_joint_may_be_too_fast_for_an_impact() -> None:
    dog = watchdog()
    fast, calm = np.full(12, 0.0), np.zeros(12)
    fast[7] = 31.0
    velocities = [fast, fast, calm, fast, fast, -fast]
    seen = [
        dog.state(state(time=0.02 * i, joint_vel=velocity), 0.02 * i)
        for i, velocity in enumerate(velocities)
    ]
    assert seen == [Fault(0)] * 5 + [Fault.JOINT_VELOCITY]


def test_two_joints_in_turn_are_no_joint_that_is_too_fast() -> None:
    dog = watchdog()
    for i in range(9):
        velocity = with_one(np.zeros(12), i % 2, 31.0)
        assert dog.state(state(time=0.02 * i, joint_vel=velocity), 0.02 * i) == Fault(0)


def test_a_blocked_joint_is_noticed_after_a_second() -> None:
    dog = watchdog()
    # 25 Nm/rad times 1 rad is more than the 23.7 Nm of the motor; 0.9 rad is less.
    pushing = command(position=with_one(CONTRACT.joint_array("default_pos"), 0, 1.0))
    resting = command(position=with_one(CONTRACT.joint_array("default_pos"), 0, 0.9))
    first = [dog.command(state(), pushing) for _ in range(49)]
    assert first == [Fault(0)] * 49
    assert dog.command(state(), resting) == Fault(0)
    second = [dog.command(state(), pushing) for _ in range(50)]
    assert second == [Fault(0)] * 49 + [Fault.EFFORT]
    assert GUARDS.describe(Fault.EFFORT, state(), pushing) == "blocked: FL_hip_joint"


def test_damping_counts_as_effort_too() -> None:
    # kd 0.5 times 30 rad/s is 15 Nm; with 12.5 Nm from half a radian it is more than 23.7 Nm.
    moving = state(joint_vel=np.full(12, -30.0))
    pose = CONTRACT.joint_array("default_pos")
    assert GUARDS.overloaded(moving, command(position=pose + 0.5))[0]
    assert not GUARDS.overloaded(moving, command(position=pose - 0.5))[0]
    assert GUARDS.overloaded(state(), command(effort=np.full(12, 24.0)))[0]


def test_a_stalled_loop() -> None:
    dog = watchdog()
    assert [dog.tick(t) for t in (0.0, 0.02, 0.5, 1.01)] == [
        Fault(0),
        Fault(0),
        Fault(0),
        Fault.LOOP_STALLED,
    ]
    dog.reset()
    assert dog.tick(100.0) == Fault(0)


def test_damping_keeps_the_dampers_and_nothing_else() -> None:
    damping, limp = damping_command(CONTRACT), limp_command(CONTRACT)
    for sent in (damping, limp):
        for field in ("velocity", "effort", "kp"):
            np.testing.assert_array_equal(getattr(sent, field), np.zeros(12))
    np.testing.assert_array_equal(damping.kd, CONTRACT.joint_array("kd"))
    np.testing.assert_array_equal(limp.kd, np.zeros(12))


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(SafetyLimits)])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_limits_that_would_switch_a_guard_off(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        SafetyLimits(**{field: value})
