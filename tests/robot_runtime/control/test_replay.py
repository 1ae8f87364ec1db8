"""A log replays bit for bit through the same code, and every changed bit is named."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from robot_runtime.control.faults import Fault
from robot_runtime.control.flightlog import FlightLog, make_header
from robot_runtime.control.loop import Policy as AnyPolicy
from robot_runtime.control.modes import Event, Mode
from robot_runtime.control.replay import check_policy, replay_log
from robot_runtime.control.teleop import Asked, demo_schedule
from robot_runtime.errors import Refused
from robot_runtime.policy.file import open_policy
from robot_runtime.policy.labels import observation_labels
from robot_runtime.policy.state import RobotState
from tests.helpers.contracts import edited, quadruped_contract, rich_contract
from tests.helpers.loops import Bench, Network, Policy
from tests.helpers.policies import write_random_policy


def noisy_flight(policy: AnyPolicy, seconds: float = 2.0) -> FlightLog:
    """A flight over random states, with a stall of the loop and a gap in the state."""
    contract = policy.contract
    bench = Bench(policy, source=demo_schedule(contract))
    bench.robot.follow = True
    rng = np.random.default_rng(1)
    last: list[float] = [0.0]

    def shaken(read: int, state: RobotState) -> RobotState:
        if read == 90:
            bench.time.time += 0.13
        lean = 0.2 * rng.normal()
        last[0] = last[0] if 100 < read < 104 else state.time
        return RobotState(
            time=last[0],
            base_quat=np.array([np.cos(lean / 2), np.sin(lean / 2), 0.0, 0.0]),
            base_ang_vel_b=rng.normal(size=3),
            base_lin_vel_b=rng.normal(size=3),
            joint_pos=state.joint_pos + 0.1 * rng.normal(size=12),
            joint_vel=rng.normal(size=12),
        )

    bench.robot.change = shaken
    summary = bench.loop.run(seconds)
    assert summary.ended == "done", summary.cause
    assert summary.faults["STATE_STALE"] >= 1
    assert summary.timing.skipped >= 5
    return log_of(bench)


def log_of(bench: Bench) -> FlightLog:
    """What a recorder would have written."""
    return FlightLog(
        path=Path("flight.npz"),
        header=make_header(bench.contract, policy="p.onnx", policy_sha256="00" * 32),
        contract=bench.contract,
        rows=bench.rows.copy(),
        finished=True,
    )


CONTRACTS = {"plain": quadruped_contract(), "rich": rich_contract()}


@pytest.fixture(scope="module", params=list(CONTRACTS))
def flight(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[AnyPolicy, FlightLog]:
    """A policy file with a flight of it."""
    path = tmp_path_factory.mktemp("policy") / "policy.onnx"
    contract = CONTRACTS[request.param]
    policy = open_policy(write_random_policy(path, contract), replay=False)
    return policy, noisy_flight(policy)


Flight = tuple[AnyPolicy, FlightLog]


def changed(log: FlightLog, rows: np.ndarray) -> FlightLog:
    return dataclasses.replace(log, rows=rows)


def test_a_flight_replays_bit_for_bit(flight: Flight) -> None:
    policy, log = flight
    result = replay_log(log, policy)
    assert result.difference is None
    assert result.good
    assert result.compared == result.steps == np.count_nonzero(log.rows["step"])
    assert result.steps > 80
    # And the policy did something: other actions at every step.
    actions = log.rows["raw_action"][log.rows["step"] > 0]
    assert len(np.unique(actions, axis=0)) == len(actions)


def test_two_runs_of_the_policy_replay_each_from_its_own_start() -> None:
    policy = Policy(rich_contract(), lambda obs: np.tanh(obs[:11]))
    bench = Bench(policy)
    bench.robot.follow = True
    bench.loop.run(0.3)
    bench.loop.reset()
    bench.loop.run(0.3)
    log = log_of(bench)
    log.rows["tick"] = np.arange(len(log.rows))
    assert replay_log(log, policy).good
    assert (log.rows["step"] == 2).sum() == 2


class Remembering(Network):
    """A network with a memory: its action is how often it was asked."""

    def __init__(self, num_actions: int) -> None:
        super().__init__(lambda _: np.full(num_actions, 0.01 * self.steps))
        self.steps = 0

    def __call__(self, obs: NDArray[np.float32], /) -> NDArray[np.float32]:
        self.steps += 1
        return super().__call__(obs)

    def reset(self) -> None:
        super().reset()
        self.steps = 0


class StandInBetween:
    """Asks the robot to stand once the policy has run for a while, once."""

    def __init__(self) -> None:
        self.asked = False

    def poll(self, now: float, elapsed: float) -> Asked:
        event = Event.STAND if elapsed > 0.2 and not self.asked else None
        self.asked = self.asked or event is not None
        return Asked(values=np.zeros(3), event=event)

    def close(self) -> None: ...


def test_a_policy_with_a_memory_begins_anew_whenever_it_engages() -> None:
    policy = Policy()
    policy._network = Remembering(policy.contract.num_actions)
    bench = Bench(policy, source=StandInBetween())
    bench.robot.follow = True
    summary = bench.loop.run(0.4)
    assert summary.ended == "done"
    begins = np.flatnonzero(bench.rows["step"] == 2)
    assert len(begins) == 2
    for row in begins:
        actions = bench.rows["raw_action"][row : row + 3, 0]
        np.testing.assert_allclose(actions, [0.01, 0.02, 0.03], rtol=1e-6)
    replayed = replay_log(log_of(bench), policy)
    assert replayed.good, replayed.difference


def test_a_policy_that_engages_while_the_state_is_stale_begins_at_its_first_step() -> None:
    policy = Policy(rich_contract(), lambda obs: np.tanh(obs[:11]))
    bench = Bench(policy)
    bench.robot.follow = True
    # Standing up from the default pose takes half a second, and half a second more is rest.
    bench.robot.change = lambda read, state: (
        dataclasses.replace(state, time=101.0) if 49 <= read < 53 else state
    )
    bench.loop.run(0.4)
    engaged = bench.rows[bench.rows["mode"] == Mode.POLICY]
    assert engaged["faults"][0] & Fault.STATE_STALE
    assert list(engaged["step"][:4]) == [0, 0, 2, 1]
    assert replay_log(log_of(bench), policy).good


@pytest.mark.parametrize(
    ("field", "column", "label"),
    [
        ("command", 1, "lin_vel_y"),
        ("observation", 9, None),
        ("raw_action", 3, "FR_hip_joint"),
        ("applied_action", 0, "FL_hip_joint"),
        ("target_position", 4, "FR_thigh_joint"),
        ("target_velocity", 9, "RR_hip_joint"),
        ("target_effort", 10, "RR_thigh_joint"),
    ],
)
def test_one_flipped_bit_is_named(
    flight: Flight, field: str, column: int, label: str | None
) -> None:
    policy, log = flight
    rows = log.rows.copy()
    place = np.flatnonzero(rows["step"])[30]
    bits = rows[field].view(np.uint32)
    bits[place, column] ^= 1
    difference = replay_log(changed(log, rows), policy).difference
    assert difference is not None
    assert (difference.tick, difference.field) == (int(rows["tick"][place]), field)
    assert difference.label == (label or observation_labels(log.contract)[column])
    assert f"tick {difference.tick}: {field} {difference.label}" in str(difference)


@pytest.mark.parametrize("field", ["joint_pos", "base_ang_vel_b", "asked", "base_quat"])
def test_a_changed_input_shows_in_the_observation(flight: Flight, field: str) -> None:
    policy, log = flight
    rows = log.rows.copy()
    place = np.flatnonzero(rows["step"])[40]
    rows[field][place, 0] += 0.01
    difference = replay_log(changed(log, rows), policy).difference
    assert difference is not None
    assert difference.tick == rows["tick"][place]
    assert difference.field == ("command" if field == "asked" else "observation")


def test_a_lost_record_ends_what_can_be_proven_and_is_said(flight: Flight) -> None:
    policy, log = flight
    place = int(np.flatnonzero(log.rows["step"])[25])
    result = replay_log(changed(log, np.delete(log.rows, place)), policy)
    assert result.difference is None
    assert not result.good
    assert result.gap == int(log.rows["tick"][place - 1])
    assert result.compared == 25


def test_a_log_without_a_policy_step_is_refused(flight: Flight) -> None:
    policy, log = flight
    with pytest.raises(Refused, match="5 records and no policy step"):
        replay_log(changed(log, log.rows[:5]), policy)


def test_another_policy_is_refused(flight: Flight) -> None:
    _, log = flight
    check_policy(log, "00" * 32, "p.onnx")
    with pytest.raises(Refused, match=r"recorded with policy 000000000000.*is ffffffffffff"):
        check_policy(log, "ff" * 32, "q.onnx")
    other = Policy(edited(log.contract, {"joints.0.kp": 99.0}))
    with pytest.raises(Refused, match="another contract"):
        replay_log(log, other)
