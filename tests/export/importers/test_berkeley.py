"""Berkeley Humanoid Lite, against its runtime as slow loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from export.importers.sheet import MissingFieldsError
from tests.helpers.foreign import VELOCITY, Case, Network, Step, record

BHL: dict[str, Any] = {
    "policy_checkpoint_path": "checkpoints/policy.onnx",
    "control_dt": 0.004,
    "policy_dt": 0.04,
    "physics_dt": 0.0005,
    "num_joints": 4,
    "joints": ["left_knee", "left_hip", "right_knee", "right_hip"],
    "joint_kp": [20.0, 21.0, 20.0, 21.0],
    "joint_kd": [2.0] * 4,
    "effort_limits": [6.0] * 4,
    "default_joint_positions": [0.4, 0.1, 0.4, -0.1],
    "num_observations": 21,
    "history_length": 0,
    "num_actions": 4,
    "action_scale": 0.25,
    "action_indices": [0, 1, 2, 3],
    "action_limit_lower": -0.5,
    "action_limit_upper": 0.6,
}


def bhl_case(folder: Path, **changes: Any) -> Case:
    config = {**BHL, **changes}
    case = Case(format="berkeley_humanoid_lite", folder=folder)
    case.robot()
    case.write("configs/policy.yaml", yaml.safe_dump(config))
    dim = config["num_observations"] * (config["history_length"] + 1)
    network = Network(inputs={"onnx::Gemm_0": dim}, actions=config["num_actions"], output="11")
    network.save(folder / "checkpoints/policy.onnx")
    case.settings = [VELOCITY]
    return case


def golden(folder: Path, names: list[str], pose: Any) -> Path:
    """What its simulator does with joints in an order and at a default pose."""

    def observe(step: Step) -> Any:
        q, last = step.pos(names) - pose, np.clip(step.last, -0.5, 0.6)
        return np.concatenate([step.cmd, step.gyro, step.gravity, q, step.vel(names), last])

    return record(
        folder / "golden.npz",
        observe,
        Network(inputs={"obs": 21}, actions=4),
        lambda a: pose + 0.25 * np.clip(a, -0.5, 0.6),
        actions=4,
        order=names,
    )


def test_berkeley_humanoid_lite(tmp_path: Path) -> None:
    case = bhl_case(tmp_path)
    names, pose = BHL["joints"], np.array(BHL["default_joint_positions"])

    case.golden = golden(tmp_path, names, pose)
    imported = case.run()
    contract = imported.policy.contract
    assert (contract.timing.control_dt, contract.timing.pd_dt) == (0.04, 0.0005)
    assert any("effort_limit" in n and "6.0" in n and "30.0" in n for n in imported.notes)


def test_berkeley_humanoid_lite_with_frames_of_the_past(tmp_path: Path) -> None:
    """``history_length`` counts past frames: zeros at first, the oldest in front."""
    case = bhl_case(tmp_path, history_length=2)
    names, pose = BHL["joints"], np.array(BHL["default_joint_positions"])
    buffer = np.zeros(3 * 21)

    def observe(step: Step) -> Any:
        q, last = step.pos(names) - pose, np.clip(step.last, -0.5, 0.6)
        parts = [buffer[21:], step.cmd, step.gyro, step.gravity, q, step.vel(names), last]
        buffer[:] = np.concatenate(parts)
        return buffer.copy()

    case.golden = record(
        tmp_path / "golden.npz",
        observe,
        Network(inputs={"obs": 63}, actions=4),
        lambda a: pose + 0.25 * np.clip(a, -0.5, 0.6),
        actions=4,
        order=names,
    )
    replayed = case.run().replayed
    assert replayed is not None
    # States are float32.
    assert replayed.report.observation < 1e-6


def test_berkeley_humanoid_lite_with_fewer_actions_holds_the_rest(tmp_path: Path) -> None:
    case = bhl_case(tmp_path, num_actions=2, action_indices=[1, 3], num_observations=15)
    contract = case.run().policy.contract
    assert contract.action_joints == ("left_hip", "right_hip")
    assert [(h.joint, h.position) for h in contract.action.hold] == [
        ("left_knee", 0.4),
        ("right_knee", 0.4),
    ]
    assert contract.observation[0].terms[3].joints == ("left_hip", "right_hip")


def test_berkeley_humanoid_lite_with_one_gain_for_all_and_a_scale_that_is_asked_for(
    tmp_path: Path,
) -> None:
    case = bhl_case(tmp_path, joint_kp=20.0, joint_kd=2.0, action_scale=None)
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [q.path for q in missing.value.questions] == ["action.scale"]
    case.settings.append("action.scale=0.25")
    assert case.run().policy.contract.joint_array("kp").tolist() == [20.0] * 4


def test_berkeley_humanoid_lite_with_actions_in_another_order(tmp_path: Path) -> None:
    """Its simulator hands over positions and velocities in the order of the actions."""
    case = bhl_case(tmp_path, action_indices=[3, 2, 1, 0])
    names = BHL["joints"][::-1]
    pose = np.array(BHL["default_joint_positions"])[::-1]

    case.golden = golden(tmp_path, names, pose)
    assert case.run().policy.contract.action_joints == tuple(names)


def test_berkeley_humanoid_lite_says_what_its_simulator_does_with_idle_joints(
    tmp_path: Path,
) -> None:
    case = bhl_case(tmp_path, num_actions=2, action_indices=[1, 3], num_observations=15)
    assert any("holds them at 0: left_knee, right_knee" in note for note in case.run().notes)
