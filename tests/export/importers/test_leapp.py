"""LEAPP pipelines: raw measurements in, joint targets out, everything else inside the graph."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import helper, numpy_helper

from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput, Refused
from tests.helpers.foreign import VELOCITY, Case, Step, record, tensor
from tests.helpers.reference import rotation_matrix

POSE = np.array([0.1, 0.4, -0.1, 0.4], np.float32)
ORDER = ("left_knee", "left_hip", "right_knee", "right_hip")
COLUMNS = [1, 0, 3, 2]


class Pipeline:
    """Last action fed back, gravity from the quaternion, targets around a pose, constant gains."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self.matrix = (0.3 * rng.normal(size=(4 + 4 + 3 + 3 + 3 + 4, 4))).astype(np.float32)
        self.kp = np.array([[150.0, 100.0, 150.0, 100.0]], np.float32)
        self.kd = np.array([[3.0, 2.0, 3.0, 2.0]], np.float32)

    def proto(self) -> onnx.ModelProto:
        # Gravity in the body from a quaternion x, y, z, w: its outer product times coefficients.
        coefficients = np.zeros((16, 3), np.float32)
        for (i, j), row in {
            (3, 1): (2, 0, 0),
            (0, 2): (-2, 0, 0),
            (3, 0): (0, -2, 0),
            (1, 2): (0, -2, 0),
            (0, 0): (0, 0, 1),
            (1, 1): (0, 0, 1),
            (2, 2): (0, 0, -1),
            (3, 3): (0, 0, -1),
        }.items():
            coefficients[4 * i + j] = row
        weights = {
            "column": np.array([4, 1]),
            "row": np.array([1, 4]),
            "flat": np.array([1, 16]),
            "coefficients": coefficients,
            "w": self.matrix,
            "pose": POSE[COLUMNS][None],
            "quarter": np.array(0.25, np.float32),
            "kp_value": self.kp,
            "kd_value": self.kd,
        }
        inputs = ["joint_pos", "joint_vel", "ang_vel", "gravity", "command", "last_in"]
        nodes = [
            helper.make_node("Reshape", ["quat", "column"], ["q1"]),
            helper.make_node("Reshape", ["quat", "row"], ["q2"]),
            helper.make_node("MatMul", ["q1", "q2"], ["outer"]),
            helper.make_node("Reshape", ["outer", "flat"], ["products"]),
            helper.make_node("MatMul", ["products", "coefficients"], ["gravity"]),
            helper.make_node("Concat", inputs, ["x"], axis=1),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            helper.make_node("Tanh", ["y"], ["last_out"]),
            helper.make_node("Mul", ["last_out", "quarter"], ["scaled"]),
            helper.make_node("Add", ["scaled", "pose"], ["targets"]),
            helper.make_node("Identity", ["kp_value"], ["kp"]),
            helper.make_node("Identity", ["kd_value"], ["kd"]),
        ]
        sizes = {"joint_pos": 4, "joint_vel": 4, "ang_vel": 3, "quat": 4, "command": 3}
        sizes["last_in"] = 4
        graph = helper.make_graph(
            nodes,
            "policy",
            [tensor(name, [1, size]) for name, size in sizes.items()],
            [tensor(name, [1, 4]) for name in ("targets", "kp", "kd", "last_out")],
            [numpy_helper.from_array(value, name) for name, value in weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)


def described(name: str, shape: list[int], **fields: Any) -> dict[str, Any]:
    return {"name": name, "shape": shape, "dtype": "float32", **fields}


def plain(digest: str) -> dict[str, Any]:
    joints = [None, list(ORDER)]
    return {
        "models": {
            "walk": {
                "inputs": [
                    described(
                        "joint_pos", [1, 4], kind="state/joint/position", element_names=joints
                    ),
                    described(
                        "joint_vel", [1, 4], kind="state/joint/velocity", element_names=joints
                    ),
                    described(
                        "ang_vel",
                        [1, 3],
                        kind="state/body/angular_velocity",
                        element_names=[["x", "y", "z"]],
                        isaaclab_connection="state:robot:root_ang_vel_b",
                    ),
                    described(
                        "quat",
                        [1, 4],
                        kind="state/body/rotation",
                        element_names=[["qx", "qy", "qz", "qw"]],
                    ),
                    described(
                        "command",
                        [1, 3],
                        kind="command/body/velocity",
                        element_names=[["lin_x", "lin_y", "ang_z"]],
                    ),
                    described("last_in", [1, 4]),
                ],
                "outputs": [
                    described(
                        "targets", [1, 4], kind="target/joint/position", element_names=joints
                    ),
                    described("kp", [1, 4], kind="kp", element_names=joints),
                    described("kd", [1, 4], kind="kd", element_names=joints),
                    described("last_out", [1, 4]),
                ],
                "parameters": {
                    "backend": "onnx",
                    "model_path": "./walk.onnx",
                    "md5sum": "",
                    "sha256sum": digest,
                },
            }
        },
        "pipeline": {
            "data_flow": {},
            "feedback_flow": {"walk/last_out": ["walk/last_in"]},
            "inputs": {"walk": ["joint_pos", "joint_vel", "ang_vel", "quat", "command"]},
            "outputs": {"walk": ["targets", "kp", "kd"]},
            "configs": {"frequency": 50},
        },
        "system information": {"leapp version": "0.7.2"},
    }


def leapp_case(folder: Path, change: Any = None) -> Case:
    case = Case(format="leapp", folder=folder)
    case.robot()
    model = Pipeline().proto().SerializeToString()
    content = copy.deepcopy(plain(hashlib.sha256(model).hexdigest()))
    if change:
        change(content)
    case.write("walk.yaml", yaml.safe_dump(content, sort_keys=False))
    (folder / "walk.onnx").write_bytes(model)
    case.settings = [
        "timing.pd_dt=0.005",
        "joints.default_pos={'.*hip': 0.0, '.*knee': 0.4}",
        VELOCITY,
    ]
    return case


def test_a_pipeline_reproduces_its_record(tmp_path: Path) -> None:
    case = leapp_case(tmp_path)
    pipeline = Pipeline()
    last = np.zeros(4)

    def observe(step: Step) -> Any:
        w, x, y, z = step.quat
        return [*step.pos(ORDER), *step.vel(ORDER), *step.gyro, x, y, z, w, *step.cmd]

    def act(obs: Any) -> Any:
        nonlocal last
        x, y, z, w = obs[11:15].astype(float)
        gravity = rotation_matrix(np.array([w, x, y, z])).T @ [0.0, 0.0, -1.0]
        row = np.concatenate([obs[:11], gravity, obs[15:], last])
        last = np.tanh(row @ pipeline.matrix)
        return POSE[COLUMNS] + 0.25 * last

    case.golden = record(
        tmp_path / "golden.npz", observe, act, lambda target: target, actions=4, order=ORDER
    )
    imported = case.run()
    contract = imported.policy.contract
    assert contract.joint_names == ORDER
    assert contract.timing.control_dt == 0.02
    assert contract.joint_array("kp").tolist() == [150.0, 100.0, 150.0, 100.0]
    assert contract.imu.quaternion_order == "xyzw"
    assert [(s.input, s.output) for s in contract.network.states] == [("last_in", "last_out")]
    assert contract.action.terms[0].scale == (1.0,) * 4
    assert imported.fields["joints.*.kp"] == "file: output 'kp' of the graph"


def test_what_a_pipeline_does_not_say_is_asked(tmp_path: Path) -> None:
    def change(content: Any) -> None:
        content["pipeline"]["configs"] = {}
        del content["models"]["walk"]["inputs"][2]["isaaclab_connection"]

    case = leapp_case(tmp_path, change)
    case.settings = []
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert {question.path for question in missing.value.questions} == {
        "joints.default_pos",
        "timing.control_dt",
        "timing.pd_dt",
        "observation.ang_vel.frame",
        "commands.lin_vel_x",
        "commands.lin_vel_y",
        "commands.ang_vel_z",
    }


def first(content: Any, key: str, **fields: Any) -> None:
    content["models"]["walk"][key][0].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["models"].update(second=c["models"]["walk"]), "only pipelines of one node"),
        (lambda c: c["models"]["walk"]["parameters"].update(backend="jit"), "only ONNX nodes"),
        (
            lambda c: c["models"]["walk"]["parameters"].update(sha256sum="0" * 64),
            "is not the model that walk.yaml was written for",
        ),
        (lambda c: first(c, "outputs", kind="target/body/position"), "no joint target among"),
        (
            lambda c: first(c, "outputs", element_names=["__temporal_axis__", list(ORDER)]),
            "targets of several steps at once",
        ),
        (lambda c: first(c, "inputs", element_names="abc"), "element_names: expected names"),
        (lambda c: first(c, "inputs", kind="state/wrench"), r"observation.joint_pos.source"),
        (lambda c: c["pipeline"].update(feedback_flow=3), "expected edges, found 3"),
        (lambda c: c["pipeline"]["configs"].update(frequency=0), "frequency: 0.0 is not positive"),
        (lambda c: c.pop("models"), "'models' is missing"),
        (
            lambda c: first(
                c, "inputs", element_names=["__temporal_axis__", list(ORDER)], shape="[1, x]"
            ),
            r"inputs\[0\] shape: not JSON",
        ),
        (lambda c: c["models"]["walk"].update(inputs=[1]), "expected tensor descriptions"),
    ],
)
def test_pipelines_that_cannot_be_a_policy(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises((BadInput, Refused), match=message):
        leapp_case(tmp_path, change).run()


def test_states_that_do_not_begin_at_zero_are_refused(tmp_path: Path) -> None:
    case = leapp_case(tmp_path, lambda c: c["pipeline"].update(initial_values="i.safetensors"))
    header = json.dumps(
        {"walk/last_in": {"dtype": "F32", "shape": [1, 4], "data_offsets": [0, 16]}}
    ).encode()
    for values, fine in (([0.0] * 4, True), ([0.0, 0.5, 0.0, 0.0], False)):
        data = struct.pack("<Q", len(header)) + header + struct.pack("<4f", *values)
        (tmp_path / "i.safetensors").write_bytes(data)
        if fine:
            case.run()
        else:
            with pytest.raises(Refused, match=r"'walk/last_in' .* does not begin at zero"):
                case.run()
    (tmp_path / "i.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(BadInput, match="not a safetensors file"):
        case.run()
