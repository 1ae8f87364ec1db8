"""The replay catches an edited contract whose hash and seal were made anew.

It catches every field on the path from state to torque. Every field of the contract stands in one
of the two lists below, so that a new one must be put into one of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from robot_runtime.errors import SurefootError
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import load_policy
from robot_runtime.policy.spec import ActionSpec, ActuatorSpec, Source
from tests.helpers.contracts import (
    edited,
    leaves,
    make_action,
    make_block,
    make_history,
    make_term,
    put,
    quadruped_contract,
    rich_contract,
)
from tests.helpers.policies import write_random_policy
from tests.helpers.sealing import contract_of, resealed

Edit = dict[str, Any]
"""New values by path."""


def scaled(path: str, value: float) -> Edit:
    """A number changed by two parts in a hundred: a typing error, not a disaster."""
    return {path: value * 1.02 if value else 0.01}


# Fields on the path from state to torque, with one edit or several that must be caught, each on
# its own. "*" stands for every place; "each" edits every place by `scaled`.
EACH: Any = "each"
ON_PATH: dict[str, Any] = {
    "joints.*.default_pos": EACH,
    "joints.*.effort_limit": EACH,
    "joints.*.stall_effort": EACH,
    "joints.*.no_load_speed": EACH,
    "joints.*.kp": EACH,
    "joints.*.kd": EACH,
    # The periods must divide each other, so they come in whole steps.
    "timing.control_dt": [{"timing.control_dt": 0.04}, {"timing.control_dt": 0.015}],
    "timing.pd_dt": [{"timing.pd_dt": 0.01}, {"timing.pd_dt": 0.0025}],
    "actuator.delay": [{"actuator.delay": 0.0}, {"actuator.delay": 0.005}],
    "actuator.target_filter": EACH,
    "observation.*.terms.*.source": [
        {"observation.0.terms.0.source": "base_lin_vel"},
        {"observation.0.terms.6.source": "joint_pos_rel"},
        {"observation.0.terms.8.source": "phase_cos"},
    ],
    "observation.*.terms.*.scale.*": EACH,
    "observation.*.terms.*.clip.*": EACH,
    "observation.*.terms.*.clip": [
        {"observation.0.terms.0.clip": None},
        {"observation.0.terms.5.clip": None},
        {"observation.0.terms.1.clip": [-0.5, 0.5]},
    ],
    "observation.*.terms.*.clip_first": [
        {"observation.0.terms.0.clip_first": False},
        {"observation.0.terms.7.clip_first": True},
    ],
    "observation.*.terms.*.history_length": [
        {"observation.0.terms.2.history_length": 3},
        {"observation.0.terms.0.history_length": 2},
        # As many numbers as before, in other places.
        {
            "observation.0.terms.0.history_length": 2,
            "observation.0.terms.1.history_length": 4,
        },
    ],
    "observation.*.terms.*.joints.*": [
        {
            "observation.0.terms.6.joints.0": "FL_hip_joint",
            "observation.0.terms.6.joints.1": "RL_thigh_joint",
        },
        {"observation.0.terms.6.joints.0": "RR_hip_joint"},
    ],
    "observation.*.terms.*.joints": [
        {"observation.0.terms.6.joints": None},
        {"observation.0.terms.5.joints": ["FL_hip_joint"]},
    ],
    "observation.*.terms.*.channels.*": [{"observation.1.terms.3.channels.0": "lin_vel_x"}],
    "observation.*.terms.*.channels": [
        {"observation.1.terms.3.channels": None},
        {"observation.0.terms.4.channels": ["lin_vel_y", "lin_vel_x", "ang_vel_z"]},
    ],
    "observation.*.terms.*.stage": [
        {"observation.1.terms.1.stage": "applied"},
        {"observation.1.terms.2.stage": "raw"},
    ],
    "observation.*.terms.*.frame": [
        {"observation.0.terms.0.frame": "world"},
        {"observation.1.terms.0.frame": "body"},
    ],
    "observation.*.terms.*.sensor": [{f"observation.0.terms.{i}.sensor": "base"} for i in range(4)],
    "observation.*.terms.*.value.*": [
        {"observation.0.terms.12.value.0": 0.3},
        {"observation.0.terms.13.value.1": -0.31},
    ],
    "observation.*.history.length": [
        {"observation.0.history.length": 2},
        {"observation.1.history.length": 3},
    ],
    "observation.*.history.layout": [{"observation.1.history.layout": "term_major"}],
    "observation.*.history.order": [
        {"observation.0.history.order": "newest_first"},
        {"observation.1.history.order": "oldest_first"},
    ],
    "observation.*.history.fill": [
        {"observation.0.history.fill": "zero"},
        {"observation.1.history.fill": "first"},
    ],
    "observation.*.history.includes_current": [
        {"observation.0.history.includes_current": False},
        {"observation.1.history.includes_current": True},
    ],
    "observation.*.history.stride": [
        {"observation.0.history.stride": 1},
        {"observation.0.history.stride": 3},
        {"observation.1.history.stride": 2},
    ],
    "observation.*.clip": [{"observation.0.clip": 3.06}, {"observation.1.clip": 3.0}],
    "action.terms.*.kind": [
        {"action.terms.3.kind": "velocity"},
        {"action.terms.2.kind": "effort"},
        {"action.terms.2.kind": "position"},
    ],
    "action.terms.*.joints.*": [
        {
            "action.terms.0.joints.0": "FL_thigh_joint",
            "action.terms.0.joints.1": "FL_hip_joint",
        },
    ],
    "action.terms.*.scale.*": EACH,
    "action.terms.*.offset.*": EACH,
    "action.terms.*.relative_to": [
        {"action.terms.1.relative_to": "offset"},
        {"action.terms.0.relative_to": "measured"},
    ],
    "action.terms.*.raw_lower.*": EACH,
    "action.terms.*.raw_upper.*": EACH,
    "action.terms.*.target_lower.*": EACH,
    "action.terms.*.target_upper.*": EACH,
    # Bounds come in pairs.
    "action.terms.*.raw_lower": [
        {"action.terms.0.raw_lower": None, "action.terms.0.raw_upper": None},
        {"action.terms.2.raw_lower": [-2.0], "action.terms.2.raw_upper": [2.0]},
    ],
    "action.terms.*.raw_upper": [
        {"action.terms.1.raw_lower": [-100.0], "action.terms.1.raw_upper": [2.0]},
    ],
    "action.terms.*.target_lower": [
        {"action.terms.0.target_lower": None, "action.terms.0.target_upper": None},
        {"action.terms.3.target_lower": [-2.0], "action.terms.3.target_upper": [100.0]},
    ],
    "action.terms.*.target_upper": [
        {"action.terms.1.target_lower": [-100.0], "action.terms.1.target_upper": [-1.0]},
    ],
    "action.hold.*.position": EACH,
    "action.filter": EACH,
    "commands.*.lower": EACH,
    "commands.*.upper": EACH,
    "commands.*.max_rate": EACH,
    "phase.period": EACH,
    "phase.offsets.*": EACH,
    "phase.start": EACH,
    "phase.stand": [
        {"phase.stand": "zero"},
        {"phase.stand": "run", "phase.restart": None},
    ],
    "phase.stand_channels.*": [
        {"phase.stand_channels": ["lin_vel_x", "lin_vel_y"]},
        {"phase.stand_channels": ["ang_vel_z"]},
    ],
    "phase.stand_norm": [{"phase.stand_norm": "separate"}],
    # Commands around the threshold differ from it by three parts in a hundred.
    "phase.stand_threshold": [{"phase.stand_threshold": 0.16}, {"phase.stand_threshold": 0.14}],
    "phase.stand_phase": EACH,
    "phase.restart": [{"phase.restart": 0.31}, {"phase.restart": None}],
    "imu.position.*": EACH,
    # A unit quaternion changes as a whole: one that is turned a degree more, and its inverse.
    "imu.quat.*": [
        {"imu.quat": [0.9659258262890683, 0.0, 0.25881904510252074, 0.0]},
        {"imu.quat.2": -0.24740395925452294},
        {"imu.quat": [0.9689124217106447, 0.24740395925452294, 0.0, 0.0]},
    ],
    "imu.quaternion_order": [{"imu.quaternion_order": "wxyz"}],
}

# Fields that no torque depends on, and why each is not caught by a replay. The seal catches them.
OFF_PATH = {
    "schema": "read before everything else; a newer one is refused",
    "name": "a name for people",
    "robot.name": "a name for people",
    "robot.model_sha256": "compared with the model where there is one",
    "robot.base_body": "bound where there is a model",
    "joints.*.name": "bound by name where there is a robot; see the test of renamed joints",
    "joints.*.motor": "says where on a bus the joint is",
    "joints.*.axis.*": "compared with the model where there is one",
    "joints.*.lower": "a guard's limit",
    "joints.*.upper": "a guard's limit",
    "joints.*.velocity_limit": "a guard's limit",
    "timing.physics_dt": "the training's own affair",
    "actuator.form": "the same law, integrated in another way",
    "actuator.damping": "see the test of native damping; of one meaning in an explicit PD",
    "observation.*.input": "the graph's tensors; checked against the graph",
    "observation.*.terms.*.name": "a name for people",
    "observation.*.terms.*.noise.*": "the training's own affair, never applied on a robot",
    "observation.*.terms.*.value": "null for every source but two",
    "action.terms.*.name": "a name for people",
    "action.hold.*.joint": "every joint is driven or held, so another one is refused",
    "commands.*.name": "see the test of renamed commands",
    "imu.site": "bound where there is a model",
    "network.output": "the graph's tensor; checked against the graph",
    "network.normalizer": "what the graph holds; said at export",
}


def field_of(path: str) -> str:
    """The path of a leaf with "*" for every place in a list."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", path)


def edits_of(field: str, contract: PolicyContract) -> list[Edit]:
    """The edits of a field: those listed, or up to four of its places."""
    listed = ON_PATH[field]
    if listed is not EACH:
        return listed
    places = [(p, v) for p, v in leaves(contract.to_dict()) if field_of(p) == field]
    places = [(path, value) for path, value in places if value is not None]
    last = len(places) - 1
    picked = sorted({round(last * part / 3) for part in range(4)})
    return [scaled(*places[i]) for i in picked]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("policy") / "policy.onnx"
    return write_random_policy(path, rich_contract()).read_bytes()


def refusal_of(data: bytes, edit: Edit) -> str:
    """What a file is refused with after an edit of its contract that was sealed again."""
    plain = contract_of(data)
    for path, value in edit.items():
        put(plain, path, value)
    with pytest.raises(SurefootError) as caught:
        load_policy(resealed(data, contract=plain), path="policy.onnx")
    return str(caught.value)


def test_every_field_is_in_one_list() -> None:
    fields = {field_of(path) for path, _ in leaves(rich_contract().to_dict())}
    fields |= {field_of(path) for path, _ in leaves(quadruped_contract().to_dict())} - {"phase"}
    assert fields == set(ON_PATH) | set(OFF_PATH)
    assert not set(ON_PATH) & set(OFF_PATH)


def test_every_source_is_in_the_rich_contract() -> None:
    terms = [term for block in rich_contract().observation for term in block.terms]
    assert {term.source for term in terms} == set(get_args(Source))


@pytest.mark.parametrize("field", ON_PATH)
def test_a_field_on_the_path_to_torque_is_caught_by_the_replay(data: bytes, field: str) -> None:
    edits = edits_of(field, rich_contract())
    assert edits
    for edit in edits:
        edited(rich_contract(), edit)
        text = refusal_of(data, edit)
        # An edit that changes how many numbers there are meets the graph first.
        assert "golden trace" in text or "expected" in text, text


def test_nothing_else_refuses_an_edit_off_the_path(data: bytes) -> None:
    """The replay is about torques: names and guards' limits are others' affair."""
    plain = contract_of(data)
    for path, value in {
        "name": "another",
        "joints.3.upper": 3.9,
        "joints.3.velocity_limit": 20.0,
        "observation.0.terms.0.noise.0": 0.3,
        "timing.physics_dt": 0.005,
    }.items():
        put(plain, path, value)
    assert load_policy(resealed(data, contract=plain), path="p").contract.name == "another"


def test_the_replay_names_boundary_term_and_joint(data: bytes) -> None:
    assert "boundary A (states -> observation): gyro[" in refusal_of(
        data, {"observation.0.terms.0.scale.0": 0.26}
    )
    assert "boundary C (action -> joint targets): position target of FR_hip_joint" in refusal_of(
        data, {"action.terms.0.scale.3": 0.26}
    )
    assert "boundary C (joint targets -> efforts): effort of RL_thigh_joint" in refusal_of(
        data, {"joints.7.kp": 28.0}
    )


def test_terms_in_another_order_are_caught(data: bytes) -> None:
    plain = contract_of(data)
    terms = plain["observation"][0]["terms"]
    terms[0], terms[1] = terms[1], terms[0]
    with pytest.raises(SurefootError, match=r"boundary A .*gravity"):
        load_policy(resealed(data, contract=plain), path="p")


def test_joints_in_another_order_and_renamed_joints_are_caught(data: bytes) -> None:
    plain = contract_of(data)
    plain["joints"] = plain["joints"][::-1]
    with pytest.raises(SurefootError, match=r"joints are others .*'FL_hip_joint' for 'RR_calf"):
        load_policy(resealed(data, contract=plain), path="p")
    text = resealed(data, contract=contract_of(data))
    renamed = {"joints.0.name": "front_left_hip", "action.terms.0.joints.0": "front_left_hip"}
    renamed["observation.0.terms.6.joints.1"] = "front_left_hip"
    assert "'FL_hip_joint' for 'front_left_hip'" in refusal_of(text, renamed)


def test_renamed_commands_are_caught(data: bytes) -> None:
    renamed = {"commands.2.name": "yaw_rate", "observation.1.terms.3.channels.0": "yaw_rate"}
    renamed["phase.stand_channels.1"] = "yaw_rate"
    assert "'ang_vel_z' for 'yaw_rate'" in refusal_of(data, renamed)


def test_native_damping_outside_the_limit_is_caught(tmp_path: Path) -> None:
    native = ActuatorSpec(form="native", damping="actuator", delay=0.0, target_filter=1.0)
    path = write_random_policy(tmp_path / "p.onnx", quadruped_contract(actuator=native))
    assert "boundary C (joint targets -> efforts)" in refusal_of(
        path.read_bytes(), {"actuator.damping": "joint"}
    )


def test_a_clock_that_gives_zero_or_runs_on_is_caught(tmp_path: Path) -> None:
    """The stand modes that the rich contract does not have."""
    rich = rich_contract()
    for stand, other in (("zero", "run"), ("run", "zero")):
        contract = edited(rich, {"phase.restart": None, "phase.stand": stand})
        path = write_random_policy(tmp_path / f"{stand}.onnx", contract)
        text = refusal_of(path.read_bytes(), {"phase.stand": other})
        assert "boundary A" in text


def test_a_threshold_far_below_every_command_is_caught(tmp_path: Path) -> None:
    """A flag for "any command at all" has a threshold that no random command comes near."""
    terms = (make_term("walk", "command_active", value=(1e-3,)), make_term("q", "joint_pos"))
    contract = quadruped_contract(observation=(make_block(*terms, history=make_history(2)),))
    path = write_random_policy(tmp_path / "p.onnx", contract)
    assert "boundary A" in refusal_of(path.read_bytes(), {"observation.0.terms.0.value.0": 1.1e-3})


def test_a_slow_filter_does_not_hide_the_target_bounds(tmp_path: Path) -> None:
    names = quadruped_contract().joint_names
    bounded = make_action(
        "legs",
        names,
        raw_lower=(-20.0,) * 12,
        raw_upper=(20.0,) * 12,
        target_lower=(-2.5,) * 12,
        target_upper=(1.5,) * 12,
    )
    slow = ActionSpec(terms=(bounded,), hold=(), filter=0.05)
    path = write_random_policy(tmp_path / "p.onnx", quadruped_contract(action=slow))
    for field, value in (("target_lower", -2.55), ("target_upper", 1.53)):
        text = refusal_of(path.read_bytes(), {f"action.terms.0.{field}.0": value})
        assert "position target of FL_hip_joint" in text


def test_an_edit_that_no_contract_allows_is_refused_as_such(data: bytes) -> None:
    assert "imu.quat: norm" in refusal_of(data, {"imu.quat.0": 0.9})
