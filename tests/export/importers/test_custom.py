"""Policies that no file describes, written by the user as short YAML and run as slow loops.

Five history conventions, terms by alphabet and gravity first, Euler angles, gait clocks with their
stand rules, commands with slew, filtered targets, wheels and torques: the habits of public stacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.codec import ContractError
from robot_runtime.policy.proof import TraceMismatch
from tests.helpers.foreign import LEGS, MOTORS, Case, Network, Step, record, robot_xml
from tests.helpers.reference import rotation_matrix

POSE = np.array([0.1, 0.4, -0.1, 0.4])
BODY = """
name: walker
timing: {control_dt: 0.02, pd_dt: 0.002}
joints:
  default_pos: [0.1, 0.4, -0.1, 0.4]
  kp: {".*_hip": 100.0, ".*_knee": 150.0}
  kd: 2.0
"""
COMMON = f"""{BODY}
commands: {{lin_vel_x: [-1.0, 1.0], lin_vel_y: [-1.0, 1.0], ang_vel_z: [-1.0, 1.0]}}
"""


def custom(folder: Path, text: str, dim: int, actions: int = 4) -> Case:
    case = Case(format="custom", folder=folder)
    case.robot()
    case.files.append(Network(inputs={"obs": dim}, actions=actions).save(folder / "policy.onnx"))
    (folder / "user.yaml").write_text(text)
    return case


def run(case: Case) -> Any:
    return case.run(user=(case.folder / "user.yaml",))


class History:
    """Frames of a vendor's buffer, newest last."""

    def __init__(self, length: int, *, first: bool) -> None:
        self.length, self.first = length, first
        self.frames: list[dict[str, Any]] = []

    def push(self, frame: dict[str, Any]) -> list[dict[str, Any]]:
        frame = {name: np.atleast_1d(np.asarray(value, float)) for name, value in frame.items()}
        empty = frame if self.first else {name: np.zeros_like(v) for name, v in frame.items()}
        self.frames = [*(self.frames or [empty] * self.length)[1:], frame]
        return self.frames


# -- humanoid-gym: clock first, Euler angles, 15 whole frames, zeros at first, clip at 18 ----------

HUMANOID_GYM = f"""{COMMON.replace("[0.1, 0.4, -0.1, 0.4]", "0.0")}
action: {{scale: 0.25, offset: 0.0, raw_clip: 18.0}}
phase: {{period: 0.64, start: 0.0, stand: run}}
observation:
  terms:
    - phase_sin
    - phase_cos
    - command: {{scale: [2.0, 2.0, 1.0]}}
    - joint_pos_rel
    - joint_vel: {{scale: 0.05}}
    - last_action: {{stage: applied}}
    - base_ang_vel
    - euler_xyz
  history: {{length: 15, layout: frame_major, order: oldest_first, fill: zero}}
  clip: 18.0
"""


def euler(quat: Any) -> Any:
    m = rotation_matrix(quat)
    return [math.atan2(m[2, 1], m[2, 2]), math.asin(-m[2, 0]), math.atan2(m[1, 0], m[0, 0])]


class HumanoidGym:
    def __init__(self) -> None:
        self.history = History(15, first=False)

    def __call__(self, step: Step) -> Any:
        angle = 2 * math.pi * step.k * 0.02 / 0.64
        frame = {
            "clock": [math.sin(angle), math.cos(angle)],
            "cmd": step.cmd * [2.0, 2.0, 1.0],
            "q": step.pos(LEGS),
            "dq": step.vel(LEGS) * 0.05,
            "a": np.clip(step.last, -18, 18),
            "w": step.gyro,
            "e": euler(step.quat),
        }
        frame = {k: np.clip(v, -18, 18) for k, v in frame.items()}
        return np.concatenate([f[name] for f in self.history.push(frame) for name in f])


# -- FALCON: alphabetical, five whole frames, a stand flag, a height, targets within the limits ----

FALCON = f"""{COMMON}
commands.stand: [0.0, 1.0]
commands.height: [0.0, 1.0]
action: {{scale: 0.25, offset: default_pos, target_clip: joint_limits}}
phase:
  {{period: 0.9, start: 0.0, stand: fixed, stand_channels: [stand], stand_threshold: 0.0,
    stand_phase: 0.0}}
observation:
  terms:
    - actions: {{source: last_action}}
    - base_ang_vel: {{scale: 0.25}}
    - command_ang_vel: {{source: command, channels: [ang_vel_z]}}
    - command_height: {{source: command, channels: [height], scale: 2.0}}
    - command_lin_vel: {{source: command, channels: [lin_vel_x, lin_vel_y]}}
    - command_stand: {{source: command, channels: [stand]}}
    - cos_phase: {{source: phase_cos}}
    - dof_pos: {{source: joint_pos_rel}}
    - dof_vel: {{source: joint_vel, scale: 0.05}}
    - projected_gravity
    - sin_phase: {{source: phase_sin}}
  history: {{length: 5, layout: frame_major, order: oldest_first, fill: zero}}
"""


class Falcon:
    def __init__(self) -> None:
        self.history = History(5, first=False)

    def __call__(self, step: Step) -> Any:
        stand, height = step.cmd[3], step.cmd[4]
        phase = ((step.k * 0.02 / 0.9) % 1.0) * (stand > 0.0)
        frame = {
            "actions": step.last,
            "base_ang_vel": step.gyro * 0.25,
            "command_ang_vel": step.cmd[2],
            "command_height": height * 2,
            "command_lin_vel": step.cmd[:2],
            "command_stand": stand,
            "cos_phase": math.cos(2 * math.pi * phase),
            "dof_pos": step.pos(LEGS) - POSE,
            "dof_vel": step.vel(LEGS) * 0.05,
            "projected_gravity": step.gravity,
            "sin_phase": math.sin(2 * math.pi * phase),
        }
        return np.concatenate([f[name] for f in self.history.push(frame) for name in sorted(f)])


# -- ASAP: alphabetical, one extra block of past frames in the middle, newest first ----------------

ASAP = f"""{BODY}
action: {{scale: 0.25, offset: default_pos}}
observation:
  - terms:
      - actions: {{source: last_action}}
      - base_ang_vel: {{scale: 0.25}}
      - dof_pos: {{source: joint_pos_rel}}
  - terms:
      - actions: {{source: last_action}}
      - base_ang_vel: {{scale: 0.25}}
      - dof_pos: {{source: joint_pos_rel}}
      - projected_gravity
    history:
      {{length: 4, layout: term_major, order: newest_first, fill: zero, includes_current: false}}
  - terms: [projected_gravity]
"""


class Asap:
    def __init__(self) -> None:
        self.past: list[dict[str, Any]] = []

    def __call__(self, step: Step) -> Any:
        frame = {
            "actions": step.last,
            "base_ang_vel": step.gyro * 0.25,
            "dof_pos": step.pos(LEGS) - POSE,
            "projected_gravity": step.gravity,
        }
        empty = {name: np.zeros_like(value) for name, value in frame.items()}
        past = [*self.past, *[empty] * 4][:4]
        history = np.concatenate([f[name] for name in sorted(frame) for f in past])
        self.past = [frame, *self.past]
        blocks = {**frame, "history": history}
        return np.concatenate([blocks[name] for name in sorted(blocks)])


# -- booster_gym: gravity first, slewed commands that the clock gates, filtered targets ------------

BOOSTER = f"""{COMMON}
commands.lin_vel_x.max_rate: 1.0
commands.lin_vel_y.max_rate: 1.0
commands.ang_vel_z.max_rate: 1.0
actuator: {{target_filter: 0.2}}
action: {{scale: 1.0, offset: default_pos, raw_clip: 1.0}}
phase: {{period: 0.6666666666666666, start: 0.0, stand: zero, stand_threshold: 1.0e-5}}
observation:
  - projected_gravity
  - base_ang_vel
  - command
  - phase_cos
  - phase_sin
  - joint_pos_rel
  - joint_vel: {{scale: 0.1}}
  - last_action: {{stage: applied}}
"""


class Booster:
    def __init__(self) -> None:
        self.smooth = np.zeros(3)

    def __call__(self, step: Step) -> Any:
        self.smooth = self.smooth + np.clip(step.cmd - self.smooth, -0.02, 0.02)
        rate = 0.0 if np.linalg.norm(self.smooth) < 1e-5 else 1.5
        angle = 2 * math.pi * step.k * 0.02 * 1.5
        clock = [math.cos(angle) * (rate > 0), math.sin(angle) * (rate > 0)]
        q, dq = step.pos(LEGS) - POSE, step.vel(LEGS) * 0.1
        last = np.clip(step.last, -1, 1)
        return np.concatenate([step.gravity, step.gyro, self.smooth, clock, q, dq, last])


# -- playground humanoid: velocity first, two legs' clocks, cosines before sines -------------------

PLAYGROUND = f"""{COMMON}
action: {{scale: 0.5, offset: default_pos}}
phase: {{period: 0.8, start: 0.0, offsets: [0.0, 0.5], stand: run}}
observation:
  - base_lin_vel: {{sensor: imu}}
  - base_ang_vel: {{sensor: imu}}
  - projected_gravity: {{sensor: imu}}
  - command
  - joint_pos_rel
  - joint_vel
  - last_action
  - phase_cos
  - phase_sin
"""


def playground(step: Step) -> Any:
    phases = np.array([0.0, math.pi]) + 2 * math.pi * step.k * 0.02 / 0.8
    speed = step.speed + np.cross(step.gyro, [0.01, 0.02, 0.03])
    body = [speed, step.gyro, step.gravity, step.cmd, step.pos(LEGS) - POSE, step.vel(LEGS)]
    return np.concatenate([*body, step.last, np.cos(phases), np.sin(phases)])


Vendor = Callable[[], Callable[[Step], Any]]
STACKS: dict[str, tuple[str, int, Vendor, Callable[[Any], Any], int]] = {
    "humanoid_gym": (
        HUMANOID_GYM,
        15 * 23,
        HumanoidGym,
        lambda a: 0.25 * np.clip(a, -18, 18),
        3,
    ),
    "falcon": (FALCON, 5 * 25, Falcon, lambda a: np.clip(POSE + 0.25 * a, -2, 2), 5),
    "asap": (ASAP, 14 + 4 * 14, Asap, lambda a: POSE + 0.25 * a, 3),
    "booster": (BOOSTER, 23, Booster, lambda a: POSE + np.clip(a, -1, 1), 3),
    "playground": (PLAYGROUND, 28, lambda: playground, lambda a: POSE + 0.5 * a, 3),
}


@pytest.mark.parametrize("stack", STACKS)
def test_habits_of_public_stacks_can_be_written_down(stack: str, tmp_path: Path) -> None:
    text, dim, vendor, target, channels = STACKS[stack]
    case = custom(tmp_path, text, dim)
    commands = np.random.default_rng(1).uniform(-0.5, 0.5, size=(24, channels))
    commands[:3] = 0.0
    names = ["lin_vel_x", "lin_vel_y", "ang_vel_z", "stand", "height"][:channels]
    if channels == 5:
        commands[:, 3] = np.arange(24) % 5 > 2
        commands[:, 4] = np.abs(commands[:, 4])
    case.golden = record(
        tmp_path / "golden.npz",
        vendor(),
        Network(inputs={"obs": dim}, actions=4),
        target,
        actions=4,
        order=LEGS,
        rows=24,
        commands=commands,
        cmd_names=np.array(names),
    )
    imported = case.run(user=(tmp_path / "user.yaml",), allow_privileged=True)
    assert imported.replayed is not None
    assert imported.replayed.report.rows == 24
    assert {s.partition(":")[0] for s in imported.fields.values()} <= {
        "file",
        "model",
        "inferred",
        "default",
        "user",
    }


def test_a_wrong_contract_does_not_reproduce_the_record(tmp_path: Path) -> None:
    text, dim, vendor, target, _ = STACKS["humanoid_gym"]
    case = custom(tmp_path, text.replace("oldest_first", "newest_first"), dim)
    case.golden = record(
        tmp_path / "golden.npz",
        vendor(),
        Network(inputs={"obs": dim}, actions=4),
        target,
        actions=4,
        order=LEGS,
    )
    with pytest.raises(TraceMismatch, match=r"boundary A \(states -> observation\): phase"):
        run(case)


def test_wheels_torques_and_held_joints(tmp_path: Path) -> None:
    text = f"""{BODY}
joints.left_knee.kp: 0.0
joints.names: [left_hip, left_knee, right_hip, right_knee]
action:
  - {{name: legs, joints: [left_hip], scale: 0.25, offset: default_pos, target_clip: [-1.5, 1.5]}}
  - {{name: wheel, kind: velocity, joints: [left_knee], scale: 5.0, offset: 0.0}}
  - {{name: ankle, kind: effort, joints: [right_hip], scale: 3.0, offset: 0.0, raw_clip: [-1, 2]}}
action.hold: {{right_knee: 0.4}}
observation: [base_ang_vel, joint_pos_rel, last_action: {{stage: raw}}]
"""
    case = custom(tmp_path, text, 3 + 4 + 3, actions=3)
    policy = run(case).policy
    contract = policy.contract
    assert [(t.name, t.kind, t.joints) for t in contract.action.terms] == [
        ("legs", "position", ("left_hip",)),
        ("wheel", "velocity", ("left_knee",)),
        ("ankle", "effort", ("right_hip",)),
    ]
    assert contract.action.terms[0].target_lower == (-1.5,)
    assert contract.action.terms[2].raw_upper == (2.0,)
    held = {h.joint: h.position for h in contract.action.hold}
    assert held == {"left_knee": 0.4, "right_hip": -0.1, "right_knee": 0.4}
    assert contract.commands == ()
    # What the numbers of the actions become, by hand; rows beyond every bound are among them.
    leg, wheel, ankle = policy.trace.inputs.raw_action.T
    assert np.abs(ankle).max() > 2.0
    trace = policy.trace
    np.testing.assert_allclose(
        trace.target_pos[:, 0], np.clip(0.1 + 0.25 * leg, -1.5, 1.5), atol=1e-6
    )
    np.testing.assert_allclose(trace.target_vel[:, 1], 5.0 * wheel, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        trace.target_effort[:, 2], 3.0 * np.clip(ankle, -1.0, 2.0), rtol=1e-6, atol=1e-6
    )
    assert np.all(trace.target_pos[:, 3] == np.float32(0.4))


def test_joints_without_an_action_keep_the_default_pose_where_that_is_said(tmp_path: Path) -> None:
    text = f"""{COMMON}
observation: [command]
action: {{joints: [left_hip, right_hip], scale: 0.25, offset: default_pos}}
"""
    case = custom(tmp_path, text, 3, actions=2)
    case.settings.append(f"joints.names=[{', '.join(LEGS)}]")
    with pytest.raises(MissingFieldsError) as missing:
        run(case)
    (question,) = missing.value.questions
    assert question.line().startswith("action.hold: default_pos  # position targets of the joints")
    case.settings.append("action.hold=default_pos")
    held = {h.joint: h.position for h in run(case).policy.contract.action.hold}
    assert held == {"left_knee": 0.4, "right_knee": 0.4}
    case.settings[-1] = "action.hold={left_knee: 0.4, right_nee: 0.3}"
    with pytest.raises(BadInput, match=r"action.hold: 'right_nee' is no joint of the policy"):
        run(case)


def test_gains_of_the_models_own_servos(tmp_path: Path) -> None:
    text = """
    keyframe: home
    actuators: model
    timing: {control_dt: 0.02, pd_dt: 0.002}
    action: {scale: 0.5, offset: default_pos}
    observation: [base_ang_vel, joint_pos_rel]
    """
    pose = " ".join(map(str, POSE))
    keys = f'<keyframe><key name="home" qpos="0 0 1 1 0 0 0 {pose}"/></keyframe>'
    case = custom(tmp_path, text, 7)
    case.robot(robot_xml(servo=(35.0, 0.0, 0.5), extra=keys))
    imported = run(case)
    contract = imported.policy.contract
    assert (contract.actuator.form, contract.actuator.damping) == ("native", "joint")
    assert [(j.kp, j.kd, j.default_pos) for j in contract.joints][1] == (35.0, 0.5, 0.4)
    assert imported.fields["joints.*.kp"] == "model: position actuators of scene.xml"
    case.robot(robot_xml(servo=(35.0, 1.5, 0.0), extra=keys))
    assert run(case).policy.contract.actuator.damping == "actuator"
    case.robot(robot_xml(servo=(35.0, 1.5, 0.5), extra=keys))
    with pytest.raises(BadInput, match="damps in actuators and in joints"):
        run(case)
    case.robot(robot_xml(extra=keys))
    with pytest.raises(BadInput, match="joint 'left_hip' of the model has no position actuator"):
        run(case)
    (tmp_path / "user.yaml").write_text(text.replace("home", "stand"))
    with pytest.raises(BadInput, match="the model has no 'stand'; it has home"):
        run(case)


def test_other_servos_of_the_model_are_noted(tmp_path: Path) -> None:
    case = custom(
        tmp_path, f"{COMMON}\naction: {{scale: 0.5, offset: 0}}\nobservation: [command]", 3
    )
    case.robot(robot_xml(servo=(500.0, 1.0, 0.0)))
    assert any("position actuators of its own (kp 500" in note for note in run(case).notes)


def test_torchscript_with_a_contract(tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = custom(
        tmp_path, f"{COMMON}\naction: {{scale: 0.5, offset: 0}}\nobservation: [command]", 3
    )
    script = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).eval())
    torch.jit.save(script, str(tmp_path / "policy.pt"))
    case.files = [tmp_path / "policy.pt"]
    imported = run(case)
    network = imported.policy.network()
    assert any("nobody says in which order the policy has its joints" in n for n in imported.notes)
    obs = np.array([0.3, -0.2, 0.9], np.float32)
    with torch.no_grad():
        expected = script(torch.from_numpy(obs[None]))[0].numpy()
    # One float32 network in two libraries.
    np.testing.assert_allclose(network(obs), expected, atol=1e-6)


def test_nothing_of_the_machine_that_wrote_the_graph_stays(tmp_path: Path) -> None:
    """Exporters leave stack traces in nodes, and comments on whatever has room for one."""
    case = custom(
        tmp_path, f"{COMMON}\naction: {{scale: 0.5, offset: 0}}\nobservation: [command]", 3
    )
    place = "/home/somebody/train.py"
    model = Network(inputs={"obs": 3}, actions=4, metadata={"run_path": place}).proto()
    graph = model.graph
    for item in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        item.doc_string = place
        prop = item.metadata_props.add()
        prop.key, prop.value = "trace", place
    model.producer_name = model.producer_version = model.domain = place
    case.files[0].write_bytes(model.SerializeToString())
    assert place.encode() in case.files[0].read_bytes()
    run(case)
    assert place.encode() not in (tmp_path / "out.onnx").read_bytes()


def test_gains_of_zero_are_believed_of_the_user_and_noted(tmp_path: Path) -> None:
    text = f"{COMMON}\naction: {{scale: 0.5, offset: 0}}\nobservation: [command]"
    case = custom(tmp_path, text, 3)
    case.settings = ["joints.left_hip={kp: 0, kd: 0}"]
    notes = run(case).notes
    assert "kp of left_hip is 0: nothing holds its position" in notes
    assert any(note.startswith("kd of left_hip is 0: nothing damps it") for note in notes)
    assert any(note.startswith("left and right differ: kp of left_hip is 0,") for note in notes)


def test_everything_that_is_missing_is_asked_at_once(tmp_path: Path) -> None:
    case = custom(tmp_path, "observation: [joint_pos_rel, phase_sin, base_quat]", 9)
    with pytest.raises(MissingFieldsError) as missing:
        run(case)
    assert {question.path for question in missing.value.questions} == {
        "joints.default_pos",
        "joints.kp",
        "joints.kd",
        "action.scale",
        "action.offset",
        "timing.control_dt",
        "timing.pd_dt",
        "phase.period",
        "phase.start",
        "phase.stand",
        "imu.quaternion_order",
    }
    lines = [question.line() for question in missing.value.questions]
    assert "timing.control_dt: 0.02  # period of the policy, [s]" in lines


HISTORY = "{terms: [command, joint_pos_rel], history: {length: 3}}"


@pytest.mark.parametrize(
    ("observation", "asked"),
    [
        (HISTORY, {"layout", "order", "fill"}),
        ("[{terms: [command], history: {includes_current: false}}]", {"layout", "order", "fill"}),
        ("[command: {clip: 1.0, scale: 2.0}]", {"command.clip_first"}),
        ("[command_active]", {"command_active.value"}),
        ("[constant]", {"constant.value"}),
    ],
)
def test_what_could_be_read_two_ways_is_asked(
    tmp_path: Path, observation: str, asked: set[str]
) -> None:
    text = f"{COMMON}\naction: {{scale: 0.5, offset: 0}}\nobservation: {observation}"
    with pytest.raises(MissingFieldsError) as missing:
        run(custom(tmp_path, text, 3))
    paths = {
        q.path.removeprefix("observation.").removeprefix("0.history.")
        for q in missing.value.questions
    }
    assert paths == asked


def test_a_last_action_is_raw_or_applied_only_where_that_differs(tmp_path: Path) -> None:
    text = f"{BODY}\naction: {{scale: 0.5, offset: 0, raw_clip: 1}}\nobservation: [last_action]"
    case = custom(tmp_path, text, 4)
    with pytest.raises(MissingFieldsError, match=r"observation.last_action.stage .*raw or applied"):
        run(case)
    (tmp_path / "user.yaml").write_text(text.replace(", raw_clip: 1", ""))
    assert run(case).policy.contract.observation[0].terms[0].stage == "raw"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("observation: [gyro]", r"term 'gyro' has no source 'gyro' .*; known: base_ang_vel"),
        ("observation: 7", r"observation: expected a list of terms or blocks, found 7"),
        ("action: {joints: 3, scale: 1, offset: 0}", r"action.joints: expected names, found 3"),
        ("observation: [{terms: []}]", r"observation.0.terms: expected a list of terms"),
        ("observation: [command: {sclae: 2}]", r"'sclae' is not a field; known: name, source"),
        ("observation: [{terms: [command], hist: 3}]", r"'hist' is not a field; known: input"),
        ("observation.knee.scale: 2", r"no term 'knee'; there are command"),
        ("observation.command.scale: [1, 2]", r"has 2 numbers for 3 features"),
        ("observation.command.scale: fast", r"command.scale: expected a finite number"),
        ("joints.kp: [1, 2]", r"joints.kp: has 2 numbers for 4 joints"),
        ("joints.kp: {left.*: 1.0}", r"joints.kp: no name or pattern fits joint 'right_hip'"),
        ("joints.kp: {'.*': 1.0, 'l.*': 2.0}", r"joints.kp: 2 patterns fit joint 'left_hip'"),
        ("joints.kp: {'(': 1.0}", r"joints.kp: not a pattern"),
        ("joints.elbow.kp: 3.0", r"joints.elbow.kp: no such field; joints are left_hip"),
        ("joints.stiffness: 3.0", r"joints.stiffness: no such field; known: names, others, motor"),
        ("joints.names: [a, a, b, c]", r"joints.names: expected different names"),
        ("joints.names: [a, b, c, d]", r"has no joint 'a'; it has left_hip"),
        ("joints.default_pos: 9.0", r"default position 9 of joint 'left_hip' is outside of"),
        ("timing: 0.02", r"timing: expected fields, found 0.02"),
        ("timing.pd: 0.02", r"timing.pd: no such field; known: control_dt"),
        ("timing.pd_dt: 0.003", r"0.02 s is not a multiple of pd_dt 0.003 s"),
        ("gait: {period: 1.0}", r"gait: no such field; sections are robot, joints"),
        ("phase: {period: 1.0}", r"phase: no observation term uses the gait clock"),
        ("commands.height: [0, 1]", r"commands.height: no term uses that command; used: lin_vel_x"),
        ("commands.lin_vel_x: 1.0", r"commands.lin_vel_x: expected \[lowest, highest\]"),
        ("commands.lin_vel_x: [1, -1]", r"command 'lin_vel_x': 1.0 is above -1.0"),
        ("action.joints: [left_hip]", r"action: 1 joints for the graph's 4 actions"),
        ("action.joints: [elbow, a, b, c]", r"'elbow' is no joint of the policy"),
        ("action.offset: home", r"action.offset: expected a finite number, found 'home'"),
        ("action.raw_clip: [1, 2, 3]", r"action.raw_clip: expected bounds for 4 elements"),
        ("action.gain: 3", r"'gain' is not a field; known: name, kind"),
        ("actuator.form: magic", r"'magic' is not one of 'explicit_pd', 'native'"),
        ("network.normalizer: in_graph", r"begins without a shift or scale .*a lost normalizer"),
        ("network.output: logits", r"has no output 'logits'; it has actions"),
        ("imu.site: camera", r"the model has no site 'camera'; it has \['imu'\]"),
        ("keyframe: home", r"the model has no 'home'; it has none"),
        ("actuators: file", r"actuators: expected 'model', found 'file'"),
    ],
)
def test_what_is_wrong_in_a_contract_is_said_by_name(
    tmp_path: Path, line: str, message: str
) -> None:
    base = f"{COMMON}\naction: {{scale: 0.5, offset: 0}}\nobservation: [command]\n"
    key = line.partition(":")[0]
    kept = "".join(row for row in base.splitlines(keepends=True) if not row.startswith(f"{key}:"))
    case = custom(tmp_path, kept, 3)
    # Given apart, as an answer to what the first file says.
    (tmp_path / "more.yaml").write_text(line)
    with pytest.raises((BadInput, Refused, ContractError), match=message):
        case.run(user=(tmp_path / "user.yaml", tmp_path / "more.yaml"))
    assert not (tmp_path / "out.onnx").exists()


def test_a_network_for_a_batch_of_robots_is_refused(tmp_path: Path) -> None:
    action = "action: {scale: 0.25, offset: default_pos}"
    case = custom(tmp_path, f"{COMMON}\n{action}\nobservation: [command]", 3)
    model = Network(inputs={"obs": 3}, actions=4).proto()
    for declared in (*model.graph.input, *model.graph.output):
        declared.type.tensor_type.shape.dim[0].dim_value = 8
    (tmp_path / "policy.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BadInput, match=r"output 'actions' has the shape \[8, 4\], several actions"):
        run(case)


def test_a_network_that_hides_its_lengths(tmp_path: Path) -> None:
    """The action's follows from the graph; the observation's does not."""
    text = f"{COMMON}\nobservation: [joint_pos_rel, command]\naction: {{scale: 0.25, offset: 0.0}}"
    case = custom(tmp_path, text, 7)
    complete = run(case).policy.contract
    model = onnx.load(str(case.files[0]))
    (output,) = model.graph.output
    output.type.tensor_type.shape.dim[-1].dim_param = "k"
    onnx.save(model, str(case.files[0]))
    assert run(case).policy.contract == complete
    for shape in (["batch", "n"], None):
        (taken,) = model.graph.input
        taken.CopyFrom(onnx.helper.make_tensor_value_info(taken.name, 1, shape))
        onnx.save(model, str(case.files[0]))
        with pytest.raises(BadInput, match=r"input 'obs' does not say how long .*update_model_dim"):
            run(case)


def test_lengths_that_do_not_fit_show_a_table(tmp_path: Path) -> None:
    text = f"{COMMON}\naction: {{scale: 0.5, offset: 0}}\nobservation: [command, joint_pos_rel]"
    with pytest.raises(
        BadInput,
        match=r"'obs' takes 42 numbers, the terms give 7 \(command 3, joi"
        r"nt_pos_rel 4\): 42 is 6 x 7, a history\?",
    ):
        run(custom(tmp_path, text, 42))


def test_joints_in_another_order_than_the_models(tmp_path: Path) -> None:
    text = f"""{COMMON}
joints.names: [{", ".join(MOTORS)}]
action: {{scale: 0.5, offset: 0}}
observation: [command]
"""
    contract = run(custom(tmp_path, text, 3)).policy.contract
    assert contract.joint_names == MOTORS
    # The columns of the text are in that order, the patterns by name, the motors in the model's.
    assert [j.motor for j in contract.joints] == [0, 1, 2, 3]
    assert [j.kp for j in contract.joints] == [100.0, 150.0, 100.0, 150.0]


def test_answers_on_the_command_line_win_and_say_so(tmp_path: Path) -> None:
    text = f"{COMMON}\naction: {{scale: 0.5, offset: 0}}\nobservation: [command]"
    case = custom(tmp_path, text, 3)
    case.settings = ["timing.pd_dt=0.004", "joints.left_hip={kp: 90, kd: 3}"]
    imported = run(case)
    assert imported.policy.contract.timing.pd_dt == 0.004
    assert imported.policy.contract.joints[0].kd == 3.0
    assert imported.fields["timing.pd_dt"] == "user: --set"
    assert imported.fields["timing.control_dt"] == "user: user.yaml"
    assert imported.fields["action.terms.0.scale"] == "user: user.yaml"
    for setting in (
        "timing.pd_dt",
        "=3",
        "timing.pd_dt=[",
        "timing.pd_dt=!!python/name:os.system ",
    ):
        with pytest.raises(BadInput, match=r"--set|timing\.pd_dt|not JSON serializable"):
            case.run(settings=(setting,), user=(tmp_path / "user.yaml",))


def test_columns_of_an_action_may_be_maps_by_pattern(tmp_path: Path) -> None:
    """As Isaac Lab writes them."""
    text = f"""{COMMON}
observation: [projected_gravity, command]
action:
  scale: {{".*_hip": 0.125, ".*_knee": 0.25}}
  offset: {{".*_hip": 0.0, left_knee: 0.1, right_knee: 0.2}}
  raw_clip: {{".*_hip": 1.0, ".*_knee": [-2.0, 3.0]}}
"""
    (term,) = run(custom(tmp_path, text, 6)).policy.contract.action.terms
    assert term.joints == LEGS
    assert term.scale == (0.125, 0.25, 0.125, 0.25)
    assert term.offset == (0.0, 0.1, 0.0, 0.2)
    assert (term.raw_lower, term.raw_upper) == ((-1.0, -2.0) * 2, (1.0, 3.0) * 2)
    with pytest.raises(BadInput, match=r"action.scale: no name or pattern fits joint 'left_hip'"):
        run(custom(tmp_path / "b", text.replace('".*_hip": 0.125', "x: 1"), 6))


def test_a_scale_of_joints_may_be_a_map(tmp_path: Path) -> None:
    """As playground's T1 has it, which does not look at its head."""
    text = f"""{COMMON}
action: {{scale: 0.25, offset: default_pos}}
observation:
  - joint_pos_rel: {{scale: {{".*_hip": 0.0, ".*_knee": 1.0}}}}
  - joint_vel: {{joints: [right_knee, left_hip], scale: {{right_knee: 2.0, left_hip: 3.0}}}}
  - command
"""
    (block,) = run(custom(tmp_path, text, 9)).policy.contract.observation
    assert [term.scale for term in block.terms[:2]] == [(0.0, 1.0, 0.0, 1.0), (2.0, 3.0)]


def test_terms_may_stand_as_a_mapping(tmp_path: Path) -> None:
    listed = "observation: [base_ang_vel: {scale: 0.25}, projected_gravity, command]"
    mapped = "observation: {base_ang_vel: {scale: 0.25}, projected_gravity: , command: {}}"
    action = "action: {scale: 0.25, offset: default_pos}"
    found = [
        run(custom(tmp_path / str(i), f"{COMMON}\n{action}\n{text}", 9)).policy.contract.observation
        for i, text in enumerate((listed, mapped))
    ]
    assert found[0] == found[1]


def test_what_other_stacks_call_a_source_is_said(tmp_path: Path) -> None:
    action = "action: {scale: 0.25, offset: default_pos}"
    case = custom(tmp_path, f"{COMMON}\n{action}\nobservation: [velocity_commands]", 3)
    with pytest.raises(BadInput, match=r"likely {name: velocity_commands, source: command}"):
        run(case)
    text = f"{COMMON}\n{action}\nobservation: [command, joint_pos]"
    notes = run(custom(tmp_path / "b", text, 7)).notes
    assert any("what most stacks call so is relative" in note for note in notes)


def test_the_order_of_isaac_lab_is_shown_but_not_taken(tmp_path: Path) -> None:
    """Joints nearer to the base first: here each knee hangs on its hip."""
    text = f"""{COMMON.replace("[0.1, 0.4, -0.1, 0.4]", "0.0")}
action: {{scale: 0.25, offset: default_pos}}
observation: [command]
"""
    case = custom(tmp_path, text, 3)
    legs = "".join(
        f'<body name="{side}" pos="0 {y} 0"><joint name="{side}_hip"/><geom size=".1"/>'
        f'<body name="{side}2"><joint name="{side}_knee"/><geom size=".1"/></body></body>'
        for side, y in (("left", 0.2), ("right", -0.2))
    )
    case.robot(f'<mujoco><worldbody><body name="base"><freejoint/><geom size=".1"/>{legs}'
               "</body></worldbody></mujoco>")  # fmt: skip
    imported = run(case)
    assert imported.policy.contract.joint_names == LEGS
    order = "[left_hip, right_hip, left_knee, right_knee]"
    assert any(f"breadth first: {order}" in note for note in imported.notes)
    case.settings.append(f"joints.names={order}")
    assert not any("joints.names" in note for note in run(case).notes)
