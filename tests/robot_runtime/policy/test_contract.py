"""The contract: strict in, exact out, refusals that name the field."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from robot_runtime.policy.codec import ContractError
from robot_runtime.policy.contract import SCHEMA, PolicyContract
from robot_runtime.policy.spec import HoldTarget
from tests.helpers.contracts import (
    edited,
    leaves,
    make_action,
    make_block,
    make_history,
    make_joint,
    make_term,
    put,
    quadruped_contract,
    rich_contract,
)


@pytest.mark.parametrize("make", [quadruped_contract, rich_contract])
def test_json_and_back_is_exact(make: Any) -> None:
    contract = make()
    again = PolicyContract.from_json(contract.to_json())
    assert again == contract
    assert again.sha256() == contract.sha256()


def test_every_leaf_is_in_the_hash() -> None:
    contract = rich_contract()
    seen = {contract.sha256()}
    for path, value in leaves(contract.to_dict()):
        plain = contract.to_dict()
        put(plain, path, "other" if isinstance(value, str) else 0.123 if value is None else None)
        # Hash the text itself: a changed leaf need not be a valid contract to need another hash.
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        assert text != contract.to_json(), path
    for path, value in leaves(contract.to_dict()):
        if isinstance(value, float) and path.startswith("joints.") and "default_pos" in path:
            seen.add(edited(contract, {path: value + 1e-12}).sha256())
    assert len(seen) == 13


def every_key(plain: Any, path: str = "") -> list[str]:
    if isinstance(plain, dict):
        own = [f"{path}.{k}" if path else k for k in plain]
        return own + [
            p for k, v in plain.items() for p in every_key(v, f"{path}.{k}" if path else k)
        ]
    if isinstance(plain, list):
        return [p for i, v in enumerate(plain) for p in every_key(v, f"{path}.{i}")]
    return []


def test_every_missing_key_is_named() -> None:
    contract = rich_contract()
    keys = every_key(contract.to_dict())
    assert len(keys) > 300
    for path in keys:
        plain: Any = contract.to_dict()
        parent = plain
        *parents, last = path.split(".")
        for key in parents:
            parent = parent[int(key)] if isinstance(parent, list) else parent[key]
        del parent[last]
        with pytest.raises(ContractError) as caught:
            PolicyContract.from_json(json.dumps(plain))
        assert f"{last} is missing" in str(caught.value), path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected an object"),
        ('{"schema": 1, "schema": 1}', "stands there twice"),
        ('{"schema": 1, "name": NaN}', "NaN is not a finite number"),
        ("[" * 100_000, "nested too deep"),
        ('{"schema": true}', "not a schema version"),
    ],
)
def test_what_is_no_contract_is_refused(text: str, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        PolicyContract.from_json(text)


def test_a_newer_schema_is_refused_before_its_fields_are_read() -> None:
    with pytest.raises(ContractError, match=r"newer than .*upgrade"):
        PolicyContract.from_json(json.dumps({"schema": SCHEMA + 1, "unheard_of": 1}))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("joints.2.kp", -1.0, "joint 'FL_calf_joint': kp = -1.0 is negative"),
        ("joints.2.kp", "25", r"contract.joints\[2\].kp: expected float, found '25'"),
        ("joints.2.kp", True, r"contract.joints\[2\].kp: expected float, found True"),
        ("joints.2.kp", 10**400, "does not fit a float"),
        ("joints.1.name", "FL_hip_joint", "joints 'FL_hip_joint' stands there twice"),
        ("joints.0.lower", 5.0, "lower 5.0 is not below upper"),
        ("joints.0.no_load_speed", None, "stall_effort and no_load_speed need each other"),
        ("timing.control_dt", 0.021, "control_dt: 0.021 s is not a multiple of pd_dt"),
        ("timing.control_dt", 0.0, "not in 1e-05 ... 1 s"),
        ("actuator.delay", 100.0, "not in 0 ... 1 s"),
        ("actuator.delay", 0.003, "not a multiple of timing.pd_dt"),
        ("actuator.form", "servo", "'servo' is not one of 'explicit_pd', 'native'"),
        ("action.filter", 0.0, "action.filter: 0.0"),
        ("observation.0.terms.0.clip", [1.0, -1.0], "'gyro': clip"),
        ("observation.0.terms.0.scale", [1.0, 2.0], "scale: has 2 numbers for 3 features"),
        ("observation.0.history.length", 0, "history.length: 0 is not in 1"),
        ("observation.0.terms.6.joints", ["knee"], "joint 'knee' does not exist; known: FL_hip"),
        ("phase", None, "needs the gait clock"),
        ("commands.0.lower", 2.0, "'lin_vel_x': 2.0 is above 1.4"),
        ("imu.quat", [1.0, 1.0, 0.0, 0.0], "imu.quat: norm"),
    ],
)
def test_wrong_values_are_refused_by_name(path: str, value: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        edited(rich_contract(), {path: value})


def test_an_unknown_key_is_refused_with_the_known_ones() -> None:
    plain = quadruped_contract().to_dict()
    plain["gravity"] = 9.81
    with pytest.raises(ContractError, match=r"contract.gravity is not a field; known: schema"):
        PolicyContract.from_json(json.dumps(plain))


def test_a_joint_that_nothing_drives_needs_a_hold_target() -> None:
    names = ("a", "b")
    joints = tuple(make_joint(name) for name in names)
    terms = (make_action("legs", ("a",)),)
    spec = quadruped_contract().action
    with pytest.raises(ContractError, match="joint 'b' has no action term and no hold target"):
        quadruped_contract(joints=joints, action=type(spec)(terms=terms, hold=(), filter=1.0))
    both = (HoldTarget(joint="a", position=0.0), HoldTarget(joint="b", position=0.0))
    with pytest.raises(ContractError, match="joint 'a' already has a position target"):
        quadruped_contract(joints=joints, action=type(spec)(terms=terms, hold=both, filter=1.0))


def test_blocks_of_one_input_stand_together() -> None:
    def block(name: str) -> Any:
        return make_block(make_term("q", "joint_pos"), input=name)

    contract = quadruped_contract(observation=(block("a"), block("a"), block("b")))
    assert contract.inputs() == {"a": 24, "b": 12}
    with pytest.raises(ContractError, match="stand together"):
        quadruped_contract(observation=(block("a"), block("b"), block("a")))


def test_frame_major_has_one_length_for_all() -> None:
    term = make_term("q", "joint_pos", history_length=2)
    with pytest.raises(ContractError, match="frame_major history has one length"):
        make_block(term, history=make_history(3, layout="frame_major"))


def test_lengths_of_the_rich_contract() -> None:
    contract = rich_contract()
    # 3 frames of 3 + 3 + 12 + 2 + 12, 2 of the velocity, and once: attitude, command, three terms
    # of the clock, angles, flag, constant, and its sines and cosines.
    assert contract.inputs() == {
        "obs": 3 * 32 + 2 * 3 + 4 + 3 + 3 * 2 + 3 + 1 + 2 + 4,
        "past": 2 * (3 + 11 + 11 + 1),
    }
    assert contract.num_actions == 11
    assert contract.decimation == 4
    assert contract.delay_steps == 2
    np.testing.assert_array_equal(contract.joint_array("kp"), np.arange(20.0, 32.0))
    assert np.isneginf(
        quadruped_contract(
            joints=(make_joint("a", lower=None),),
            action=type(contract.action)(terms=(make_action("x", ("a",)),), hold=(), filter=1.0),
        ).joint_array("lower")
    )


def test_separate_norms_need_three_channels() -> None:
    changes = {"phase.stand_norm": "separate", "phase.stand_channels": ["lin_vel_x", "ang_vel_z"]}
    with pytest.raises(ContractError, match="needs three channels to decide, there are 2"):
        edited(rich_contract(), changes)
