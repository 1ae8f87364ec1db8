"""holosoma, against its runtime as slow loops."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput
from tests.helpers.foreign import LEGS, MOTORS, Case, Network, Step, record

HOLO_CONFIG: dict[str, Any] = {
    "robot": {
        "dof_names": list(MOTORS),
        "default_dof_angles": [-0.1, 0.4, 0.1, 0.4],
        "joint2motor": [0, 1, 2, 3],
    },
    "observation": {
        "obs_dict": {
            "actor_obs": [
                "base_ang_vel",
                "projected_gravity",
                "command_lin_vel",
                "command_ang_vel",
                "dof_pos",
                "dof_vel",
                "actions",
                "sin_phase",
                "cos_phase",
            ]
        },
        "obs_dims": {"sin_phase": 1, "cos_phase": 1},
        "obs_scales": {"base_ang_vel": 0.25, "dof_vel": 0.05, "actions": 1.0},
        "history_length_dict": {"actor_obs": 3},
    },
    "task": {"rl_rate": 50.0, "policy_action_scale": 0.25, "gait_period": 1.0},
}


class Holosoma:
    """The stack's inference loop: terms by name, zeros in the past, two legs' clocks."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.past: dict[str, list[np.ndarray[Any, Any]]] = {}
        self.phase, self.stood = np.array([0.0, math.pi]), False

    def __call__(self, step: Step) -> np.ndarray[Any, Any]:
        if np.linalg.norm(step.cmd[:2]) < 0.01 and abs(step.cmd[2]) < 0.01:
            self.phase, self.stood = np.array([math.pi, math.pi]), True
        elif self.stood:
            self.phase, self.stood = np.array([0.0, math.pi]), False
        else:
            moved = self.phase + 2 * math.pi / (50 * 1.0)
            self.phase = np.fmod(moved + math.pi, 2 * math.pi) - math.pi
        frame = {
            "base_ang_vel": step.gyro * 0.25,
            "projected_gravity": step.gravity,
            "command_lin_vel": step.cmd[:2],
            "command_ang_vel": step.cmd[2:],
            "dof_pos": step.pos(LEGS) - [0.1, 0.4, -0.1, 0.4],
            "dof_vel": step.vel(LEGS) * 0.05,
            "actions": np.clip(step.last, -100, 100),
            "sin_phase": np.sin(self.phase),
            "cos_phase": np.cos(self.phase),
        }
        parts = []
        for name in sorted(frame):
            empty = [np.zeros_like(frame[name])] * self.history
            self.past[name] = [*self.past.get(name, empty)[1:], frame[name]]
            parts += self.past[name]
        return np.concatenate(parts)


def holosoma_case(folder: Path, dim: int, config: dict[str, Any] | None) -> Case:
    case = Case(format="holosoma", folder=folder)
    case.robot()
    metadata = {
        "dof_names": json.dumps(LEGS),
        "kp": json.dumps([100.0, 150.0, 100.0, 150.0]),
        "kd": json.dumps([2.0, 3.0, 2.0, 3.0]),
        "command_ranges": json.dumps(
            {"lin_vel_x": [-1.0, 1.0], "lin_vel_y": [-1.0, 1.0], "ang_vel_yaw": [-1.0, 1.0]}
        ),
        "robot_urdf": "<robot/>",
    }
    network = Network(inputs={"actor_obs": dim}, actions=4, output="action", metadata=metadata)
    case.files.append(network.save(folder / "policy.onnx"))
    if config is not None:
        case.write("config.yaml", yaml.safe_dump(config))
    case.settings = ["timing.pd_dt=0.005"]
    return case


def test_holosoma_with_its_config(tmp_path: Path) -> None:
    case = holosoma_case(tmp_path, 75, HOLO_CONFIG)
    commands = np.random.default_rng(3).uniform(-0.5, 0.5, size=(20, 3))
    commands[4:7] = 0.0
    commands[9] = [0.005, 0.005, 0.009]
    case.golden = record(
        tmp_path / "golden.npz",
        Holosoma(3),
        Network(inputs={"obs": 75}, actions=4),
        lambda a: np.array([0.1, 0.4, -0.1, 0.4]) + 0.25 * np.clip(a, -100, 100),
        actions=4,
        order=LEGS,
        rows=20,
        commands=commands,
    )
    imported = case.run()
    assert imported.fields["observation.0.history.fill"].startswith("default: the stack's")
    assert imported.fields["action.terms.0.scale"] == "file: config.yaml task policy_action_scale"


def test_holosoma_gains_of_the_config_override_those_of_the_file(tmp_path: Path) -> None:
    """As in the stack; they stand in the config's order of joints, which is another one."""
    robot = {**HOLO_CONFIG["robot"], "motor_kp": [1.0, 2.0, 3.0, 4.0], "motor_kd": [0.5] * 4}
    case = holosoma_case(tmp_path, 75, {**HOLO_CONFIG, "robot": robot})
    imported = case.run()
    by_name = {joint.name: joint.kp for joint in imported.policy.contract.joints}
    assert by_name == dict(zip(MOTORS, [1.0, 2.0, 3.0, 4.0], strict=True))
    assert any("contradiction: joints.kp" in n and "motor_kp" in n for n in imported.notes)


def test_holosoma_without_a_config_asks_for_what_only_the_config_has(tmp_path: Path) -> None:
    case = holosoma_case(tmp_path, 25, None)
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert {question.path for question in missing.value.questions} == {
        "joints.default_pos",
        "action.scale",
        "observation.base_ang_vel.scale",
        "observation.dof_vel.scale",
        "phase.period",
        "timing.control_dt",
    }


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, r"metadata 'dof_names' is missing; there are none"),
        ({"dof_names": "[1]"}, r"dof_names: expected different names, found \[1\]"),
        ({"dof_names": "[" * 5000}, r"dof_names: (nested too deep|not JSON)"),
        ({"dof_names": '["elbow"]'}, r"has no joint 'elbow'; it has left_hip"),
        ({"dof_names": json.dumps(LEGS), "kp": "[NaN]"}, r"kp: expected 4 numbers, found 1"),
    ],
)
def test_holosoma_metadata_that_are_wrong(
    tmp_path: Path, metadata: dict[str, str], message: str
) -> None:
    case = holosoma_case(tmp_path, 25, None)
    Network(inputs={"obs": 25}, actions=4, metadata=metadata).save(case.files[0])
    with pytest.raises(BadInput, match=message):
        case.run()


def test_holosoma_scales_of_the_file_where_no_config_has_any(tmp_path: Path) -> None:
    """The runtime takes the config's; a file that contradicts it is noted."""
    case = holosoma_case(tmp_path, 75, HOLO_CONFIG)
    (path,) = [file for file in case.files if file.suffix == ".onnx"]
    model = onnx.load(path)
    entry = model.metadata_props.add()
    entry.key, entry.value = "action_scale", "[0.5, 0.3, 0.5, 0.3]"
    onnx.save(model, path)
    plain = case.run(output=tmp_path / "plain.onnx")
    assert "contradiction: action.scale: file (config.yaml task policy_action_scale)" in " ".join(
        plain.notes
    )
    case.write("config.yaml", yaml.safe_dump({**HOLO_CONFIG, "task": {"rl_rate": 50.0}}))
    case.settings += ["phase.period=1.0"]
    alone = case.run().policy.contract.action.terms[0].scale
    assert alone == (0.5, 0.3, 0.5, 0.3)


def test_holosoma_calibration_is_left_to_the_driver(tmp_path: Path) -> None:
    robot = {**HOLO_CONFIG["robot"], "joint_offsets_deg": {"left_knee": 2.0}}
    case = holosoma_case(tmp_path, 75, {**HOLO_CONFIG, "robot": robot})
    assert any("joint_offsets_deg: of the robot's motors" in note for note in case.run().notes)


def test_holosoma_motors_go_by_name(tmp_path: Path) -> None:
    """The config counts its joints in its own order."""
    robot = {**HOLO_CONFIG["robot"], "joint2motor": [5, 6, 7, 8]}
    case = holosoma_case(tmp_path, 75, {**HOLO_CONFIG, "robot": robot})
    found = {joint.name: joint.motor for joint in case.run().policy.contract.joints}
    assert found == dict(zip(MOTORS, [5, 6, 7, 8], strict=True))


def test_holosoma_switches_for_debugging_are_said(tmp_path: Path) -> None:
    debug = {"force_upright_imu": True, "force_zero_action": False}
    config = {**HOLO_CONFIG, "task": {**HOLO_CONFIG["task"], "debug": debug}}
    notes = " ".join(holosoma_case(tmp_path, 75, config).run().notes)
    assert "debug force_upright_imu: not read" in notes
    assert "force_zero_action" not in notes


def test_holosoma_limits_that_its_runtime_does_not_apply_are_compared(tmp_path: Path) -> None:
    robot = {**HOLO_CONFIG["robot"], "motor_effort_limit": [30.0, 30.0, 300.0, 30.0]}
    notes = holosoma_case(tmp_path, 75, {**HOLO_CONFIG, "robot": robot}).run().notes
    fewer = {**robot, "motor_effort_limit": [30.0], "joint2motor": [0]}
    assert holosoma_case(tmp_path / "b", 75, {**HOLO_CONFIG, "robot": fewer}).run()
    said = "joints.effort_limit: model (scene.xml force ranges) says 30.0 for left_hip, file"
    assert any(said in note and "says 300.0" in note for note in notes)
