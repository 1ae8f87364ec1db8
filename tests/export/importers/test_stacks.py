"""rl_sar, Berkeley Humanoid Lite, holosoma and mjlab, against their runtimes as slow loops."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput, Refused
from tests.helpers.foreign import LEGS, MOTORS, Case, Network, Step, record, robot_xml

VELOCITY = "commands={lin_vel_x: [-1, 1], lin_vel_y: [-1, 1], ang_vel_z: [-1, 1]}"
MAPPING = [2, 3, 0, 1]
POLICY = [MOTORS[i] for i in MAPPING]

BASE: dict[str, Any] = {
    "dt": 0.005,
    "decimation": 4,
    "num_of_dofs": 4,
    "wheel_indices": [],
    "torque_limits": [30.0] * 4,
    "default_dof_pos": [0.0] * 4,
    "joint_names": list(MOTORS),
    "joint_mapping": [0, 1, 2, 3],
}
SAR: dict[str, Any] = {
    "model_name": "policy.onnx",
    "num_observations": 21,
    "observations": ["commands", "ang_vel", "gravity_vec", "dof_pos", "dof_vel", "actions"],
    "observations_history": [],
    "observations_history_priority": "time",
    "clip_obs": 1.5,
    "clip_actions_lower": [-0.5] * 4,
    "clip_actions_upper": [0.4] * 4,
    "rl_kp": [20.0, 21.0, 22.0, 23.0],
    "rl_kd": [0.5] * 4,
    "num_of_dofs": 4,
    "action_scale": [0.125, 0.25, 0.125, 0.25],
    "wheel_indices": [],
    "lin_vel_scale": 2.0,
    "ang_vel_scale": 0.25,
    "dof_pos_scale": 1.0,
    "dof_vel_scale": 0.05,
    "commands_scale": [2.0, 2.0, 0.25],
    "default_dof_pos": [0.1, 0.4, -0.1, 0.4],
    "joint_mapping": MAPPING,
}


class Sar:
    """The stack's observation buffer."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.frames: list[dict[str, np.ndarray[Any, Any]]] = []

    def __call__(self, step: Step) -> np.ndarray[Any, Any]:
        c = self.config
        relative = step.pos(POLICY) - c["default_dof_pos"]
        relative[c["wheel_indices"]] = 0.0
        low, high = c["clip_actions_lower"], c["clip_actions_upper"]
        frame = {
            "commands": step.cmd * c["commands_scale"],
            "ang_vel": step.gyro * c["ang_vel_scale"],
            "gravity_vec": step.gravity,
            "dof_pos": relative * c["dof_pos_scale"],
            "dof_vel": step.vel(POLICY) * c["dof_vel_scale"],
            "actions": np.clip(step.last, low, high) if low else step.last,
        }
        frame = {n: np.clip(frame[n], -c["clip_obs"], c["clip_obs"]) for n in c["observations"]}
        self.frames = [frame, *self.frames] if self.frames else [frame] * 12
        ids = c["observations_history"] or [0]
        if c["observations_history_priority"] == "term":
            return np.concatenate([self.frames[i][n] for n in frame for i in ids])
        return np.concatenate([self.frames[i][n] for i in ids for n in frame])


def sar_case(folder: Path, **changes: Any) -> tuple[Case, dict[str, Any]]:
    config = {**SAR, **changes}
    case = Case(format="rl_sar", folder=folder)
    case.robot()
    case.write("policy/biped2/base.yaml", yaml.safe_dump({"biped2": BASE}))
    case.write("policy/biped2/him/config.yaml", yaml.safe_dump({"biped2/him": config}))
    dim = 21 * max(1, len(config["observations_history"]))
    Network(inputs={"obs": dim}, actions=4).save(folder / "policy/biped2/him/policy.onnx")
    case.settings = ["timing.pd_dt=0.002", VELOCITY]
    return case, config


def sar_golden(case: Case, config: dict[str, Any]) -> None:
    dim = 21 * max(1, len(config["observations_history"]))
    low, high, wheels = (config[f"clip_actions_{e}"] for e in ("lower", "upper")), None, None
    low, high = low
    wheels = config["wheel_indices"]

    def target(action: Any) -> Any:
        scaled = np.clip(action, low, high) * config["action_scale"]
        scaled[wheels] = 0.0
        return scaled + config["default_dof_pos"]

    case.golden = record(
        case.folder / "golden.npz",
        Sar(config),
        Network(inputs={"obs": dim}, actions=4),
        target,
        actions=4,
        order=POLICY,
        kp=np.array(config["rl_kp"]),
        rows=16,
    )


@pytest.mark.parametrize(
    "ids",
    [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 4], [1, 2, 3], [2, 1], [0]],
    ids=lambda ids: "-".join(map(str, ids)),
)
@pytest.mark.parametrize("priority", ["time", "term"])
def test_rl_sar_and_its_histories(tmp_path: Path, ids: list[int], priority: str) -> None:
    case, config = sar_case(
        tmp_path, observations_history=ids, observations_history_priority=priority
    )
    sar_golden(case, config)
    imported = case.run()
    contract = imported.policy.contract
    assert list(contract.joint_names) == POLICY
    # The recorded run asks for more than its configuration lets through.
    assert any("is at its bound in" in note for note in imported.notes)
    assert contract.joint_array("kp").tolist() == config["rl_kp"]
    history = contract.observation[0].history
    assert history.length == len(ids)
    assert history.includes_current == (min(ids) == 0)


@pytest.mark.parametrize("ids", [[0, 1, 3], [2, 3], [1, 3], [0, 0]])
def test_rl_sar_histories_that_no_contract_has_are_refused(tmp_path: Path, ids: list[int]) -> None:
    case, _ = sar_case(tmp_path, observations_history=ids)
    with pytest.raises(BadInput, match="observations_history"):
        case.run()


def test_rl_sar_wheels_are_driven_by_velocity_and_their_position_is_not_seen(
    tmp_path: Path,
) -> None:
    case, config = sar_case(
        tmp_path,
        wheel_indices=[1, 3],
        rl_kp=[20.0, 0.0, 22.0, 0.0],
        action_scale=[0.125, 5.0, 0.125, 5.0],
        observations_history=[0, 1],
    )
    sar_golden(case, config)
    with np.load(str(case.golden)) as npz:
        arrays = dict(npz)
    clipped = np.clip(arrays["act"], -0.5, 0.4) * config["action_scale"]
    arrays["dtarget"] = (clipped * [0, 1, 0, 1]).astype(np.float32)
    np.savez(str(case.golden), **arrays)
    imported = case.run()
    contract = imported.policy.contract
    assert [t.kind for t in contract.action.terms] == ["position", "velocity"] * 2
    assert {h.joint: h.position for h in contract.action.hold} == {
        "left_knee": 0.4,
        "right_knee": 0.4,
    }
    assert any("wheels are driven by velocity" in note for note in imported.notes)


def test_rl_sar_joint_names_of_the_policy_override_the_robots(tmp_path: Path) -> None:
    """The stack reads both files into one map, the policy's last."""
    case, _ = sar_case(tmp_path, joint_names=list(LEGS), joint_mapping=[3, 2, 1, 0])
    assert list(case.run().policy.contract.joint_names) == list(LEGS)[::-1]


def test_rl_sar_files_from_before_the_lists_clip_with_one_number(tmp_path: Path) -> None:
    case, _ = sar_case(
        tmp_path, clip_actions=3.0, clip_actions_lower=[], clip_actions_upper=[], gait_type="trot"
    )
    imported = case.run()
    (action,) = imported.policy.contract.action.terms
    assert (action.raw_lower, action.raw_upper) == ((-3.0,) * 4, (3.0,) * 4)
    assert any("config.yaml: not read" in n and n.endswith(": gait_type") for n in imported.notes)


def test_rl_sar_refuses_files_that_do_not_belong_together(tmp_path: Path) -> None:
    case, _ = sar_case(tmp_path)
    case.write("policy/biped2/base.yaml", yaml.safe_dump({"go2": BASE}))
    with pytest.raises(BadInput, match=r"base.yaml is of 'go2', the policy of 'biped2/him'"):
        case.run()
    case.files = case.files[1:]
    with pytest.raises(BadInput, match=r"base.yaml of 'biped2' is missing"):
        case.run()
    case, _ = sar_case(tmp_path / "b")
    case.write("policy/biped2/him/config.yaml", yaml.safe_dump({"go2w/him": SAR}))
    case.write("policy/biped2/base.yaml", yaml.safe_dump({"go2w": BASE}))
    with pytest.raises(Refused, match=r"files are of the robot 'go2w'"):
        case.run()


def test_rl_sar_limits_that_nobody_applies_are_reported(tmp_path: Path) -> None:
    case, _ = sar_case(tmp_path, torque_limits=[300.0] * 4)
    imported = case.run()
    assert any("says 300.0 for left_hip" in note for note in imported.notes)
    assert imported.policy.contract.joint_array("effort_limit").tolist() == [30.0] * 4


def test_rl_sar_terms_nobody_knows_are_asked_for(tmp_path: Path) -> None:
    case, _ = sar_case(tmp_path, observations=[*SAR["observations"], "phase"], num_observations=22)
    with pytest.raises(MissingFieldsError, match=r"observation.phase.source"):
        case.run()


def test_rl_sar_with_torchscript(tmp_path: Path) -> None:
    """The length of the observation is the configuration's, history and all."""
    case, config = sar_case(tmp_path, model_name="policy.pt", observations_history=[0, 1])
    (tmp_path / "policy/biped2/him/policy.onnx").unlink()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(42, 8), torch.nn.ELU(), torch.nn.Linear(8, 4)).eval()
    torch.jit.save(torch.jit.script(net), str(tmp_path / "policy/biped2/him/policy.pt"))

    def act(obs: Any) -> Any:
        with torch.no_grad():
            return net(torch.from_numpy(obs[None])).numpy()[0]

    low, high = config["clip_actions_lower"], config["clip_actions_upper"]
    case.golden = record(
        tmp_path / "golden.npz",
        Sar(config),
        act,
        lambda a: np.clip(a, low, high) * config["action_scale"] + config["default_dof_pos"],
        actions=4,
        order=POLICY,
    )
    replayed = case.run().replayed
    assert replayed is not None
    assert replayed.report.action < 1e-5
    with pytest.raises(Refused, match="--run-torchscript"):
        case.run(run_torchscript=False)


def test_rl_sar_files_from_before_the_priority_ask_for_it(tmp_path: Path) -> None:
    case, config = sar_case(tmp_path, observations_history=[0, 1])
    del config["observations_history_priority"]
    case.write("policy/biped2/him/config.yaml", yaml.safe_dump({"biped2/him": config}))
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [q.path for q in missing.value.questions] == ["observation.0.history.layout"]
    case.settings.append("observation.0.history.layout=term_major")
    assert case.run().policy.contract.observation[0].history.layout == "term_major"


def test_rl_sar_names_of_the_gyro_and_the_gait_clock(tmp_path: Path) -> None:
    """Both names of the gyro mean the body's, and the clock's period stands in the program."""
    names = ["ang_vel_world", *SAR["observations"], "g1_phase"]
    names.remove("ang_vel")
    case, _ = sar_case(tmp_path, observations=names, num_observations=23)
    Network(inputs={"obs": 23}, actions=4).save(tmp_path / "policy/biped2/him/policy.onnx")
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    (question,) = missing.value.questions
    assert question.path == "phase.start"
    case.settings.append(f"phase.start={question.likely[0]}")

    class Clocked:
        def __init__(self) -> None:
            self.body = Sar({**SAR, "observations": ["ang_vel", *names[1:-1]]})

        def __call__(self, step: Step) -> Any:
            motion_time = (step.k + 1) * BASE["dt"] * BASE["decimation"]
            phase = 2.0 * math.pi * math.fmod(motion_time, 0.8) / 0.8
            return np.concatenate([self.body(step), [math.sin(phase), math.cos(phase)]])

    low, high = SAR["clip_actions_lower"], SAR["clip_actions_upper"]
    case.golden = record(
        tmp_path / "golden.npz",
        Clocked(),
        Network(inputs={"obs": 23}, actions=4),
        lambda a: np.clip(a, low, high) * SAR["action_scale"] + SAR["default_dof_pos"],
        actions=4,
        order=POLICY,
    )
    replayed = case.run().replayed
    assert replayed is not None
    # States are float32.
    assert replayed.report.observation < 1e-6


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


def test_berkeley_humanoid_lite(tmp_path: Path) -> None:
    case = bhl_case(tmp_path)
    names, pose = BHL["joints"], np.array(BHL["default_joint_positions"])

    def observe(step: Step) -> Any:
        q, last = step.pos(names) - pose, np.clip(step.last, -0.5, 0.6)
        return np.concatenate([step.cmd, step.gyro, step.gravity, q, step.vel(names), last])

    case.golden = record(
        tmp_path / "golden.npz",
        observe,
        Network(inputs={"obs": 21}, actions=4),
        lambda a: pose + 0.25 * np.clip(a, -0.5, 0.6),
        actions=4,
        order=names,
    )
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


MJLAB = {
    "run_path": "lab/run",
    "joint_names": ",".join(LEGS),
    "joint_stiffness": "40.179,99.098,40.179,99.098",
    "joint_damping": "2.558,6.309,2.558,6.309",
    "default_joint_pos": "0.100,0.400,-0.100,0.400",
    "command_names": "twist",
    "observation_names": "base_ang_vel,projected_gravity,joint_pos,joint_vel,actions,command",
    "observation_terms_scale": "0.250,1.000,1.000,0.050,1.000,2.000;2.000;0.500",
    "observation_terms_clip": "-1.000;1.500,-inf;inf,-inf;inf,-3.000;inf,-inf;inf,-inf;inf",
    "observation_terms_history_length": "3.000,0.000,2.000,2.000,0.000,0.000",
    "observation_terms_flatten_history_dim": "1.000,1.000,1.000,1.000,1.000,1.000",
    "action_scale": "0.548,0.351,0.548,0.351",
}


class Mjlab:
    """The stack's observation manager: clip, scale, then one buffer per term."""

    def __init__(self) -> None:
        self.past: dict[str, list[np.ndarray[Any, Any]]] = {}

    def __call__(self, step: Step) -> np.ndarray[Any, Any]:
        lever = np.array([0.01, 0.02, 0.03])
        assert lever.shape == (3,)
        frame = {
            "gyro": (np.clip(step.gyro, -1.0, 1.5) * 0.25, 3),
            "gravity": (step.gravity, 1),
            "q": (step.pos(LEGS) - [0.1, 0.4, -0.1, 0.4], 2),
            "dq": (np.maximum(step.vel(LEGS), -3.0) * 0.05, 2),
            "last": (step.last, 1),
            "cmd": (step.cmd * [2.0, 2.0, 0.5], 1),
        }
        parts = []
        for name, (value, length) in frame.items():
            self.past[name] = [*self.past.get(name, [value] * length)[1:], value]  # pyright: ignore[reportOptionalSubscript]
            parts += self.past[name]
        return np.concatenate(parts)


def mjlab_case(folder: Path, dim: int = 35, **changes: str | None) -> Case:
    case = Case(format="mjlab", folder=folder)
    case.robot()
    metadata = {k: v for k, v in {**MJLAB, **changes}.items() if v is not None}
    network = Network(inputs={"obs": dim}, actions=4, metadata=metadata)
    case.files.append(network.save(folder / "policy.onnx"))
    case.settings = ["timing={control_dt: 0.02, pd_dt: 0.005}", VELOCITY]
    return case


def test_mjlab_metadata(tmp_path: Path) -> None:
    case = mjlab_case(tmp_path)
    case.golden = record(
        tmp_path / "golden.npz",
        Mjlab(),
        Network(inputs={"obs": 35}, actions=4),
        lambda a: np.array([0.1, 0.4, -0.1, 0.4]) + a * [0.548, 0.351, 0.548, 0.351],
        actions=4,
        order=LEGS,
    )
    imported = case.run()
    assert imported.policy.contract.actuator.form == "native"
    assert any("three decimals" in note for note in imported.notes)
    assert imported.policy.contract.observation[0].terms[0].sensor == "imu"


def test_mjlab_gains_go_by_name(tmp_path: Path) -> None:
    case = mjlab_case(tmp_path)
    case.robot(robot_xml(LEGS[::-1], MOTORS))
    contract = case.run().policy.contract
    assert {j.name: j.kp for j in contract.joints}["left_knee"] == 99.098
    assert contract.joint_names == LEGS


def test_mjlab_files_from_before_the_terms_fields_ask_for_the_scale(tmp_path: Path) -> None:
    old = {key: None for key in MJLAB if key.startswith("observation_terms")}
    case = mjlab_case(tmp_path, dim=21, **old)
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [question.path for question in missing.value.questions] == ["observation.scale"]
    case.settings.append("observation.scale=1.0")
    assert case.run().policy.contract.observation_dim == 21


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"joint_damping": None}, r"metadata 'joint_damping' is missing; there are run_path"),
        ({"joint_damping": "1,2,x,4"}, r"joint_damping: expected a number, found 'x'"),
        ({"joint_stiffness": "1,2"}, r"'joint_stiffness' has 2 numbers for 4 joint names: are"),
        ({"joint_damping": "0,6,nan,6"}, r"joint_damping: expected a finite number"),
        ({"observation_terms_clip": "-1;1"}, r"has 1 entries for 6 terms"),
        ({"observation_names": "a,b,c,d,e,f"}, r"observation.a.source"),
    ],
)
def test_mjlab_metadata_that_are_wrong(
    tmp_path: Path, changes: dict[str, str | None], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        mjlab_case(tmp_path, **changes).run()  # pyright: ignore[reportArgumentType]


def test_gains_of_actuators_that_are_no_servos_are_not_believed(tmp_path: Path) -> None:
    wrong = {
        "joint_stiffness": "1.000,1.000,1.000,1.000",
        "joint_damping": "-0.000," * 3 + "-0.000",
    }
    case = mjlab_case(tmp_path, **wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert {q.path for q in missing.value.questions} == {f"joints.{n}.kd" for n in LEGS}
    case.settings += ["joints.kd=2.0", "joints.kp={'.*hip': 40.0, '.*knee': 99.0}"]
    imported = case.run()
    assert imported.policy.contract.joint_array("kp").tolist() == [40.0, 99.0, 40.0, 99.0]
    assert any("every kp is 1" in note for note in imported.notes)
    assert any("contradiction: joints.kp: user" in note for note in imported.notes)


def test_a_side_without_stiffness_is_asked_about(tmp_path: Path) -> None:
    case = mjlab_case(tmp_path, joint_stiffness="0.000,99.098,40.179,99.098")
    with pytest.raises(MissingFieldsError, match=r"joints.left_hip.kp \(policy.onnx joint_stiff"):
        case.run()
    case.settings.append("joints.left_hip.kp=40.0")
    imported = case.run()
    assert imported.fields["joints.0.kp"] == "user: --set"
    assert imported.fields["joints.1.kp"].startswith("file")
    assert any(
        "left and right differ: kp of left_hip is 40, of right_hip 40.179" in n
        for n in imported.notes
    )
