"""The contract in other runtimes' words, read back by our own importers."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import yaml

from export.formats.deploy_yaml import deploy_yaml
from export.formats.leapp import leapp_yaml
from export.formats.metadata import controller_metadata
from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from tests.helpers.contracts import (
    edited,
    make_block,
    make_history,
    make_term,
    quadruped_contract,
    rich_contract,
)
from tests.helpers.foreign import Case, Network, robot_xml
from tests.helpers.policies import mlp_model


def odd_contract(**changes: Any) -> PolicyContract:
    """A plain policy whose numbers have all their digits, and whose motors are in another order."""
    plain = quadruped_contract(**changes)
    joints = tuple(
        dataclasses.replace(
            joint,
            motor=(i * 5) % 12,
            kp=40.17923863450712 + i,
            kd=2.557889765831 + i,
            default_pos=0.1 * i - 0.37312345678,
            effort_limit=None,
            lower=None,
            upper=None,
            axis=(0.0, 1.0, 0.0),
        )
        for i, joint in enumerate(plain.joints)
    )
    (legs,) = plain.action.terms
    scale = tuple(0.0745008703 * (i + 1) for i in range(12))
    offset = tuple(joint.default_pos for joint in joints)
    legs = dataclasses.replace(legs, scale=scale, offset=offset)
    action = dataclasses.replace(plain.action, terms=(legs,))
    return dataclasses.replace(plain, joints=joints, action=action)


def import_back(folder: Path, contract: PolicyContract, name: str, **files: str) -> PolicyContract:
    """Import a policy of the contract's lengths from files in another format."""
    case = Case(format=name, folder=folder)
    motors = sorted(contract.joints, key=lambda joint: joint.motor or 0)
    case.robot(robot_xml(contract.joint_names, [j.name for j in motors]).replace("-2 2", "-9 9"))
    for path, text in files.items():
        case.write(path.replace("_yaml", ".yaml"), text)
    metadata = controller_metadata(contract) if name == "mjlab" else {}
    network = Network(inputs=contract.inputs(), actions=12, metadata=metadata)
    case.files.append(network.save(folder / "policy.onnx"))
    case.settings = ["timing.pd_dt=0.005"]
    if name == "mjlab":
        case.settings = ["timing={control_dt: 0.02, pd_dt: 0.005}"]
        ranges = {c.name: [c.lower, c.upper] for c in contract.commands}
        case.settings.append(f"commands={yaml.safe_dump(ranges, default_flow_style=True)}")
    return case.run().policy.contract


def test_deploy_yaml_comes_back_to_the_last_digit(tmp_path: Path) -> None:
    contract = odd_contract()
    again = import_back(tmp_path, contract, "unitree_rl_lab", deploy_yaml=deploy_yaml(contract))
    for field in ("kp", "kd", "default_pos"):
        assert again.joint_array(field).tolist() == contract.joint_array(field).tolist()
    assert [j.motor for j in again.joints] == [j.motor for j in contract.joints]
    assert again.action.terms[0].scale == contract.action.terms[0].scale
    assert again.commands == contract.commands
    sources = [(t.source, t.clip) for t in again.observation[0].terms]
    assert sources == [(t.source, t.clip) for t in contract.observation[0].terms]


@pytest.mark.parametrize("layout", ["term_major", "frame_major"])
def test_deploy_yaml_with_histories_and_clips(tmp_path: Path, layout: str) -> None:
    block = make_block(
        make_term("base_ang_vel", "base_ang_vel", clip=(-1.5, 2.0), scale=(0.25, 0.5, 1.0)),
        make_term("joint_vel", "joint_vel", clip=(-1.0, 1.0), clip_first=False, scale=(0.05,)),
        make_term("last_action", "last_action"),
        history=make_history(4, layout=layout),
    )
    contract = odd_contract(observation=(block,), commands=())
    again = import_back(tmp_path, contract, "unitree_rl_mjlab", deploy_yaml=deploy_yaml(contract))
    (mine,) = again.observation
    assert mine.history == block.history
    for ours, theirs in zip(mine.terms, block.terms, strict=True):
        assert (ours.clip, ours.clip_first) == (theirs.clip, theirs.clip_first)
        count = contract.term_dim(theirs) // len(theirs.scale)
        assert ours.scale == theirs.scale * (count if len(theirs.scale) == 1 else 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action.filter": 0.5}, "cannot say a filter on actions"),
        ({"actuator.target_filter": 0.5}, "cannot say a filter on targets"),
        ({"action.terms.0.relative_to": "measured"}, "relative to the measured position"),
        ({"observation.0.clip": 3.0}, "cannot say bounds on whole frames"),
        ({"observation.0.terms.0.sensor": "imu"}, "no term for 'base_ang_vel'"),
        ({"observation.0.terms.0.source": "euler_xyz"}, r"no term for 'base_ang_vel' \(euler_xyz"),
        ({"observation.0.history.includes_current": False}, "cannot say a history with gaps"),
        ({"commands.0.max_rate": 1.0}, "a limit on the change of commands"),
        ({"observation.0.terms.4.source": "joint_pos_rel"}, "a second joint_pos_rel"),
    ],
)
def test_deploy_yaml_refuses_what_it_cannot_say(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        deploy_yaml(edited(odd_contract(), changes))


def test_metadata_of_controllers_come_back_to_the_last_digit(tmp_path: Path) -> None:
    block = make_block(
        make_term("base_ang_vel", "base_ang_vel", clip=(-1.5, 2.0), scale=(0.25, 0.5, 1 / 3)),
        make_term("projected_gravity", "projected_gravity", history_length=1),
        make_term("joint_pos", "joint_pos_rel"),
        make_term("actions", "last_action"),
        make_term("command", "command"),
        history=make_history(3),
    )
    contract = odd_contract(observation=(block,))
    again = import_back(tmp_path, contract, "mjlab")
    for field in ("kp", "kd", "default_pos"):
        assert again.joint_array(field).tolist() == contract.joint_array(field).tolist()
    assert again.action.terms[0].scale == contract.action.terms[0].scale
    assert again.observation[0].history == block.history
    assert [t.scale for t in again.observation[0].terms] == [t.scale for t in block.terms]
    assert [t.clip for t in again.observation[0].terms] == [t.clip for t in block.terms]
    assert [again.observation[0].length_of(t) for t in again.observation[0].terms] == [
        3,
        1,
        3,
        3,
        3,
    ]


def test_a_leapp_pipeline_names_every_tensor_and_pins_the_model() -> None:
    contract = rich_contract()
    model = mlp_model(contract)
    plain = yaml.safe_load(leapp_yaml(contract, model, "policy.onnx"))
    node = plain["models"]["policy"]
    assert {t["name"]: t["shape"][1] for t in node["inputs"]} == contract.inputs()
    assert all(len(t["element_names"][1]) == t["shape"][1] for t in node["inputs"])
    assert node["outputs"][0]["shape"] == [1, contract.num_actions]
    assert node["parameters"]["sha256sum"] == hashlib.sha256(model).hexdigest()
    configs = plain["pipeline"]["configs"]
    assert configs["frequency"] == pytest.approx(50.0)
    assert configs["surefoot"]["contract"] == yaml.safe_load(contract.to_json())
    targets = configs["surefoot"]["targets"]
    assert [t["kind"].rpartition("/")[2] for t in targets] == [
        "position",
        "position",
        "velocity",
        "effort",
    ]
    np.testing.assert_array_equal(targets[0]["kp"], contract.joint_array("kp")[:8])


def test_an_imported_file_carries_the_keys_of_those_controllers_too(tmp_path: Path) -> None:
    contract = odd_contract()
    again = import_back(tmp_path, contract, "unitree_rl_lab", deploy_yaml=deploy_yaml(contract))
    session = ort.InferenceSession(str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"])
    keys = session.get_modelmeta().custom_metadata_map
    assert tuple(keys["joint_names"].split(",")) == again.joint_names
    kp, kd = again.joint_array("kp"), again.joint_array("kd")
    for key, values in (("joint_stiffness", kp), ("joint_damping", kd)):
        assert [float(v) for v in keys[key].split(",")] == values.tolist()
    assert keys["observation_names"].split(",")[-1] == "actions"
    assert len(keys["observation_terms_scale"].split(",")) == len(again.observation[0].terms)
