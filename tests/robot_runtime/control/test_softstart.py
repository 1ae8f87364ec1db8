"""Standing up and handing over: the first target is where the robot is, and nothing jumps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from robot_runtime.control.modes import Event, Mode
from robot_runtime.control.softstart import Handover, SoftStart, StandUp
from robot_runtime.policy.spec import ActionSpec, HoldTarget
from robot_runtime.policy.state import JointCommand
from tests.helpers.contracts import joint_names, make_action, quadruped_contract
from tests.helpers.loops import Bench, Policy

DT = 0.02
SOFT = SoftStart()
# Speeds are differences of targets over 20 ms; float rounding of the sums stays below this.
ROUNDING = 1e-9


def fly(
    offset: float, function: Callable[[Any], Any] | None = None, soft: SoftStart = SOFT
) -> tuple[Bench, np.ndarray]:
    """A run of two seconds on a robot that was `offset` away from its default pose."""
    bench = Bench(Policy(function=function), offset=offset, soft_start=soft)
    bench.robot.follow = True
    summary = bench.loop.run(2.0)
    assert summary.ended == "done", summary.cause
    return bench, bench.rows


@pytest.mark.parametrize("offset", [0.6, -0.6, 0.0])
def test_the_first_target_is_the_measured_pose(offset: float) -> None:
    bench, rows = fly(offset)
    first = rows[rows["mode"] == Mode.STAND][0]
    measured = bench.contract.joint_array("default_pos") + offset
    np.testing.assert_allclose(first["sent_position"], measured, atol=1e-12)
    np.testing.assert_array_equal(first["sent_kp"], np.zeros(12))
    np.testing.assert_array_equal(first["sent_velocity"], np.zeros(12))


@pytest.mark.parametrize("offset", [0.6, -0.6, 0.05])
def test_targets_and_gains_ramp_within_their_limits(offset: float) -> None:
    bench, rows = fly(offset)
    stand = rows[rows["mode"] == Mode.STAND]
    speed = np.diff(stand["sent_position"], axis=0) / DT
    assert np.abs(speed).max() <= SOFT.stand_speed + ROUNDING
    kp = bench.contract.joint_array("kp")
    growth = np.diff(stand["sent_kp"], axis=0) / DT
    assert growth.min() >= 0.0
    assert (growth <= kp / SOFT.gain_time + 1e-6).all()
    # It arrives: at the default pose, at full gains, and rests there before the policy comes.
    pose = bench.contract.joint_array("default_pos")
    np.testing.assert_allclose(stand["sent_position"][-1], pose, atol=1e-12)
    np.testing.assert_array_equal(stand["sent_kp"][-1], kp)
    still = int(SOFT.settle_time / DT) - 1
    np.testing.assert_array_equal(
        stand["sent_position"][-still:], np.tile(stand["sent_position"][-1], (still, 1))
    )


def test_the_farthest_joint_decides_how_long_standing_up_takes() -> None:
    _, rows = fly(1.2)
    stand = rows[rows["mode"] == Mode.STAND]
    # A cubic's peak speed is 1.5 times its mean: 1.2 rad at 1 rad/s take 1.8 s, and half a second
    # of rest; one tick more because the last one asks for the policy.
    assert len(stand) == pytest.approx((1.8 + 0.5) / DT, abs=1.01)


@pytest.mark.parametrize("action", [2.4, -2.4, 8.0])
def test_the_policy_takes_over_without_a_jump(action: float) -> None:
    # 2.4 times the scale of 0.25 is a target 0.6 rad from where the robot stands.
    bench, rows = fly(0.0, lambda _: np.full(12, action))
    policy = rows[rows["mode"] == Mode.POLICY]
    before = rows[rows["mode"] == Mode.STAND][-1]
    np.testing.assert_array_equal(policy["sent_position"][0], before["sent_position"])
    targets = np.vstack([before["sent_position"], policy["sent_position"]])
    speed = np.diff(targets, axis=0) / DT
    assert np.abs(speed).max() <= SOFT.blend_speed + ROUNDING
    # The gains neither drop nor jump, and in the end the policy has all it asks for.
    np.testing.assert_array_equal(policy["sent_kp"], np.tile(before["sent_kp"], (len(policy), 1)))
    wanted = np.float64(policy["target_position"][-1])
    limit = bench.contract.joint_array("upper"), bench.contract.joint_array("lower")
    np.testing.assert_array_equal(
        policy["sent_position"][-1], np.maximum(np.minimum(wanted, limit[0]), limit[1])
    )


def test_a_policy_that_asks_for_the_pose_is_not_held_back() -> None:
    _, rows = fly(0.0)
    policy = rows[rows["mode"] == Mode.POLICY]
    late = policy[policy["elapsed"] > SOFT.blend_time + DT]
    np.testing.assert_array_equal(late["sent_position"], np.float64(late["target_position"]))


def test_a_restless_policy_gets_each_joint_once_it_has_caught_up() -> None:
    rng = np.random.default_rng(0)
    _, rows = fly(0.0, lambda _: rng.normal(size=12) * 1.5)
    policy = rows[rows["mode"] == Mode.POLICY]
    # Targets of this policy move much faster than the blend may; still no joint is held for long.
    late = policy[policy["elapsed"] > 1.0]
    np.testing.assert_array_equal(late["sent_position"], np.float64(late["target_position"]))
    early = policy[policy["elapsed"] < SOFT.blend_time]
    assert np.abs(np.diff(early["sent_position"], axis=0)).max() <= SOFT.blend_speed * DT + ROUNDING


def test_no_blend_is_at_once() -> None:
    _, rows = fly(0.0, lambda _: np.full(12, 2.0), SoftStart(blend_time=0.0))
    policy = rows[rows["mode"] == Mode.POLICY]
    np.testing.assert_array_equal(policy["sent_position"], np.float64(policy["target_position"]))


def test_a_simulation_may_begin_in_policy_mode_without_a_blend() -> None:
    bench = Bench(Policy(function=lambda _: np.full(12, 2.0)), initial=Mode.POLICY)
    bench.loop.step()
    row = bench.rows[0]
    assert (row["mode"], row["step"], row["elapsed"]) == (Mode.POLICY, 2, 0.0)
    np.testing.assert_array_equal(row["sent_position"], np.float64(row["target_position"]))
    np.testing.assert_array_equal(row["sent_kp"], bench.contract.joint_array("kp"))


def test_back_from_the_policy_to_the_stand_starts_at_the_last_target() -> None:
    bench = Bench(Policy(function=lambda _: np.full(12, 2.0)), initial=Mode.POLICY)
    for _ in range(5):
        bench.loop.step()
    bench.loop.request(Event.STAND)
    for _ in range(80):
        bench.loop.step()
    rows = bench.rows
    np.testing.assert_array_equal(rows["sent_position"][5], rows["sent_position"][4])
    np.testing.assert_array_equal(rows["sent_kp"], np.tile(rows["sent_kp"][0], (len(rows), 1)))
    speed = np.abs(np.diff(rows["sent_position"][4:], axis=0)) / DT
    assert speed.max() <= SOFT.stand_speed + ROUNDING
    pose = bench.contract.joint_array("default_pos")
    np.testing.assert_allclose(rows["sent_position"][-1], pose, atol=1e-12)


def test_held_joints_stand_where_they_are_held() -> None:
    names = joint_names()
    contract = quadruped_contract(
        action=ActionSpec(
            terms=(make_action("legs", names[:11]),),
            hold=(HoldTarget(joint=names[11], position=-1.1),),
            filter=1.0,
        )
    )
    expected = contract.joint_array("default_pos")
    expected[11] = -1.1
    np.testing.assert_array_equal(StandUp(contract, SOFT).pose, expected)


def test_a_handover_blends_gains_and_speeds_too() -> None:
    def command(value: float) -> JointCommand:
        full = np.full(12, value)
        return JointCommand(position=full, velocity=full, effort=full, kp=full, kd=full)

    handover = Handover(SoftStart(blend_time=0.2, blend_speed=1e3), DT)
    handover.begin(1.0, command(0.0))
    sent = [handover.apply(command(1.0), 1.0 + DT * i) for i in range(12)]
    for field in ("position", "velocity", "effort", "kp", "kd"):
        values = np.array([getattr(s, field)[0] for s in sent])
        # Half way after half the time, all the way after all of it, never back.
        np.testing.assert_allclose(values[[0, 5, 10, 11]], [0.0, 0.5, 1.0, 1.0], atol=1e-9)
        assert (np.diff(values) >= 0.0).all()


@pytest.mark.parametrize(
    "changes",
    [{"stand_speed": 0.0}, {"gain_time": -1.0}, {"blend_speed": 0.0}, {"blend_time": -0.1}],
)
def test_speeds_and_times_that_make_no_sense(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        SoftStart(**changes)
