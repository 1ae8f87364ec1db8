"""Faults that users of other stacks reported, each as a case that is caught or cannot happen."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.importers.model import read_model_facts
from export.importers.motion_reference import anchor_rotation
from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput
from robot_runtime.policy.proof import TraceMismatch
from tests.helpers.foreign import LEGS, MOTORS, Case, Network, Step, record, robot_xml

POSE = [0.1, 0.4, -0.1, 0.4]
CONTRACT = """
timing: {control_dt: 0.02, pd_dt: 0.002}
joints: {default_pos: [0.1, 0.4, -0.1, 0.4], kp: 100.0, kd: 2.0}
action: {scale: 0.25, offset: default_pos}
observation: [projected_gravity, joint_pos_rel]
"""


def custom(folder: Path, text: str, dim: int) -> Case:
    case = Case(format="custom", folder=folder)
    case.robot()
    case.files.append(Network(inputs={"obs": dim}, actions=4).save(folder / "policy.onnx"))
    (folder / "user.yaml").write_text(text)
    return case


def run(case: Case) -> Any:
    return case.run(user=(case.folder / "user.yaml",))


@pytest.mark.parametrize("factor", [-1.0, 9.81, -9.81], ids=["upwards", "in m/s2", "both"])
def test_gravity_with_another_sign_or_unit_is_found_out(tmp_path: Path, factor: float) -> None:
    """The record of a runtime that fed gravity as (0, 0, 9.81): the term is named."""
    case = custom(tmp_path, CONTRACT, 7)

    def observe(step: Step) -> Any:
        return np.concatenate([factor * step.gravity, step.pos(LEGS) - POSE])

    case.golden = record(
        tmp_path / "golden.npz",
        observe,
        Network(inputs={"obs": 7}, actions=4),
        lambda a: POSE + 0.25 * a,
        actions=4,
        order=LEGS,
    )
    with pytest.raises(TraceMismatch, match=r"boundary A .*projected_gravity\["):
        run(case)
    # Said in the contract it is right, and noted.
    scaled = CONTRACT.replace("projected_gravity", f"projected_gravity: {{scale: {factor}}}")
    (tmp_path / "user.yaml").write_text(scaled)
    imported = run(case)
    assert imported.replayed.report.rows == 12
    assert any(f"scales gravity by {factor:g}" in note for note in imported.notes)


def test_actions_relative_to_the_measured_pose(tmp_path: Path) -> None:
    """Two kinds of targets that look alike while the robot stands: from the default, from here."""
    relative = CONTRACT.replace("offset: default_pos", "offset: 0.0, relative_to: measured")
    case = custom(tmp_path, relative, 7)
    seen: list[Step] = []

    def observe(step: Step) -> Any:
        seen.append(step)
        return np.concatenate([step.gravity, step.pos(LEGS) - POSE])

    case.golden = record(
        tmp_path / "golden.npz",
        observe,
        Network(inputs={"obs": 7}, actions=4),
        lambda a: seen[-1].pos(LEGS) + 0.25 * a,
        actions=4,
        order=LEGS,
    )
    assert run(case).replayed.report.target < 1e-6
    (tmp_path / "user.yaml").write_text(CONTRACT)
    with pytest.raises(TraceMismatch, match=r"target.*left_hip"):
        run(case)


def test_an_imu_that_moves_against_the_base_is_refused(tmp_path: Path) -> None:
    """A torso's IMU does not measure the base: the body of the IMU is part of the contract."""
    case = custom(tmp_path, CONTRACT, 7)
    xml = robot_xml(LEGS, MOTORS, waist="waist").replace(
        '<body name="torso" quat="0.6 0.8 0 0">',
        '<body name="torso" quat="0.6 0.8 0 0"><site name="chest"/>',
    )
    case.robot(xml.replace('<gyro name="gyro" site="imu"/>', '<gyro name="gyro" site="chest"/>'))
    case.settings = [
        "joints.others=passive", f"joints.names=[{', '.join(LEGS)}]",
        "observation=[projected_gravity: {sensor: imu}, joint_pos_rel]",
    ]  # fmt: skip
    with pytest.raises(BadInput, match=r"imu\.site: 'chest' is on 'torso', which moves against"):
        run(case)
    # Of the base itself it can be computed.
    case.settings[-1] = "observation=[projected_gravity, joint_pos_rel]"
    assert run(case).policy.contract.robot.base_body == "base"


def test_the_torsos_attitude_follows_from_the_pelvis_and_the_waist(tmp_path: Path) -> None:
    """An upright pelvis and a waist turned by half a radian: the torso looks half a radian left."""
    upright = robot_xml(LEGS, MOTORS, waist="waist")
    for turned in ('quat="0.8 0 0.6 0"', 'quat="0.6 0.8 0 0"'):
        upright = upright.replace(turned, "")
    path = tmp_path / "scene.xml"
    path.write_text(upright)
    chain = read_model_facts(str(path)).chain("torso")
    matrix = anchor_rotation(chain, ["waist"], np.array([1.0, 0.0, 0.0, 0.0, 0.5]))
    yaw = math.atan2(matrix[1, 0], matrix[0, 0])
    assert yaw == pytest.approx(0.5, abs=1e-6)
    assert matrix[2, 2] == pytest.approx(1.0, abs=1e-9)


def test_gains_by_pattern_follow_the_names_whatever_their_order(tmp_path: Path) -> None:
    """Regular expressions in one order, joints in another, as configuration files have them."""
    text = CONTRACT.replace("kp: 100.0", 'kp: {".*_knee": 150.0, "left_.*hip": 90.0, ".*": 1.0}')
    case = custom(tmp_path, text, 7)
    with pytest.raises(BadInput, match=r"joints\.kp: 2 patterns fit joint 'left_hip'"):
        run(case)
    (tmp_path / "user.yaml").write_text(text.replace('".*": 1.0', "right_hip: 80.0"))
    order = ("right_knee", "left_hip", "left_knee", "right_hip")
    case.settings = [f"joints.names=[{', '.join(order)}]", "joints.default_pos=0.0"]
    contract = run(case).policy.contract
    assert {j.name: j.kp for j in contract.joints} == {
        "left_hip": 90.0,
        "right_hip": 80.0,
        "left_knee": 150.0,
        "right_knee": 150.0,
    }
    assert contract.joint_names == order


def test_a_joint_without_a_motor_among_the_names_is_said(tmp_path: Path) -> None:
    """A stack that lists every joint of a robot, and gains of those with an actuator."""
    case = Case(format="mjlab", folder=tmp_path)
    case.robot(robot_xml((*LEGS, "tail"), MOTORS))
    metadata = {
        "joint_names": ",".join((*LEGS, "tail")),
        "joint_stiffness": "40.0,40.0,40.0,40.0",
        "joint_damping": "1.0,1.0,1.0,1.0",
        "default_joint_pos": "0,0,0,0,0",
        "observation_names": "base_ang_vel",
        "action_scale": "0.5",
    }
    network = Network(inputs={"obs": 3}, actions=4, metadata=metadata)
    case.files.append(network.save(tmp_path / "policy.onnx"))
    with pytest.raises(BadInput, match="has 4 numbers for 5 joint names; tail of them no actuator"):
        case.run()


def test_the_networks_period_is_never_guessed(tmp_path: Path) -> None:
    case = custom(tmp_path, CONTRACT.replace("control_dt: 0.02, ", ""), 7)
    with pytest.raises(MissingFieldsError, match=r"timing\.control_dt"):
        run(case)


def test_a_checkpoint_of_a_graphics_card_is_imported_on_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors that say they belong on another device, as torch writes them there."""
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    net = torch.nn.Linear(7, 4)
    state = {f"actor.0.{key}": value for key, value in net.state_dict().items()}
    critic = {"critic.0.weight": torch.zeros(1, 7), "critic.0.bias": torch.zeros(1)}
    content = {"model_state_dict": {"std": torch.ones(4), **state, **critic}, "iter": 1}
    torch.save({**content, "infos": None}, tmp_path / "model_1.pt")
    monkeypatch.undo()
    assert b"cuda:0" in (tmp_path / "model_1.pt").read_bytes()
    case = custom(tmp_path, CONTRACT, 7)
    case.format, case.files = "rsl_rl", [tmp_path / "model_1.pt"]
    case.settings = [f"joints.names=[{', '.join(LEGS)}]"]
    network = run(case).policy.network()
    obs = np.linspace(-1.0, 1.0, 7, dtype=np.float32)
    with torch.no_grad():
        expected = net(torch.from_numpy(obs)).numpy()
    # One float32 network in two libraries.
    np.testing.assert_allclose(network(obs), expected, atol=1e-6)
