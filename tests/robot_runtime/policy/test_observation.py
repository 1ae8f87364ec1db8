"""Observations: frames, histories, clips, with numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from robot_runtime.policy.codec import ContractError
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.gait import gait_phase, is_standing
from robot_runtime.policy.labels import observation_labels
from robot_runtime.policy.observation import ObservationBuilder
from robot_runtime.policy.rotation import (
    euler_xyz,
    heading,
    multiply,
    projected_gravity,
    rotate,
    rotate_inverse,
)
from robot_runtime.policy.spec import CommandChannel, PhaseClock
from robot_runtime.policy.state import PolicyInputs, RobotState, as_float32
from robot_runtime.policy.terms import required_measurements
from tests.helpers.contracts import make_block, make_history, make_term, quadruped_contract

HALF = math.sqrt(0.5)


def inputs(**changes: Any) -> PolicyInputs:
    state: dict[str, Any] = {
        "time": 0.0,
        "base_quat": as_float32(np.array([1.0, 0.0, 0.0, 0.0])),
        "base_ang_vel_b": np.zeros(3, np.float32),
        "base_lin_vel_b": np.zeros(3, np.float32),
        "joint_pos": np.zeros(12, np.float32),
        "joint_vel": np.zeros(12, np.float32),
    }
    rest: dict[str, Any] = {
        "command": np.zeros(3, np.float32),
        "raw_action": np.zeros(12, np.float32),
        "applied_action": np.zeros(12, np.float32),
        "elapsed": np.float64(0.0),
    }
    for name, value in changes.items():
        (state if name in state else rest)[name] = value
    return PolicyInputs(state=RobotState(**state), **rest)


@pytest.mark.parametrize(
    ("quat", "gravity"),
    [
        ((1.0, 0.0, 0.0, 0.0), (0.0, 0.0, -1.0)),
        ((HALF, 0.0, HALF, 0.0), (1.0, 0.0, 0.0)),  # nose down by 90 degrees
        ((HALF, HALF, 0.0, 0.0), (0.0, -1.0, 0.0)),  # rolled to the right side
        ((0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0)),  # on its back
        ((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, -1.0)),  # turned around: gravity cannot tell
    ],
)
def test_gravity_seen_from_the_body(quat: tuple[float, ...], gravity: tuple[float, ...]) -> None:
    np.testing.assert_allclose(projected_gravity(np.array(quat)), gravity, atol=1e-12)


def test_world_velocity_seen_from_a_turned_body() -> None:
    quarter_left = np.array([HALF, 0.0, 0.0, HALF])
    world = np.array([1.0, 0.0, 0.0])
    np.testing.assert_allclose(rotate_inverse(quarter_left, world), [0.0, -1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(
        rotate(quarter_left, [0.0, -1.0, 0.0] * np.ones(3)), world, atol=1e-12
    )


def test_the_heading_catches_what_gravity_cannot() -> None:
    """x, y, z, w numbers taken for w, x, y, z turn an upright robot around its vertical."""
    upright_as_xyzw = np.array([0.0, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(projected_gravity(upright_as_xyzw), [0.0, 0.0, -1.0], atol=1e-12)
    assert abs(heading(upright_as_xyzw)) == pytest.approx(math.pi)


def test_product_of_quaternions_is_one_rotation_after_the_other() -> None:
    rng = np.random.default_rng(0)
    first, second = (q / np.linalg.norm(q) for q in rng.normal(size=(2, 4)))
    vec = rng.normal(size=3)
    expected = rotate(second, rotate(first, vec))
    np.testing.assert_allclose(rotate(multiply(second, first), vec), expected, atol=1e-12)


def test_all_joints_and_channels_in_an_order_of_the_terms_own() -> None:
    """As many numbers as there are, in other places: by name and not by number."""
    names = quadruped_contract().joint_names
    backwards = names[::-1]
    terms = (
        make_term("pos", "joint_pos", joints=backwards),
        make_term("rel", "joint_pos_rel", joints=backwards),
        make_term("vel", "joint_vel", joints=backwards),
        make_term("command", "command", channels=("ang_vel_z", "lin_vel_x", "lin_vel_y")),
    )
    contract = quadruped_contract(observation=(make_block(*terms),))
    pos, vel = np.arange(12, dtype=np.float32), np.arange(12, dtype=np.float32) + 20.0
    given = inputs(joint_pos=pos, joint_vel=vel, command=np.array([1, 2, 3], np.float32))
    seen = dict(
        zip(observation_labels(contract), ObservationBuilder(contract).compute(given), strict=True)
    )
    for i, (name, joint) in enumerate(zip(names, contract.joints, strict=True)):
        assert seen[f"pos[{name}]"] == i
        assert seen[f"rel[{name}]"] == pytest.approx(i - joint.default_pos, abs=1e-6)
        assert seen[f"vel[{name}]"] == 20 + i
    assert [seen[f"command[{c}]"] for c in contract.command_names] == [1, 2, 3]


def history_contract(**history: Any) -> PolicyContract:
    """Two terms, of two features and one, with a history of three."""
    return quadruped_contract(
        observation=(
            make_block(
                make_term("pair", "command", channels=("lin_vel_x", "lin_vel_y")),
                make_term("one", "command", channels=("ang_vel_z",)),
                history=make_history(3, **history),
            ),
        )
    )


def feed(contract: PolicyContract, frames: list[list[float]]) -> NDArray[np.float32]:
    """The observation after these frames, each computed twice and filed once."""
    builder = ObservationBuilder(contract)
    observation = np.zeros(0, np.float32)
    for frame in frames:
        builder.compute(inputs(command=as_float32(np.array([-7.0, -8.0, -9.0]))))
        observation = builder.compute(inputs(command=as_float32(np.array(frame))))
        builder.commit()
    return observation


FRAMES = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [10.0, 11.0, 12.0]]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ({}, [4, 5, 7, 8, 10, 11, 6, 9, 12]),
        ({"order": "newest_first"}, [10, 11, 7, 8, 4, 5, 12, 9, 6]),
        ({"layout": "frame_major"}, [4, 5, 6, 7, 8, 9, 10, 11, 12]),
        ({"layout": "frame_major", "order": "newest_first"}, [10, 11, 12, 7, 8, 9, 4, 5, 6]),
        ({"order": "newest_first", "includes_current": False}, [7, 8, 4, 5, 1, 2, 9, 6, 3]),
        ({"stride": 2, "fill": "zero"}, [0, 0, 4, 5, 10, 11, 0, 6, 12]),
    ],
)
def test_every_history_layout(history: dict[str, Any], expected: list[float]) -> None:
    assert feed(history_contract(**history), FRAMES).tolist() == expected


@pytest.mark.parametrize(
    ("fill", "expected"),
    [("first", [1, 2, 1, 2, 4, 5, 3, 3, 6]), ("zero", [0, 0, 1, 2, 4, 5, 0, 3, 6])],
)
def test_what_stands_before_the_first_frame(fill: str, expected: list[float]) -> None:
    assert feed(history_contract(fill=fill), FRAMES[:2]).tolist() == expected


def test_a_reset_forgets_and_only_where_asked() -> None:
    contract = history_contract()
    builder = ObservationBuilder(contract, as_float32, (2,))
    for frame in FRAMES[:2]:
        builder.compute(inputs(command=as_float32(np.array([frame, frame]))))
        builder.commit()
    builder.reset(np.array([True, False]))
    both = builder.compute(inputs(command=as_float32(np.array([FRAMES[2]] * 2))))
    assert both[0].tolist() == [7, 8, 7, 8, 7, 8, 9, 9, 9]
    assert both[1].tolist() == [1, 2, 4, 5, 7, 8, 3, 6, 9]


def test_rows_measured_beside_others_join_the_history_of_theirs() -> None:
    """Frames of rows that are not the builder's own are measured in the same go."""
    contract = history_contract()
    builder, other = (ObservationBuilder(contract, as_float32, (2,)) for _ in range(2))
    for b in (builder, other):
        b.compute(inputs(command=as_float32(np.array([FRAMES[0], FRAMES[1]]))))
        b.commit()
    three = as_float32(np.array([FRAMES[1], FRAMES[2], FRAMES[3]]))
    (frame,) = builder.frames(inputs(command=three))
    got = builder.arrange([frame[[0, 2]]])
    assert got.tolist() == other.compute(inputs(command=three[[0, 2]])).tolist()
    # What was arranged last is what is filed.
    builder.arrange([frame[:2]])
    other.compute(inputs(command=three[:2]))
    for b in (builder, other):
        b.commit()
    last = inputs(command=three[:2])
    assert builder.compute(last).tolist() == other.compute(last).tolist()


def test_a_history_goes_on_from_its_state_dict() -> None:
    contract = history_contract()
    first, second = ObservationBuilder(contract), ObservationBuilder(contract)
    for frame in FRAMES[:3]:
        first.compute(inputs(command=as_float32(np.array(frame))))
        first.commit()
    second.load_state_dict(first.state_dict())
    last = inputs(command=as_float32(np.array(FRAMES[3])))
    assert second.compute(last).tolist() == first.compute(last).tolist()
    with pytest.raises(ContractError, match="shape"):
        ObservationBuilder(contract, as_float32, (4,)).load_state_dict(first.state_dict())


def test_clip_before_scale_is_not_clip_after_scale() -> None:
    def value(clip_first: bool) -> float:
        term = make_term(
            "gyro", "base_ang_vel", scale=(0.25,), clip=(-2.0, 1.0), clip_first=clip_first
        )
        contract = quadruped_contract(observation=(make_block(term),))
        rates = as_float32(np.array([8.0, -16.0, 0.4]))
        return ObservationBuilder(contract).compute(inputs(base_ang_vel_b=rates)).tolist()

    assert value(True) == pytest.approx([0.25, -0.5, 0.1])
    assert value(False) == pytest.approx([1.0, -2.0, 0.1])


def test_noise_is_scaled_by_the_contract_and_comes_before_clip_and_scale() -> None:
    term = make_term("gyro", "base_ang_vel", scale=(2.0,), clip=(-1.0, 1.0), noise=(0.5, 0.1, 4.0))
    contract = quadruped_contract(observation=(make_block(term),))
    noise = as_float32(np.array([1.0, -1.0, 1.0]))
    assert ObservationBuilder(contract).compute(inputs(), noise).tolist() == pytest.approx(
        [1.0, -0.2, 2.0]
    )


def clock(**changes: Any) -> PhaseClock:
    fields: dict[str, Any] = {
        "period": 0.8,
        "offsets": (0.0, 0.5),
        "start": 0.0,
        "stand": "run",
        "stand_channels": None,
        "stand_norm": "euclidean",
        "stand_threshold": 0.1,
        "stand_phase": 0.5,
        "restart": None,
    }
    return PhaseClock(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "elapsed", "command", "phase"),
    [
        ({}, 0.2, 1.0, [0.25, 0.75]),
        ({"start": 0.5}, 0.2, 1.0, [0.75, 0.25]),
        ({"stand": "fixed"}, 0.2, 0.05, [0.5, 0.5]),
        ({"stand": "fixed"}, 0.2, 0.2, [0.25, 0.75]),
        ({}, 0.2 + 0.8 * 1e6, 1.0, [0.25, 0.75]),  # nine days of walking later
    ],
)
def test_the_gait_clock(
    changes: dict[str, Any], elapsed: float, command: float, phase: list[float]
) -> None:
    got = gait_phase(clock(**changes), np.float64(elapsed), np.array([command, 0.0, 0.0]), np)
    # float64 seconds of 1e6 cycles carry 1e-10 of a cycle.
    np.testing.assert_allclose(got, phase, atol=1e-8)


def test_standing_can_silence_the_clock() -> None:
    contract = quadruped_contract(
        phase=clock(stand="zero"),
        observation=(make_block(make_term("s", "phase_sin"), make_term("c", "phase_cos")),),
    )
    builder = ObservationBuilder(contract)
    still = builder.compute(inputs(elapsed=np.float64(0.1)))
    walking = builder.compute(
        inputs(elapsed=np.float64(0.2), command=as_float32(np.array([0.5, 0.0, 0.0])))
    )
    assert still.tolist() == [0.0, 0.0, 0.0, 0.0]
    np.testing.assert_allclose(walking, [1.0, -1.0, 0.0, 0.0], atol=1e-6)


def test_a_velocity_nobody_measures_is_refused_by_the_term_that_needs_it() -> None:
    contract = quadruped_contract(observation=(make_block(make_term("speed", "base_lin_vel")),))
    assert required_measurements(contract) == {"base_lin_vel_b": "speed"}
    with pytest.raises(ContractError, match=r"'speed'.*does not measure"):
        ObservationBuilder(contract).compute(inputs(base_lin_vel_b=None))


def test_every_element_has_a_name() -> None:
    contract = history_contract()
    assert observation_labels(contract) == [
        "pair[lin_vel_x] 2 steps back",
        "pair[lin_vel_y] 2 steps back",
        "pair[lin_vel_x] 1 steps back",
        "pair[lin_vel_y] 1 steps back",
        "pair[lin_vel_x]",
        "pair[lin_vel_y]",
        "one[ang_vel_z] 2 steps back",
        "one[ang_vel_z] 1 steps back",
        "one[ang_vel_z]",
    ]


def test_a_clock_that_restarts_at_the_first_step_after_standing() -> None:
    contract = quadruped_contract(
        phase=clock(stand="fixed", stand_phase=0.5, start=0.025, restart=0.0),
        observation=(make_block(make_term("phase", "phase")),),
    )
    builder = ObservationBuilder(contract)
    seen = []
    for k, speed in enumerate([1.0, 1.0, 0.0, 0.0, 1.0, 1.0]):
        command = as_float32(np.array([speed, 0.0, 0.0]))
        seen.append(
            float(builder.compute(inputs(elapsed=np.float64(k * 0.02), command=command))[0])
        )
        builder.commit()
    # 20 ms are 0.025 cycles of 0.8 s.
    np.testing.assert_allclose(seen, [0.025, 0.05, 0.5, 0.5, 0.0, 0.025], atol=1e-7)


def test_only_named_channels_decide_whether_the_robot_stands() -> None:
    flag = CommandChannel(name="walk", lower=0.0, upper=1.0, max_rate=None)
    plain = quadruped_contract()
    contract = quadruped_contract(
        commands=(*plain.commands, flag),
        phase=clock(stand="fixed", stand_channels=("walk",), stand_threshold=0.0),
        observation=(
            make_block(
                make_term("phase", "phase"),
                make_term("moves", "command_active", channels=("walk",), value=(0.0,)),
            ),
        ),
    )
    builder = ObservationBuilder(contract)
    seen = [
        builder.compute(
            inputs(elapsed=np.float64(0.2), command=as_float32(np.array([0.9, 0.0, 0.0, walk])))
        ).tolist()
        for walk in (0.0, 1.0)
    ]
    assert seen == [[0.5, 0.5, 0.0], [0.25, 0.75, 1.0]]


def test_sine_and_cosine_of_a_foot_stand_together_in_every_frame() -> None:
    contract = quadruped_contract(
        phase=clock(),
        observation=(make_block(make_term("gait", "phase_sin_cos"), history=make_history(2)),),
    )
    builder = ObservationBuilder(contract)
    builder.compute(inputs(elapsed=np.float64(0.0)))
    builder.commit()
    # A quarter of 0.8 s later; the second foot is half a cycle ahead.
    got = builder.compute(inputs(elapsed=np.float64(0.2)))
    np.testing.assert_allclose(got, [0, 1, 0, -1, 1, 0, -1, 0], atol=1e-6)
    assert observation_labels(contract)[-4:] == [
        "gait[sin 0]",
        "gait[cos 0]",
        "gait[sin 1]",
        "gait[cos 1]",
    ]


def test_separate_norms_of_driving_and_turning() -> None:
    both = clock(stand="fixed", stand_norm="separate", stand_threshold=0.1)
    command = np.array([[0.09, 0.0, 0.09], [0.11, 0.0, 0.0], [0.0, 0.0, 0.11], [0.08, 0.08, 0.0]])
    assert is_standing(both, command).tolist() == [True, False, False, False]
    one = clock(stand="fixed", stand_norm="euclidean", stand_threshold=0.1)
    assert is_standing(one, command).tolist() == [False, False, False, False]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_euler_angles_of_single_turns(axis: int) -> None:
    quat = np.zeros(4)
    quat[0], quat[1 + axis] = math.cos(0.2), math.sin(0.2)
    expected = np.zeros(3)
    expected[axis] = 0.4
    np.testing.assert_allclose(euler_xyz(quat), expected, atol=1e-12)
