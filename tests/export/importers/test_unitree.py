"""unitree_rl_gym, unitree_rl_lab and unitree_rl_mjlab, against their runtimes as slow loops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import numpy_helper

from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.codec import ContractError
from robot_runtime.policy.proof import TraceMismatch
from tests.helpers.foreign import (
    LEGS,
    MOTORS,
    NUMBERED,
    Case,
    Network,
    Step,
    nested_xml,
    record,
    robot_xml,
)

POSE = [0.1, 0.4, -0.1, 0.4]
IDS = [2, 0, 3, 1]
"""Policy joint to motor: left_hip, right_hip, left_knee, right_knee."""

POLICY = [MOTORS[i] for i in IDS]

GYM: dict[str, Any] = {
    "policy_path": "{ROOT}/pre_train/biped2/motion.pt",
    "xml_path": "{ROOT}/resources/robots/biped2_description/scene.xml",
    "simulation_dt": 0.002,
    "control_decimation": 10,
    "kps": [100, 150, 100, 150],
    "kds": [2, 4, 2, 4],
    "default_angles": POSE,
    "ang_vel_scale": 0.25,
    "dof_pos_scale": 1.0,
    "dof_vel_scale": 0.05,
    "action_scale": 0.25,
    "cmd_scale": [2.0, 2.0, 0.25],
    "num_actions": 4,
    "num_obs": 23,
    "cmd_init": [0.5, 0, 0],
}
REAL: dict[str, Any] = {
    **{
        k: v for k, v in GYM.items() if k not in ("simulation_dt", "control_decimation", "xml_path")
    },
    "control_dt": 0.02,
    "imu_type": "pelvis",
    "leg_joint2motor_idx": [2, 3, 0, 1],
    "max_cmd": [0.8, 0.5, 1.57],
}


class Remembering(torch.nn.Module):
    """A recurrent policy as its stack exports it: the state sits in buffers."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.memory = torch.nn.LSTM(inputs, 8)
        self.actor = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ELU())
        self.head = torch.nn.Linear(6, actions)
        self.register_buffer("hidden_state", torch.zeros(1, 1, 8))
        self.register_buffer("cell_state", torch.zeros(1, 1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, (h, c) = self.memory(x.unsqueeze(0), (self.hidden_state, self.cell_state))
        self.hidden_state[:] = h  # pyright: ignore[reportIndexIssue]
        self.cell_state[:] = c  # pyright: ignore[reportIndexIssue]
        return self.head(self.actor(out.squeeze(0)))


def save_script(path: Path, module: torch.nn.Module) -> torch.jit.ScriptModule:
    path.parent.mkdir(parents=True, exist_ok=True)
    script = torch.jit.script(module.eval())
    torch.jit.save(script, str(path))
    return script


def gym_observe(step: Step) -> np.ndarray[Any, Any]:
    angle = 2 * math.pi * (((step.k + 1) * 0.02) % 0.8) / 0.8
    cmd = np.clip(step.cmd, [-0.8, -0.5, -1.57], [0.8, 0.5, 1.57]) * [2.0, 2.0, 0.25]
    q, dq = step.pos(LEGS) - POSE, step.vel(LEGS) * 0.05
    wave = [math.sin(angle), math.cos(angle)]
    return np.concatenate([step.gyro * 0.25, step.gravity, cmd, q, dq, step.last, wave])


@pytest.fixture(scope="module")
def motion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("gym") / "motion.pt"
    save_script(path, Remembering(23, 4))
    return path


def gym_case(folder: Path, motion: Path, **changes: Any) -> Case:
    case = Case(format="unitree_rl_gym", folder=folder)
    case.robot()
    case.write("deploy_mujoco/configs/g1.yaml", yaml.safe_dump({**GYM, **changes}))
    case.write("deploy_real/configs/g1.yaml", yaml.safe_dump({**REAL, **changes}))
    case.write("motion.pt", motion.read_bytes())
    case.settings = ["phase.period=0.8", "phase.start=0.025"]
    return case


def test_rl_gym_with_its_recurrent_network(tmp_path: Path, motion: Path) -> None:
    case = gym_case(tmp_path, motion)
    script = torch.jit.load(str(motion))

    def act(obs: Any) -> Any:
        with torch.no_grad():
            return script(torch.from_numpy(obs[None]))[0].numpy()

    case.golden = record(
        tmp_path / "golden.npz",
        gym_observe,
        act,
        lambda a: 0.25 * a + POSE,
        actions=4,
        order=LEGS,
        kp=np.array(GYM["kps"], float),
    )
    imported = case.run()
    contract = imported.policy.contract
    assert [j.motor for j in contract.joints] == REAL["leg_joint2motor_idx"]
    assert [s.input for s in contract.network.states] == ["hidden_state_in", "cell_state_in"]
    assert imported.fields["phase.start"].startswith("user")
    assert imported.fields["joints.*.name"].startswith("model")
    # A C++ clock that starts at zero is another policy, and the record shows it.
    case.settings[1] = "phase.start=0.0"
    with pytest.raises(TraceMismatch, match=r"boundary A .*phase_sin\[0\], row 0"):
        case.run()


def test_rl_gym_reads_the_gains_of_arms_and_waist(tmp_path: Path) -> None:
    names = [*LEGS, "waist_yaw", "left_arm"]
    real = {
        **REAL,
        "leg_joint2motor_idx": [0, 1, 2, 3],
        "arm_waist_joint2motor_idx": [4, 5],
        "arm_waist_kps": [300.0, 50.0],
        "arm_waist_kds": [3.0, 1.0],
        "arm_waist_target": [0.0, 0.3],
        "imu_type": "torso",
    }
    case = Case(format="unitree_rl_gym", folder=tmp_path)
    case.robot(robot_xml(names, names))
    case.write("g1.yaml", yaml.safe_dump(real))
    case.files.append(Network(inputs={"obs": 23}, actions=4).save(tmp_path / "p.onnx"))
    case.settings = ["timing.pd_dt=0.002", "phase.period=0.8", "phase.start=0.025"]
    other = {**real, "policy_path": "{ROOT}/deploy/pre_train/h1/motion.pt"}
    case.write("g1.yaml", yaml.safe_dump(other))
    with pytest.raises(Refused, match=r"robot 'h1' \(g1.yaml policy_path\)"):
        case.run()
    case.write("g1.yaml", yaml.safe_dump(real))
    imported = case.run()
    contract = imported.policy.contract
    assert contract.joint_names == tuple(names)
    assert contract.joint_array("kp").tolist() == [100, 150, 100, 150, 300, 50]
    assert [(h.joint, h.position) for h in contract.action.hold] == [
        ("waist_yaw", 0.0),
        ("left_arm", 0.3),
    ]
    assert contract.action_joints == LEGS
    assert contract.observation_dim == 23
    assert any("imu_type torso" in note for note in imported.notes)
    assert any("g1.yaml names motors by number" in note for note in imported.notes)


def test_rl_gym_refuses_another_robot_and_contradictions_are_noted(
    tmp_path: Path, motion: Path
) -> None:
    case = gym_case(tmp_path, motion, xml_path="{R}/robots/h1_2/scene.xml")
    with pytest.raises(Refused, match=r"robot 'h1_2' .*xml_path.*'biped2 scene'.*robot.name: h1_2"):
        case.run()
    case.settings.append("robot.name=h1_2")
    assert case.run().policy.contract.robot.name == "h1_2"
    case = gym_case(tmp_path / "b", motion)
    case.write("deploy_real/configs/g1.yaml", yaml.safe_dump({**REAL, "kps": [100, 90, 100, 150]}))
    notes = " ".join(case.run().notes)
    assert "joints.kp: file (g1.yaml (simulation) kps) says 150.0 for left_knee" in notes


def test_rl_gym_with_an_unknown_length_asks_for_the_observation(
    tmp_path: Path, motion: Path
) -> None:
    case = gym_case(tmp_path, motion, num_obs=22)
    case.files[-1] = Network(inputs={"obs": 22}, actions=4).save(tmp_path / "p.onnx")
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [question.path for question in missing.value.questions][:1] == ["observation"]


DEPLOY: dict[str, Any] = {
    "joint_ids_map": IDS,
    "step_dt": 0.02,
    "stiffness": [101.0, 151.0, 100.0, 150.0],
    "damping": [2.0, 4.0, 2.5, 4.5],
    "default_joint_pos": [0.1, -0.1, 0.4, 0.41],
    "commands": {
        "base_velocity": {
            "ranges": {
                "lin_vel_x": [-0.5, 1.0],
                "lin_vel_y": [-0.5, 0.5],
                "ang_vel_z": [-1.0, 1.0],
                "heading": None,
            }
        }
    },
    "actions": {
        "JointPositionAction": {
            "clip": [[-1.0, 1.0], [-1.0, 1.0], [-1.5, 1.5], [-1.5, 0.5]],
            "joint_names": [".*"],
            "scale": [0.25, 0.25, 0.5, 0.5],
            "offset": [0.1, -0.1, 0.4, 0.41],
            "joint_ids": None,
        }
    },
}
SLICE = "joint_ids: !!python/object/apply:builtins.slice [null, null, null]"


def entry(scale: Any, history: int = 1, clip: Any = None, **more: Any) -> dict[str, Any]:
    return {"params": {}, "clip": clip, "scale": scale, "history_length": history, **more}


def terms(history: int, clip: Any = None) -> dict[str, Any]:
    return {
        "base_ang_vel": entry([0.2, 0.2, 0.2], history, clip),
        "projected_gravity": entry(None, history),
        "velocity_commands": entry([1.0, 1.0, 1.0], history),
        "joint_pos_rel": entry([1.0] * 4, history),
        "joint_vel_rel": entry([0.05] * 4, history, clip),
        "last_action": entry([1.0] * 4, history),
    }


def values(step: Step) -> dict[str, np.ndarray[Any, Any]]:
    pose = DEPLOY["default_joint_pos"]
    return {
        "base_ang_vel": step.gyro,
        "projected_gravity": step.gravity,
        "velocity_commands": step.cmd,
        "joint_pos_rel": step.pos(POLICY) - pose,
        "joint_vel_rel": step.vel(POLICY),
        "last_action": step.last,
    }


class Manager:
    """The stack's observation manager: a buffer per term, oldest frame first."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.gym = group.get("use_gym_history", False)
        self.first = group.get("scale_first", False)
        self.terms = {k: v for k, v in group.items() if isinstance(v, dict)}
        self.buffers: dict[str, list[list[float]]] = {}

    def __call__(self, step: Step) -> np.ndarray[Any, Any]:
        for name, term in self.terms.items():
            frame = []
            for i, x in enumerate(values(step)[name]):
                scale = term["scale"][i] if term["scale"] else 1.0
                if self.first:
                    x = x * scale
                if term["clip"]:
                    x = min(max(x, term["clip"][0]), term["clip"][1])
                if not self.first:
                    x = x * scale
                frame.append(float(x))
            length = term["history_length"]
            buffer = self.buffers.setdefault(name, [frame] * length)
            self.buffers[name] = [*buffer[1:], frame]
        if self.gym:
            length = next(iter(self.terms.values()))["history_length"]
            frames = [self.buffers[n][i] for i in range(length) for n in self.terms]
        else:
            frames = [f for n in self.terms for f in self.buffers[n]]
        return np.concatenate(frames)


def deploy_target(action: Any) -> Any:
    spec = DEPLOY["actions"]["JointPositionAction"]
    low, high = np.array(spec["clip"]).T
    return np.clip(action * spec["scale"] + spec["offset"], low, high)


def deploy_case(folder: Path, groups: dict[str, Any], inputs: dict[str, int]) -> Case:
    case = Case(format="unitree_rl_lab", folder=folder)
    case.robot()
    plain = {**DEPLOY, "observations": groups}
    text = yaml.safe_dump(plain, sort_keys=False).replace("joint_ids: null", SLICE)
    assert SLICE in text
    case.write("params/deploy.yaml", text)
    case.files.append(Network(inputs=inputs, actions=4).save(folder / "exported/policy.onnx"))
    case.settings = ["timing.pd_dt=0.002", NUMBERED]
    return case


@pytest.mark.parametrize("gym", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("history", [1, 3])
def test_deploy_yaml_and_its_histories(
    tmp_path: Path, gym: bool, first: bool, history: int
) -> None:
    group = {"use_gym_history": gym, "scale_first": first, **terms(history, clip=[-0.3, 0.4])}
    case = deploy_case(tmp_path, group, {"obs": 21 * history})
    case.golden = record(
        tmp_path / "golden.npz",
        Manager(group),
        Network(inputs={"obs": 21 * history}, actions=4),
        deploy_target,
        actions=4,
        order=POLICY,
    )
    contract = case.run().policy.contract
    assert list(contract.joint_names) == POLICY
    assert [j.motor for j in contract.joints] == IDS
    # Gains stand in the motors' order: right_hip, right_knee, left_hip, left_knee.
    by_name = {j.name: (j.kp, j.kd) for j in contract.joints}
    assert by_name == {
        "right_hip": (101.0, 2.0),
        "right_knee": (151.0, 4.0),
        "left_hip": (100.0, 2.5),
        "left_knee": (150.0, 4.5),
    }


def test_groups_become_several_inputs_in_the_graphs_order(tmp_path: Path) -> None:
    groups = {
        "now": {k: v for k, v in terms(1).items() if k != "joint_vel_rel"},
        "past": {"use_gym_history": True, "joint_vel_rel": terms(4)["joint_vel_rel"]},
    }
    inputs = {"past": 16, "now": 17}
    case = deploy_case(tmp_path, groups, inputs)
    managers = {name: Manager(group) for name, group in groups.items()}
    case.golden = record(
        tmp_path / "golden.npz",
        lambda step: np.concatenate([managers[name](step) for name in inputs]),
        Network(inputs=inputs, actions=4),
        deploy_target,
        actions=4,
        order=POLICY,
    )
    assert case.run().policy.contract.inputs() == inputs


def test_a_gait_phase_with_a_history(tmp_path: Path) -> None:
    group = {"gait_phase": entry([1.0, 1.0], 3, params={"period": 0.6}), **terms(3)}
    case = deploy_case(tmp_path, group, {"obs": 3 * 23})
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert {question.path for question in missing.value.questions} == {"phase.start", "phase.stand"}
    inner = Manager(terms(3))
    clock: list[list[float]] = []

    def observe(step: Step) -> Any:
        angle = 2 * math.pi * (step.k + 1) * 0.02 / 0.6
        frame = [math.sin(angle), math.cos(angle)]
        clock[:] = [*clock[1:], frame] if clock else [frame] * 3
        return np.concatenate([*clock, inner(step)])

    case.settings += [f"phase.start={0.02 / 0.6}", "phase.stand=run"]
    case.golden = record(
        tmp_path / "golden.npz",
        observe,
        Network(inputs={"obs": 69}, actions=4),
        deploy_target,
        actions=4,
        order=POLICY,
    )
    assert case.run().replayed is not None


def test_weights_beside_the_graph_are_brought_in(tmp_path: Path) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    network = Network(inputs={"obs": 21}, actions=4)
    model = network.proto()
    for weight in model.graph.initializer:
        data = numpy_helper.to_array(weight).tobytes()
        place = (tmp_path / f"exported/{weight.name}.data").name
        (tmp_path / "exported" / place).write_bytes(data)
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        entry = weight.external_data.add()
        entry.key, entry.value = "location", place
    path = tmp_path / "exported/policy.onnx"
    path.write_bytes(model.SerializeToString())
    imported = case.run()
    obs = np.linspace(-1, 1, 21, dtype=np.float32)
    np.testing.assert_allclose(imported.policy.network()(obs), network(obs), atol=1e-6)
    (tmp_path / "exported/w.data").unlink()
    with pytest.raises(BadInput, match=r"keeps its weights in 'w.data', which is not beside it"):
        case.run()
    model.graph.initializer[0].external_data[0].value = "../../secret"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BadInput, match="lies outside of its folder"):
        case.run()


def test_two_kinds_of_actions_and_joints_by_index(tmp_path: Path) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    actions = {
        "JointPositionAction": {"scale": 0.5, "offset": [0.1, -0.1], "joint_ids": [0, 1]},
        "JointVelocityAction": {"scale": [5.0, 5.0], "joint_ids": [2, 3], "clip": [-9.0, 9.0]},
    }
    text = yaml.safe_dump({**DEPLOY, "actions": actions, "observations": terms(1)}, sort_keys=False)
    case.write("params/deploy.yaml", text)
    imported = case.run()
    contract = imported.policy.contract
    first, second = contract.action.terms
    sources = [
        imported.fields[f"action.terms.{i}.{f}"] for i in (0, 1) for f in ("scale", "offset")
    ]
    assert sources == ["file: deploy.yaml actions"] * 3 + ["default: a zero action is no velocity"]
    assert (first.kind, first.joints, first.scale) == ("position", tuple(POLICY[:2]), (0.5, 0.5))
    assert (second.kind, second.joints) == ("velocity", tuple(POLICY[2:]))
    assert (second.offset, second.target_upper) == ((0.0, 0.0), (9.0, 9.0))
    assert [h.joint for h in contract.action.hold] == POLICY[2:]


def test_deploy_yaml_of_a_bigger_or_smaller_robot_is_refused(tmp_path: Path) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    case.robot(robot_xml(LEGS[:3], LEGS[:3]))
    case.settings.remove(NUMBERED)
    with pytest.raises(BadInput, match=r"names motor 3, but actuators of scene.xml are 3"):
        case.run()
    more = [*MOTORS, "waist"]
    case.robot(robot_xml([*LEGS, "waist"], more))
    case.settings.append(f"motors=[{', '.join(more)}]")
    with pytest.raises(MissingFieldsError, match=r"joints.others .*model 5: another robot"):
        case.run()
    case.settings.append("joints.others=passive")
    assert any("joints without any target: waist" in note for note in case.run().notes)


def test_a_model_without_actuators_needs_the_motors_names(tmp_path: Path) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    case.robot(robot_xml(LEGS, None))
    case.settings.remove(NUMBERED)
    with pytest.raises(BadInput, match=r"actuators of scene.xml are 0.*motors: \[NAME"):
        case.run()
    case.settings.append(f"motors=[{', '.join(MOTORS)}]")
    assert list(case.run().policy.contract.joint_names) == POLICY


@pytest.mark.parametrize(
    ("actuators", "ids", "certain"),
    [
        (MOTORS, IDS, True),  # Breadth first through them: as Isaac Lab orders joints.
        (LEGS, IDS, False),  # Left first, where the file means right first: legs swapped.
        (MOTORS, [2, 3, 0, 1], True),  # Depth first: as mjlab orders them.
        (LEGS, [0, 1, 2, 3], False),  # Numbers that say nothing fit any order.
    ],
)
def test_an_unknown_robots_motors_are_asked_for_where_only_the_model_tells(
    tmp_path: Path, actuators: tuple[str, ...], ids: list[int], certain: bool
) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    case.robot(nested_xml(actuators))
    case.settings = ["timing.pd_dt=0.002", "joints.effort_limit=30.0"]
    text = (tmp_path / "params/deploy.yaml").read_text()
    plain = yaml.safe_load(text.replace(SLICE, "joint_ids: null"))
    case.write("params/deploy.yaml", yaml.safe_dump({**plain, "joint_ids_map": ids}))
    if certain:
        note = "taken is the order of the actuators of scene.xml: right_hip, right_knee, left_hip"
        imported = case.run()
        assert any(note in n for n in imported.notes)
        names = list(imported.policy.contract.joint_names)
        assert names == [actuators[i] for i in ids]
    else:
        with pytest.raises(MissingFieldsError, match=r"1 field .*motors .*joints behind the robot"):
            case.run()
    case.settings.append(NUMBERED)
    imported = case.run()
    assert not any("taken is the order" in n for n in imported.notes)
    assert list(imported.policy.contract.joint_names) == [MOTORS[i] for i in ids]


@pytest.mark.parametrize("motors", ["3", "left_hip", "[1, 2, 3, 4]", "[]", "{a: 1}"])
def test_motors_are_names(tmp_path: Path, motors: str) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    case.settings[1] = f"motors={motors}"
    with pytest.raises(BadInput, match="motors: expected different names"):
        case.run()


def test_motors_that_the_model_lacks_are_no_idle_joints(tmp_path: Path) -> None:
    """A robot with fewer joints keeps the bus of the one with more: numbers with gaps."""
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    path, ids = tmp_path / "params/deploy.yaml", [i + (i > 1) for i in IDS]
    plain = yaml.safe_load(path.read_text().replace(SLICE, "joint_ids: null"))
    for key in ("stiffness", "damping"):
        plain[key].insert(2, 0.0)
    case.write("params/deploy.yaml", yaml.safe_dump({**plain, "joint_ids_map": ids}))
    case.settings.append(f"motors=[{', '.join([*MOTORS[:2], 'waist', *MOTORS[2:]])}]")
    contract = case.run().policy.contract
    assert list(contract.joint_names) == POLICY
    assert [joint.motor for joint in contract.joints] == ids
    case.write("params/deploy.yaml", yaml.safe_dump({**plain, "joint_ids_map": [2, *ids[1:]]}))
    with pytest.raises(BadInput, match="motor 2 of the user's motors moves 'waist', which is no"):
        case.run()


def test_rounded_numbers_are_flagged_unless_one_is_not_rounded(tmp_path: Path) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    assert any("three digits" in note for note in case.run().notes)
    text = (tmp_path / "params/deploy.yaml").read_text().replace("101.0", "101.0078125")
    case.write("params/deploy.yaml", text)
    assert not any("three digits" in note for note in case.run().notes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("step_dt: 0.02", "step_dt: [0.02]", r"deploy.yaml step_dt: expected a finite number"),
        ("step_dt: 0.02", "step_dt: .nan", r"step_dt: expected a finite number, found nan"),
        ("- 101.0", "- .inf", r"stiffness\[0\]: expected a finite number, found inf"),
        ("joint_ids_map:\n- 2\n- 0\n- 3\n- 1\n", "joint_ids_map: []\n", r"map: names no motor"),
        ("joint_ids_map:", "ids:", r"'joint_ids_map' is missing; there are ids"),
        ("- 101.0", "- -3.0", r"kp = -3.0 is negative"),
        ("builtins.slice", "os.system", r"joint_ids: expected joints.*os.system"),
        ("  base_ang_vel:", "  imu_camera:", r"observation.imu_camera.source \(what 'imu_camera'"),
        ("history_length: 1", "history_length: 7", r"input 'obs' takes 21 numbers, the terms give"),
        ("JointPositionAction", "Teleport", r"actions Teleport: an action of unknown kind"),
        ("- -0.1\n", "- 3.1\n", r"default position 3.1 of joint 'right_hip' is outside"),
    ],
)
def test_what_is_wrong_in_a_deploy_yaml_is_said(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    text = (tmp_path / "params/deploy.yaml").read_text()
    assert old in text
    case.write("params/deploy.yaml", text.replace(old, new))
    with pytest.raises((BadInput, Refused, ContractError), match=message):
        case.run()
    assert not (tmp_path / "out.onnx").exists()


def test_terms_may_pick_joints_by_slice_or_index(tmp_path: Path) -> None:
    """Isaac Lab leaves ``params.asset_cfg.joint_ids`` as a Python slice or a list."""
    groups = terms(1)
    asset = {"name": "robot", "joint_names": [".*"], "joint_ids": "ALL", "preserve_order": False}
    groups["joint_pos_rel"] = entry(
        [1.0, 1.0], params={"asset_cfg": {**asset, "joint_ids": [1, 3]}}
    )
    groups["joint_vel_rel"] = entry([0.05] * 2, params={"asset_cfg": dict(asset)})
    groups["last_action"]["params"] = {"asset_cfg": {**asset, "joint_ids": None}}
    case = deploy_case(tmp_path, groups, {"obs": 17})
    text = (tmp_path / "params/deploy.yaml").read_text()
    tag = "!!python/object/apply:builtins.slice [2, null, null]"
    case.write("params/deploy.yaml", text.replace("ALL", tag))

    def observe(step: Step) -> Any:
        every = values(step)
        every["joint_pos_rel"] = every["joint_pos_rel"][[1, 3]]
        every["joint_vel_rel"] = every["joint_vel_rel"][2:] * 0.05
        every["base_ang_vel"] = every["base_ang_vel"] * 0.2
        return np.concatenate([every[name] for name in groups])

    network = Network(inputs={"obs": 17}, actions=4)
    case.golden = record(
        tmp_path / "run.npz", observe, network, deploy_target, actions=4, order=POLICY
    )
    replayed = case.run().replayed
    assert replayed is not None
    # States are float32.
    assert replayed.report.observation < 1e-6
    head, _, tail = text.replace("ALL", tag).rpartition("- 3\n")
    case.write("params/deploy.yaml", f"{head}- 9\n{tail}")
    with pytest.raises(BadInput, match=r"joint_pos_rel params asset_cfg joint_ids: 9 of 4 joints"):
        case.run()


def test_gains_of_motors_with_gaps_are_asked_for(tmp_path: Path) -> None:
    """Files written by hand have as many gains as joints, for motors that are numbered further."""
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    more = ["waist", *MOTORS, "head"]
    case.robot(robot_xml([*LEGS, "waist", "head"], more))
    text = (tmp_path / "params/deploy.yaml").read_text()
    ids = "joint_ids_map:\n" + "".join(f"- {i}\n" for i in IDS)
    shifted = "joint_ids_map:\n" + "".join(f"- {i + 1}\n" for i in IDS)
    assert ids in text
    case.write("params/deploy.yaml", text.replace(ids, shifted))
    case.settings[1:] = [f"motors=[{', '.join(more)}]", "joints.others=passive"]
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    asked = {question.path: question.likely for question in missing.value.questions}
    in_policy_order = [DEPLOY["stiffness"][i] for i in IDS]
    assert asked["joints.kp"] == (str(in_policy_order), str(DEPLOY["stiffness"]))
    assert "joints.kd" in asked
    case.settings += [f"joints.kp={asked['joints.kp'][0]}", f"joints.kd={asked['joints.kd'][0]}"]
    contract = case.run().policy.contract
    assert [joint.kp for joint in contract.joints] == in_policy_order


def test_a_position_action_without_an_offset_asks_where_it_begins(tmp_path: Path) -> None:
    case = deploy_case(tmp_path, terms(1), {"obs": 21})
    plain = {"joint_pos": {"scale": 0.25, "clip": None, "joint_names": [".*"]}}
    text = yaml.safe_dump({**DEPLOY, "actions": plain, "observations": terms(1)}, sort_keys=False)
    case.write("params/deploy.yaml", text)
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [question.path for question in missing.value.questions] == ["action.joint_pos.offset"]
    case.settings.append("action.joint_pos.offset=default_pos")
    (term,) = case.run().policy.contract.action.terms
    assert (term.kind, list(term.offset)) == ("position", DEPLOY["default_joint_pos"])


def test_the_folder_of_a_run_holds_other_files_too(tmp_path: Path) -> None:
    case = deploy_case(tmp_path, {"policy": terms(1)}, {"obs": 21})
    case.write("params/env.yaml", "scene: !!python/object/apply:builtins.slice [1, 2, null]\n")
    case.write("params/agent.yaml", "policy: {activation: elu}\n")
    (tmp_path / "exported/policy.pt").write_bytes(b"never read")
    case.files = [tmp_path / "exported", tmp_path / "params"]
    assert list(case.run().policy.contract.joint_names) == POLICY


def test_commands_in_two_terms(tmp_path: Path) -> None:
    groups = terms(1)
    names = {"command_lin_vel": 2, "command_ang_vel": 1}
    split = {name: entry([1.0] * count) for name, count in names.items()}
    items = list(groups.items())
    groups = dict([*items[:2], *split.items(), *items[3:]])
    case = deploy_case(tmp_path, groups, {"obs": 21})
    (block,) = case.run().policy.contract.observation
    channels = {term.name: term.channels for term in block.terms if term.source == "command"}
    assert channels == {
        "command_lin_vel": ("lin_vel_x", "lin_vel_y"),
        "command_ang_vel": ("ang_vel_z",),
    }
