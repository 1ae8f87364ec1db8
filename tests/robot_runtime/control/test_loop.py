"""The loop: its order, its memory, its time, and what it refuses to start on."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from robot_runtime.control.clock import MonotonicClock
from robot_runtime.control.loop import ControlLoop
from robot_runtime.control.modes import Event, Mode
from robot_runtime.control.record import MemoryRecorder
from robot_runtime.control.teleop import Asked, Constant, Schedule
from robot_runtime.errors import Refused
from robot_runtime.policy.spec import PhaseClock
from robot_runtime.policy.state import RobotState
from tests.helpers.contracts import make_block, make_history, make_term, quadruped_contract
from tests.helpers.loops import Bench, FakeRobot, FakeTime, Policy

DT = 0.02
TERMS = ("base_ang_vel", "projected_gravity", "command", "joint_pos_rel", "joint_vel")


def clocked_contract(period: float = 0.5) -> Any:
    """A policy that sees nothing but its gait clock."""
    return quadruped_contract(
        phase=PhaseClock(
            period=period,
            offsets=(0.0,),
            start=0.0,
            stand="run",
            stand_channels=None,
            stand_norm="euclidean",
            stand_threshold=0.0,
            stand_phase=0.0,
            restart=None,
        ),
        observation=(make_block(make_term("sin", "phase_sin"), make_term("cos", "phase_cos")),),
    )


def test_the_order_of_a_tick() -> None:
    calls: list[str] = []

    class Source:
        def poll(self, now: float, elapsed: float) -> Asked:
            return Asked(values=np.zeros(3))

        def close(self) -> None:
            calls.append("close")

    class Recorder:
        def write(self, record: Any) -> None:
            calls.append("record")

    time = FakeTime()

    class Clock(MonotonicClock):
        def wait(self) -> Any:
            calls.append("wait")
            return super().wait()

    class Robot(FakeRobot):
        def read(self) -> RobotState:
            calls.append("read")
            return super().read()

        def write(self, command: Any) -> Any:
            calls.append("write")
            return super().write(command)

    def act(_: Any) -> np.ndarray:
        calls.append("act")
        return np.zeros(12)

    policy = Policy(function=act)
    loop = ControlLoop(
        policy,
        Robot(policy.contract, time),
        Clock(DT, now=time.now, sleep=time.sleep),
        source=Source(),
        recorder=Recorder(),
        initial=Mode.POLICY,
    )
    loop.step()
    loop.step()
    assert calls == ["read", "act", "write", "record", "wait"] * 2


def test_a_run_goes_through_its_modes_once() -> None:
    bench = Bench()
    summary = bench.loop.run(1.0)
    modes = bench.rows["mode"]
    changes = [Mode(int(m)) for i, m in enumerate(modes) if i == 0 or m != modes[i - 1]]
    assert changes == [Mode.PASSIVE, Mode.STAND, Mode.POLICY, Mode.DAMPING]
    assert (modes == Mode.PASSIVE).sum() == 1
    assert (modes == Mode.POLICY).sum() == 50
    assert summary.good
    assert summary.ended == "done"
    assert summary.walked == pytest.approx(1.0)
    assert summary.faults == {}
    assert summary.timing.ticks == len(modes)
    assert summary.timing.rate == pytest.approx(50.0, rel=1e-6)


@pytest.mark.parametrize("duration", [0.02, 0.1, 0.3, 1.0, 2.22])
def test_the_policy_runs_for_its_duration_to_the_tick(duration: float) -> None:
    bench = Bench(initial=Mode.POLICY)
    bench.loop.run(duration)
    assert (bench.rows["mode"] == Mode.POLICY).sum() == round(duration / DT)


def test_the_record_has_what_happened() -> None:
    command = np.array([0.3, -0.2, 0.1])
    bench = Bench(Policy(function=lambda obs: 0.1 * obs[:12]), source=Constant(command))
    bench.loop.run(0.2)
    rows = bench.rows
    np.testing.assert_array_equal(rows["tick"], np.arange(len(rows)))
    np.testing.assert_allclose(np.diff(rows["time"]), DT, atol=1e-9)
    policy = rows[rows["mode"] == Mode.POLICY]
    np.testing.assert_array_equal(policy["asked"], np.tile(command, (10, 1)))
    np.testing.assert_array_equal(policy["command"], np.tile(np.float32(command), (10, 1)))
    np.testing.assert_array_equal(
        policy["raw_action"], np.float32(0.1) * policy["observation"][:, :12]
    )
    np.testing.assert_allclose(policy["elapsed"], DT * np.arange(10), atol=1e-9)
    np.testing.assert_array_equal(policy["step"], [2] + [1] * 9)
    other = rows[rows["mode"] != Mode.POLICY]
    assert np.isnan(other["observation"]).all()
    assert np.isnan(other["raw_action"]).all()
    assert not other["step"].any()
    for row, sent in zip(rows, bench.robot.sent, strict=True):
        np.testing.assert_array_equal(row["sent_position"], sent.position)
        np.testing.assert_array_equal(row["sent_kp"], sent.kp)


def test_what_the_robot_says_was_sent_is_what_is_recorded() -> None:
    bench = Bench()
    write = bench.robot.write
    bench.robot.write = lambda command: dataclasses.replace(write(command), kp=np.full(12, 7.0))
    bench.loop.run(0.1)
    assert (bench.rows["sent_kp"] == 7.0).all()


def test_the_first_observation_after_a_reset_is_that_of_a_new_loop() -> None:
    contract = quadruped_contract(
        observation=(
            make_block(
                *(make_term(name, name) for name in TERMS),
                make_term("last_action", "last_action"),
                history=make_history(3),
            ),
        )
    )
    policy = Policy(contract, lambda obs: np.tanh(obs[:12]) + 0.5)
    bench = Bench(policy, initial=Mode.POLICY, source=Constant(np.array([0.5, 0.1, -0.2])))

    def far_away(read: int, state: RobotState) -> RobotState:
        moved = {"joint_pos": state.joint_pos + 0.3, "joint_vel": np.full(12, 2.0)}
        return dataclasses.replace(state, base_ang_vel_b=np.array([1.0, 2.0, 3.0]), **moved)

    bench.robot.change = far_away
    bench.loop.run(0.5)
    before = len(bench.rows)
    bench.robot.change = lambda read, state: state
    bench.loop.reset()
    bench.loop.step()
    fresh = Bench(policy, initial=Mode.POLICY, source=Constant(np.array([0.5, 0.1, -0.2])))
    fresh.loop.step()
    again, new = bench.rows[before], fresh.rows[0]
    np.testing.assert_array_equal(again["observation"], new["observation"])
    # By hand: all three frames are the pose of the reset, and the last action is none.
    observation = again["observation"]
    gravity = observation[9:18].reshape(3, 3)
    np.testing.assert_array_equal(gravity, np.tile([0.0, 0.0, -1.0], (3, 1)))
    np.testing.assert_array_equal(observation[:9], np.zeros(9, np.float32))
    np.testing.assert_array_equal(observation[-36:], np.zeros(36, np.float32))
    assert policy.network().resets >= 2


def test_a_policy_with_a_memory_begins_anew_whenever_it_takes_over() -> None:
    """Whoever stood in between must not be remembered as walking."""

    class Counting(Policy):
        """Acts by how often it was called since it last forgot."""

        calls = 0

        def network(self) -> Any:
            self._network.function = self.act
            self._network.reset = self.forget
            return self._network

        def act(self, _: Any) -> np.ndarray:
            self.calls += 1
            return np.full(12, 0.01 * self.calls)

        def forget(self) -> None:
            self.calls = 0

    class StandOnce:
        """Lets the robot stand up again after five ticks of walking."""

        walked = 0

        def poll(self, now: float, elapsed: float) -> Asked:
            self.walked += bench.loop.mode is Mode.POLICY
            asked = Event.STAND if self.walked == 5 else None
            self.walked += asked is not None
            return Asked(values=np.zeros(3), event=asked)

        def close(self) -> None:
            pass

    bench = Bench(Counting(), source=StandOnce())
    bench.loop.run(1.0)
    modes, actions = bench.rows["mode"], bench.rows["raw_action"][:, 0]
    walking = np.flatnonzero(modes == Mode.POLICY)
    (gap,) = np.flatnonzero(np.diff(walking) > 1)
    for stretch in np.split(walking, [gap + 1]):
        counts = np.arange(1, len(stretch) + 1)
        np.testing.assert_allclose(actions[stretch], 0.01 * counts, rtol=1e-6)


def test_the_gait_phase_follows_the_clock_and_not_the_ticks() -> None:
    period = 0.5
    policy = Policy(clocked_contract(period))
    bench = Bench(policy, initial=Mode.POLICY)
    # It begins where the time of the clock is no whole number of cycles.
    bench.time.time += 0.13

    def stall(read: int, state: RobotState) -> RobotState:
        if read == 10:
            bench.time.time += 0.2
        return state

    bench.robot.change = stall
    summary = bench.loop.run(1.0)
    rows = bench.rows[bench.rows["step"] > 0]
    true = rows["time"] - rows["time"][0]
    np.testing.assert_allclose(rows["elapsed"], true, atol=1e-12)
    wave = np.sin(2 * np.pi * true / period)
    np.testing.assert_allclose(rows["observation"][:, 0], wave, atol=1e-6)
    # Ten ticks of the second fell into the stall.
    assert summary.timing.skipped == pytest.approx(10, abs=1)
    assert len(rows) + summary.timing.skipped == pytest.approx(50, abs=1)
    assert summary.faults["OVERRUN"] == 1


@pytest.mark.usefixtures("unhurried")
def test_real_time_with_a_stall() -> None:
    """Some real seconds at 50 Hz; the tolerances hold on a machine that is busy."""
    time = MonotonicClock(DT)
    policy = Policy(clocked_contract())
    robot = FakeRobot(policy.contract, FakeTime())
    robot.time.now = time.now

    def stall(read: int, state: RobotState) -> RobotState:
        end = time.now() + 0.2 if read == 40 else 0.0
        while time.now() < end:
            pass
        return state

    robot.change = stall
    memory = MemoryRecorder(policy.contract)
    loop = ControlLoop(policy, robot, time, recorder=memory, initial=Mode.POLICY)
    summary = loop.run(1.5)
    timing, rows = summary.timing, memory.rows
    assert summary.ended == "done", summary.cause
    # What ran and what was skipped is all there was: else every tick after the stall is late. Not
    # that of each tick, before which the machine may have taken the processor.
    index = np.arange(timing.ticks) + np.cumsum(rows["skipped"])
    late = rows["time"] / DT - index
    assert np.median(late - late.min()) < 0.5
    assert 8 <= rows["skipped"].sum() <= timing.skipped
    assert timing.overruns >= 1
    # A burst of the ten ticks that were missed would be 8 % of all.
    assert np.percentile(np.diff(rows["time"]), 5) >= DT / 2
    assert timing.compute.max >= 0.2
    assert timing.compute.p50 < DT
    walking = rows[rows["step"] > 0]
    np.testing.assert_allclose(walking["elapsed"], walking["time"] - walking["time"][0], atol=1e-12)


def test_commands_come_from_the_source_by_the_policys_own_time() -> None:
    segments = [(0.1, np.array([0.1, 0, 0])), (0.2, np.array([0.2, 0, 0])), (0.1, np.zeros(3))]
    bench = Bench(source=Schedule(segments))
    bench.loop.run(0.6)
    asked = bench.rows[bench.rows["mode"] == Mode.POLICY]["asked"][:, 0]
    np.testing.assert_array_equal(asked, [0.1] * 5 + [0.2] * 10 + [0.0] * 15)


def test_a_robot_with_joints_in_another_order_is_refused_by_name() -> None:
    policy = Policy()
    robot = FakeRobot(policy.contract, FakeTime())
    names = list(robot.joint_names)
    names[0], names[3] = names[3], names[0]
    robot.joint_names = tuple(names)
    with pytest.raises(Refused, match="'FR_hip_joint' where 'FL_hip_joint' belongs"):
        ControlLoop(policy, robot, robot.time.clock())
    robot.joint_names = policy.contract.joint_names[:11]
    with pytest.raises(Refused, match="11 joints where 12 belong"):
        ControlLoop(policy, robot, robot.time.clock())


def test_a_robot_that_does_not_measure_what_a_term_needs_is_refused_before_it_moves() -> None:
    contract = quadruped_contract(
        observation=(make_block(make_term("speed", "base_lin_vel"), make_term("q", "joint_pos")),)
    )
    policy = Policy(contract)
    robot = FakeRobot(contract, FakeTime())
    robot.measures = frozenset()
    with pytest.raises(Refused, match="'speed' needs base_lin_vel_b"):
        ControlLoop(policy, robot, robot.time.clock())
    assert robot.reads == 0
    assert not robot.sent


def test_a_robot_without_velocity_runs_a_policy_that_needs_none() -> None:
    bench = Bench()
    bench.robot.measures = frozenset()
    bench.robot.change = lambda read, state: dataclasses.replace(state, base_lin_vel_b=None)
    assert bench.loop.run(0.1).good
    assert np.isnan(bench.rows["base_lin_vel_b"]).all()


def test_a_clock_of_another_period_is_refused() -> None:
    policy = Policy()
    time = FakeTime()
    with pytest.raises(Refused, match=r"ticks every 0\.01 s, the policy"):
        ControlLoop(policy, FakeRobot(policy.contract, time), time.clock(0.01))


def test_a_run_without_an_end_ends_by_request() -> None:
    bench = Bench()

    def end(read: int, state: RobotState) -> RobotState:
        if read == 200:
            bench.loop.request(Event.DAMP)
        return state

    bench.robot.change = end
    summary = bench.loop.run(None)
    assert summary.ended == "operator"
    assert summary.good
    assert (bench.rows["mode"] == Mode.POLICY).sum() > 100
