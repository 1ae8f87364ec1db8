"""Motion-tracking policies: the motion stays in the graph, and its terms move there too."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.file import open_policy
from robot_runtime.policy.proof import TraceMismatch
from tests.helpers.foreign import LEGS, MOTORS, Case, Step, record, robot_xml, run_onnx, tensor
from tests.helpers.reference import rotation_matrix

JOINTS = ("waist", *LEGS)
ORDER = ("left_hip", "waist", "right_hip", "left_knee", "right_knee")
POSE = np.array([0.1, 0.0, -0.1, 0.4, 0.4])
SCALE = np.array([0.548, 0.4, 0.548, 0.351, 0.351])
FRAMES = 9
NAMES = "command,motion_anchor_ori_b,base_ang_vel,joint_pos,joint_vel,actions"


class Motion:
    """A random motion and a random network around it, as one graph with a time step."""

    def __init__(self, dim: int, *, last: bool = False) -> None:
        rng = np.random.default_rng(5)
        self.joint_pos = rng.uniform(-0.5, 0.5, size=(FRAMES, 5)).astype(np.float32)
        self.joint_vel = rng.normal(size=(FRAMES, 5)).astype(np.float32)
        quat = rng.normal(size=(FRAMES, 2, 4))
        self.quat = (quat / np.linalg.norm(quat, axis=-1, keepdims=True)).astype(np.float32)
        self.matrix = (rng.normal(size=(dim, 5)) / math.sqrt(dim)).astype(np.float32)
        self.last = last
        self.dim = dim

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        return np.tanh(obs.astype(np.float32) @ self.matrix)

    def save(self, path: Path, names: str = NAMES, **changes: str) -> Path:
        """Write it as the stacks do: clamp the frame, look it up, run the network."""
        tables = {
            "joint_pos": self.joint_pos,
            "joint_vel": self.joint_vel,
            "body_pos_w": np.zeros((FRAMES, 2, 3), np.float32),
            "ref_quat_xyzw" if self.last else "body_quat_w": (
                np.roll(self.quat, -1, axis=-1) if self.last else self.quat
            ),
        }
        nodes = [
            helper.make_node("Min", ["time_step", "end"], ["clamped"]),
            helper.make_node("Cast", ["clamped"], ["whole"], to=onnx.TensorProto.INT64),
            helper.make_node("Reshape", ["whole", "one"], ["frame"]),
            helper.make_node("MatMul", ["obs", "w"], ["hidden"]),
            helper.make_node("Tanh", ["hidden"], ["actions"]),
        ]
        weights = [
            numpy_helper.from_array(np.array([[FRAMES - 1]], np.float32), "end"),
            numpy_helper.from_array(np.array([1]), "one"),
            numpy_helper.from_array(self.matrix, "w"),
        ]
        outputs = [tensor("actions", [1, 5])]
        for name, table in tables.items():
            nodes.append(helper.make_node("Gather", [f"{name}_table", "frame"], [name], axis=0))
            weights.append(numpy_helper.from_array(table, f"{name}_table"))
            outputs.append(tensor(name, [1, *table.shape[1:]]))
        graph = helper.make_graph(
            nodes,
            "policy",
            [tensor("obs", [1, self.dim]), tensor("time_step", [1, 1])],
            outputs,
            weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
        metadata = {
            "run_path": "lab/run",
            "joint_names": ",".join(ORDER),
            "joint_stiffness": "40.179,28.501,40.179,99.098,99.098",
            "joint_damping": "2.558,1.814,2.558,6.309,6.309",
            "default_joint_pos": ",".join(f"{x:.3f}" for x in POSE),
            "command_names": "motion",
            "observation_names": names,
            "observation_history_lengths": ",".join("1" for _ in names.split(",")),
            "action_scale": ",".join(f"{x:.3f}" for x in SCALE),
            "anchor_body_name": "torso",
            "body_names": "base,torso",
            **changes,
        }
        for key, value in metadata.items():
            entry = model.metadata_props.add()
            entry.key, entry.value = key, value
        path.write_bytes(model.SerializeToString())
        return path


class Tracker:
    """The stack's runtime: anchor by forward kinematics, heading laid once, motion frame k."""

    def __init__(self, motion: Motion, names: str = NAMES, *, align: bool = True) -> None:
        self.motion, self.names, self.align = motion, names.split(","), align
        self.turn: NDArray[Any] | None = None

    def __call__(self, step: Step) -> NDArray[Any]:
        k = min(step.k, FRAMES - 1)
        robot = rotation_matrix(step.quat)
        robot = robot @ rotation_matrix(np.array([0.8, 0.0, 0.6, 0.0]))
        half = step.q["waist"] / 2
        robot = robot @ rotation_matrix(np.array([math.cos(half), 0.0, 0.0, math.sin(half)]))
        robot = robot @ rotation_matrix(np.array([0.6, 0.8, 0.0, 0.0]))
        wanted = rotation_matrix(self.motion.quat[k, 1].astype(np.float64))
        if self.turn is None:
            yaw = math.atan2(robot[1, 0], robot[0, 0]) - math.atan2(wanted[1, 0], wanted[0, 0])
            yaw = yaw if self.align else 0.0
            c, s = math.cos(yaw), math.sin(yaw)
            self.turn = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        relative = robot.T @ self.turn @ wanted
        terms = {
            "command": [*self.motion.joint_pos[k], *self.motion.joint_vel[k]],
            "motion_anchor_ori_b": [relative[i, j] for i in range(3) for j in range(2)],
            "base_ang_vel": step.gyro,
            "joint_pos": step.pos(ORDER) - POSE,
            "joint_vel": step.vel(ORDER),
            "actions": step.last,
        }
        return np.concatenate([terms[name] for name in self.names])


def motion_case(folder: Path, motion: Motion, names: str = NAMES, **changes: str) -> Case:
    case = Case(format="beyondmimic", folder=folder)
    case.robot(robot_xml(LEGS, MOTORS, waist="waist"))
    case.files.append(motion.save(folder / "policy.onnx", names, **changes))
    case.settings = ["timing={control_dt: 0.02, pd_dt: 0.005}", "motion.alignment=yaw"]
    return case


@pytest.mark.parametrize("last", [False, True], ids=["wxyz", "xyzw"])
def test_a_motion_policy_reproduces_its_record(tmp_path: Path, last: bool) -> None:
    motion = Motion(34, last=last)
    case = motion_case(tmp_path, motion)
    case.golden = record(
        tmp_path / "golden.npz",
        Tracker(motion),
        motion.act,
        lambda a: POSE + SCALE * a,
        actions=5,
        order=ORDER,
        joints=JOINTS,
        rows=14,  # the motion ends before
    )
    imported = case.run()
    assert imported.replayed is not None
    assert imported.replayed.report.observation < 1e-5
    contract = imported.policy.contract
    # Attitude, the waist, and the terms that a robot measures.
    assert contract.observation_dim == 4 + 1 + 3 + 5 + 5 + 5
    assert contract.commands == ()
    policy = open_policy(tmp_path / "out.onnx")
    network = policy.network()
    row = np.linspace(-1, 1, contract.observation_dim).astype(np.float32)
    first, second = network(row), network(row)
    network.reset()
    assert np.array_equal(network(row), first)
    assert not np.array_equal(first, second)


def test_the_rule_of_alignment_is_asked_for_and_shows_in_the_record(tmp_path: Path) -> None:
    motion = Motion(34)
    case = motion_case(tmp_path, motion)
    case.settings = case.settings[:1]
    with pytest.raises(MissingFieldsError, match=r"motion.alignment .*likely yaw or none"):
        case.run()
    case.golden = record(
        tmp_path / "golden.npz",
        Tracker(motion, align=False),
        motion.act,
        lambda a: POSE + SCALE * a,
        actions=5,
        order=ORDER,
        joints=JOINTS,
    )
    case.settings.append("motion.alignment=yaw")
    with pytest.raises(TraceMismatch, match=r"boundary A .*element 10, row 0"):
        case.run()
    case.settings[-1] = "motion.alignment=none"
    assert case.run().replayed is not None


def test_other_orders_of_terms(tmp_path: Path) -> None:
    names = "actions,base_ang_vel,joint_pos,joint_vel,command,motion_anchor_ori_b"
    motion = Motion(34)
    case = motion_case(tmp_path, motion, names)
    case.golden = record(
        tmp_path / "golden.npz",
        Tracker(motion, names),
        motion.act,
        lambda a: POSE + SCALE * a,
        actions=5,
        order=ORDER,
        joints=JOINTS,
    )
    assert case.run().replayed is not None


def test_the_original_outputs_are_kept(tmp_path: Path) -> None:
    motion = Motion(34)
    case = motion_case(tmp_path, motion)
    case.run()
    feeds = {
        "obs": np.ones((1, 23), np.float32),
        "motion_frame_in": np.array([[4.0]], np.float32),
        "motion_heading_in": np.zeros((1, 3), np.float32),
    }
    results = run_onnx(tmp_path / "out.onnx", feeds)
    assert any(np.array_equal(out.ravel(), motion.joint_pos[4]) for out in results)


@pytest.mark.parametrize(
    ("dim", "names", "changes", "error", "message"),
    [
        (37, f"motion_anchor_pos_b,{NAMES}", {}, Refused, r"robot's place in the world"),
        (34, NAMES.replace("joint_vel", "height_scan"), {}, BadInput, r"the term 'height_scan' is"),
        (33, NAMES, {}, BadInput, r"takes 33 numbers, its terms give 34"),
        (
            34,
            NAMES,
            {"anchor_body_name": "head"},
            BadInput,
            r"anchor 'head' is none of base, torso",
        ),
        (34, NAMES, {"joint_names": ",".join(LEGS)}, BadInput, r"has 5 numbers for 4 joint names"),
        (34, NAMES, {"observation_history_lengths": "1,1,5,1,1,1"}, BadInput, r"with a history"),
    ],
)
def test_motion_policies_that_cannot_be(
    tmp_path: Path,
    dim: int,
    names: str,
    changes: dict[str, str],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        motion_case(tmp_path, Motion(dim), names, **changes).run()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("observation_terms_scale", "1.000,1.000,0.250,1.000,1.000,1.000"),
        ("observation_terms_clip", ",".join(["-inf;inf"] * 5 + ["-5.0;5.0"])),
    ],
)
def test_scaled_terms_of_a_motion_policy_are_refused(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"{key}: a motion policy with the scaled or clipped term"):
        motion_case(tmp_path, Motion(34), **{key: value}).run()
    plain = {"observation_terms_scale": "1.0,1.0,1.0,1.0,1.0,1.0"}
    assert motion_case(tmp_path, Motion(34), **plain).run().policy.contract.commands == ()


def test_early_files_name_no_bodies_and_are_asked_for_them(tmp_path: Path) -> None:
    case = motion_case(tmp_path, Motion(34), anchor_body_name="", body_names="")
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert {q.path for q in missing.value.questions} >= {"motion.anchor", "motion.bodies"}
    case.settings += ["motion.anchor=torso", "motion.bodies=[base, torso]"]
    asked = case.run().policy.contract
    assert asked == motion_case(tmp_path, Motion(34)).run().policy.contract


def test_names_of_fewer_bodies_than_the_motion_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="body_quat_w has 2 orientations, the names are of 3 bodies"):
        motion_case(tmp_path, Motion(34), body_names="base,waist,torso").run()


def holosoma_case(folder: Path, motion: Motion, **config: Any) -> Case:
    case = Case(format="holosoma", folder=folder)
    case.robot(robot_xml(LEGS, MOTORS, waist="waist"))
    motion.quat = motion.quat[:, 1:]
    path = motion.save(folder / "policy.onnx")
    model = onnx.load(str(path))
    del model.metadata_props[:]
    metadata = {
        "dof_names": json.dumps(ORDER),
        "kp": json.dumps([40.0, 28.0, 40.0, 99.0, 99.0]),
        "kd": json.dumps([2.5, 1.8, 2.5, 6.3, 6.3]),
        "action_scale": json.dumps(SCALE.tolist()),
    }
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    path.write_bytes(model.SerializeToString())
    case.files.append(path)
    plain = {
        "robot": {
            "dof_names": list(ORDER),
            "default_dof_angles": POSE.tolist(),
            "motor_kp": None,
            "motion": {"body_name_ref": ["torso"]},
        },
        "task": {
            "rl_rate": 50.0,
            "policy_action_scale": 1.0,
            "action_scales_by_effort_limit_over_p_gain": False,
            "model_path": "",
            "motion_start_timestep": 0,
        },
        **config,
    }
    case.write("config.yaml", yaml.safe_dump(plain))
    case.settings = ["timing.pd_dt=0.005"]
    return case


HOLOSOMA = "actions,base_ang_vel,joint_pos,joint_vel,command,motion_anchor_ori_b"
"""Their terms, sorted by their names: actions, base_ang_vel, dof_pos, dof_vel, motion_*."""


class Late(Tracker):
    """holosoma's runtime: the motion of the call before, compared at one body."""

    def __call__(self, step: Step) -> NDArray[Any]:
        frame = max(0, min(step.k - 1, FRAMES - 1))
        return super().__call__(dataclasses.replace(step, k=frame))


def test_a_motion_policy_of_holosoma(tmp_path: Path) -> None:
    motion = Motion(34, last=True)
    quat = motion.quat
    case = holosoma_case(tmp_path, motion)
    motion.quat = quat
    case.golden = record(
        tmp_path / "golden.npz",
        Late(motion, HOLOSOMA),
        motion.act,
        lambda a: POSE + SCALE * np.clip(a, -100, 100),
        actions=5,
        order=ORDER,
        joints=JOINTS,
        rows=14,
    )
    imported = case.run()
    replayed = imported.replayed
    assert replayed is not None
    # States are float32, and the anchor hangs on three of them.
    assert replayed.report.observation < 1e-5
    assert imported.fields["action.terms.0.scale"].startswith("file: policy.onnx metadata")
    case.settings.append("motion.delay=0")
    with pytest.raises(TraceMismatch):
        case.run()


def test_what_a_motion_policy_of_holosoma_leaves_open(tmp_path: Path) -> None:
    case = holosoma_case(tmp_path, Motion(34, last=True), robot={"dof_names": list(ORDER)})
    with pytest.raises(MissingFieldsError, match=r"motion\.anchor"):
        case.run()
    case.settings.append("motion.anchor=torso")
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [q.path for q in missing.value.questions] == ["joints.default_pos"]
    task = {"motion_end_timestep": 10, "rl_rate": 50.0}
    ended = holosoma_case(tmp_path / "end", Motion(34, last=True), task=task)
    assert any("motion_end_timestep: not read" in note for note in ended.run().notes)
    scaled = {
        "obs_dict": {"actor_obs": ["motion_command", "base_ang_vel"]},
        "obs_scales": {"base_ang_vel": 0.25},
    }
    case = holosoma_case(tmp_path, Motion(34, last=True), observation=scaled)
    with pytest.raises(BadInput, match=r"scaled terms \(base_ang_vel\) cannot be imported"):
        case.run()
    for key in ("obs_scales", "history_length_dict"):
        odd = {"obs_dict": {"actor_obs": ["motion_command", "base_ang_vel"]}, key: [0.25]}
        case = holosoma_case(tmp_path, Motion(34, last=True), observation=odd)
        with pytest.raises(BadInput, match=f"{key}: expected a mapping"):
            case.run()
    case.format = "beyondmimic"
    with pytest.raises(BadInput, match="import it as holosoma"):
        case.run()


def test_other_formats_point_here(tmp_path: Path) -> None:
    case = motion_case(tmp_path, Motion(34))
    case.format = "mjlab"
    with pytest.raises(BadInput, match=r"carries a motion .*import it as beyondmimic"):
        case.run()
