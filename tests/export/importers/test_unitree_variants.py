"""Files of Unitree's stacks as robots, releases and forks vary them, against slow loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from export.importers.sheet import MissingFieldsError
from export.importers.unitree_motors import motor_order
from robot_runtime.errors import BadInput, Refused
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

SIDES = ("left", "right")
QUADRUPED = [f"{leg}_{part}_joint" for leg in ("FL", "FR", "RL", "RR")
             for part in ("hip", "thigh", "calf")]  # fmt: skip
H1_LEGS = [f"{side}_{part}_joint" for side in SIDES
           for part in ("hip_yaw", "hip_roll", "hip_pitch", "knee", "ankle")]  # fmt: skip
ARM = [f"shoulder_{axis}" for axis in ("pitch", "roll", "yaw")] + ["elbow"]
NINETEEN = {"leg_joint2motor_idx": [*range(10)], "arm_waist_joint2motor_idx": [*range(10, 19)]}
H1 = [*H1_LEGS, "torso_joint", *(f"{side}_{part}_joint" for side in SIDES for part in ARM)]


def deploy(names: list[str], ids: list[int], gains: list[float], **changes: Any) -> dict[str, Any]:
    """A ``deploy.yaml`` for joints ``names`` in the policy's order, behind motors ``ids``."""
    pose = [0.01 * i for i in range(len(names))]
    action = {"clip": None, "joint_names": [".*"], "scale": [0.25] * len(names), "offset": pose}
    plain: dict[str, dict[str, Any]] = {
        name: {"params": {}, "clip": None, "scale": scale, "history_length": 1}
        for name, scale in {
            "base_ang_vel": [0.2] * 3,
            "velocity_commands": [1.0] * 3,
            "joint_pos_rel": [1.0] * len(names),
            "last_action": [1.0] * len(names),
        }.items()
    }
    ranges = {"lin_vel_x": [-0.5, 0.5], "lin_vel_y": [-0.5, 0.5], "ang_vel_z": [-0.5, 0.5]}
    return {
        "joint_ids_map": ids,
        "step_dt": 0.02,
        "stiffness": gains,
        "damping": [gain / 50.0 for gain in gains],
        "default_joint_pos": pose,
        "commands": {"base_velocity": {"ranges": {**ranges, "heading": None}}},
        "actions": {"JointPositionAction": {**action, "joint_ids": None}},
        "observations": plain,
        **changes,
    }


def lab_case(folder: Path, plain: dict[str, Any], xml: str, width: int | None = None) -> Case:
    case = Case(format="unitree_rl_lab", folder=folder)
    case.robot(xml)
    case.write("params/deploy.yaml", yaml.safe_dump(plain, sort_keys=False))
    count = len(plain["joint_ids_map"])
    network = Network(inputs={"obs": width or 6 + 2 * count}, actions=count)
    case.files.append(network.save(folder / "policy.onnx"))
    case.settings = ["timing.pd_dt=0.002"]
    return case


def recorded(case: Case, names: list[str], joints: list[str]) -> None:
    """What the robot's program sees, joints in the policy's order by name."""
    pose = np.array([0.01 * i for i in range(len(names))])

    def observe(step: Step) -> Any:
        return np.concatenate([0.2 * step.gyro, step.cmd, step.pos(names) - pose, step.last])

    case.golden = record(
        case.folder / "golden.npz",
        observe,
        Network(inputs={"obs": 6 + 2 * len(names)}, actions=len(names)),
        lambda action: 0.25 * action + pose,
        actions=len(names),
        order=names,
        joints=joints,
    )


@pytest.mark.parametrize(
    ("joints", "robot", "numbers"),
    [
        (QUADRUPED, "Go2", {"FR_hip_joint": 0, "FL_hip_joint": 3, "RL_calf_joint": 11}),
        ([*QUADRUPED, "FL_foot_joint"], "Go2-W", {"FL_foot_joint": 13, "RR_calf_joint": 8}),
        (H1, "H1", {"right_hip_roll_joint": 0, "left_hip_yaw_joint": 7, "left_ankle_joint": 10,
                    "right_shoulder_pitch_joint": 12, "left_elbow_joint": 19}),
        (["left_hip_yaw_joint", "torso_joint", "left_wrist_yaw_joint"], "H1-2",
         {"left_hip_yaw_joint": 0, "torso_joint": 12, "left_wrist_yaw_joint": 19}),
        (["torso_joint", "left_elbow_pitch_joint", "right_elbow_roll_joint"], "H1-2",
         {"left_elbow_pitch_joint": 16, "right_elbow_roll_joint": 24}),
        (["waist_yaw_joint", "left_elbow_joint", "right_wrist_roll_joint"], "G1",
         {"waist_yaw_joint": 12, "left_elbow_joint": 18, "right_wrist_roll_joint": 26}),
    ],
)  # fmt: skip
def test_the_numbers_of_unitrees_motors(
    joints: list[str], robot: str, numbers: dict[str, int]
) -> None:
    found = motor_order(joints)
    assert found is not None
    assert found[0].startswith(robot)
    assert {name: found[1].index(name) for name in numbers} == numbers


def test_models_that_leave_the_suffix_out_keep_their_own_words() -> None:
    found = motor_order([name.removesuffix("_joint") for name in H1])
    assert found is not None
    assert (found[1][6], found[1][9], found[1][19]) == ("torso", "", "left_elbow")


def test_joints_of_two_robots_or_of_none_have_no_numbers() -> None:
    # G1 counts its hips pitch first, H1-2 yaw first.
    assert motor_order(["left_hip_pitch_joint", "left_hip_yaw_joint"]) is None
    assert motor_order(["left_hip", "left_knee"]) is None
    assert motor_order(["FL_hip_joint", "FL_hip"]) is None
    assert motor_order([]) is None


@pytest.mark.parametrize("legs", [("FL", "FR", "RL", "RR"), ("FR", "FL", "RR", "RL")])
def test_a_quadrupeds_motors_have_their_vendors_numbers_in_any_model(
    tmp_path: Path, legs: tuple[str, ...]
) -> None:
    """A model whose actuators begin on the left must not swap the legs."""
    actuators = [f"{leg}_{part}_joint" for leg in legs for part in ("hip", "thigh", "calf")]
    policy = [f"{leg}_{part}_joint" for part in ("hip", "thigh", "calf")
              for leg in ("FL", "FR", "RL", "RR")]  # fmt: skip
    ids = [3, 0, 9, 6, 4, 1, 10, 7, 5, 2, 11, 8]
    plain = deploy(policy, ids, [20.0 + i for i in range(12)])
    case = lab_case(tmp_path, plain, robot_xml(QUADRUPED, actuators, name="go2"))
    recorded(case, policy, QUADRUPED)
    imported = case.run()
    contract = imported.policy.contract
    assert list(contract.joint_names) == policy
    assert {j.name: j.kp for j in contract.joints}["FL_hip_joint"] == 23.0
    warned = any("actuators of scene.xml stand in another order" in n for n in imported.notes)
    assert warned == (legs[0] == "FL")
    assert "file: deploy.yaml joint_ids_map through motors of Unitree's Go2" in " ".join(
        imported.fields.values()
    )


def test_a_reduced_robot_has_its_vendors_numbers_where_its_model_agrees(tmp_path: Path) -> None:
    """A relative of the G1 has fewer joints, and may number its waist the other way round."""
    joints = [f"left_{part}_joint" for part in ("hip_pitch", "hip_roll")]
    joints += ["waist_yaw_joint", "waist_roll_joint"]
    plain = deploy(joints, [0, 1, 12, 13], [10.0 + i for i in range(29)])
    case = lab_case(tmp_path, plain, robot_xml(joints, joints, name="g1"))
    assert [j.kp for j in case.run().policy.contract.joints] == [10.0, 11.0, 22.0, 23.0]
    case.robot(robot_xml(joints, [*joints[:2], *joints[:1:-1]], name="g1"))
    with pytest.raises(
        MissingFieldsError, match=r"1 field .*motors .*models list their"
    ) as missing:
        case.run()
    (question,) = missing.value.questions
    case.settings.append(f"motors={question.likely[0]}")
    assert [j.kp for j in case.run().policy.contract.joints] == [10.0, 11.0, 22.0, 23.0]


def test_a_humanoid_whose_numbering_has_a_gap(tmp_path: Path) -> None:
    ids = [7, 8, 6, 3, 0, 4, 1, 5, 2, 10, 11, 16, 12, 17, 13, 18, 14, 19, 15]
    pairs = ["hip_yaw", "torso", "hip_roll", "hip_pitch", "knee", "ankle", *ARM]
    policy = [f"{side}_{part}_joint" for part in pairs if part != "torso" for side in SIDES]
    policy.insert(2, "torso_joint")
    gains = [10.0 + i for i in range(20)]
    case = lab_case(tmp_path, deploy(policy, ids, gains), robot_xml(H1, H1, name="h1"))
    recorded(case, policy, H1)
    contract = case.run().policy.contract
    assert [j.motor for j in contract.joints] == ids
    assert [j.kp for j in contract.joints] == [gains[i] for i in ids]


def test_rl_gym_finds_legs_and_arms_by_the_motors_numbers(tmp_path: Path) -> None:
    """The robot's file alone, and a model whose right leg comes first."""
    joints = [*H1_LEGS[5:], *H1_LEGS[:5], *H1[10:]]
    pose = [0.0, 0.0, -0.1, 0.3, -0.2] * 2
    real = {
        "control_dt": 0.02,
        "policy_path": "{ROOT}/deploy/pre_train/h1/motion.pt",
        "leg_joint2motor_idx": [7, 3, 4, 5, 10, 8, 0, 1, 2, 11],
        "kps": [150, 150, 150, 200, 40] * 2,
        "kds": [2, 2, 2, 4, 2] * 2,
        "default_angles": pose,
        "arm_waist_joint2motor_idx": [6, 16, 17, 18, 19, 12, 13, 14, 15],
        "arm_waist_kps": [300.0, *[100.0, 100.0, 50.0, 51.0] * 2],
        "arm_waist_kds": [3.0] * 9,
        "arm_waist_target": [0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, -0.5],
        "ang_vel_scale": 0.25,
        "dof_pos_scale": 1.0,
        "dof_vel_scale": 0.05,
        "action_scale": 0.25,
        "cmd_scale": [2.0, 2.0, 0.25],
        "num_actions": 10,
        "num_obs": 41,
        "max_cmd": [0.8, 0.5, 1.57],
    }
    case = Case(format="unitree_rl_gym", folder=tmp_path)
    case.robot(robot_xml(joints, joints, name="h1"))
    case.write("h1.yaml", yaml.safe_dump(real))
    case.files.append(Network(inputs={"obs": 41}, actions=10).save(tmp_path / "p.onnx"))
    case.settings = ["timing.pd_dt=0.002", "phase.period=0.8", "phase.start=0.025"]
    contract = case.run().policy.contract
    assert list(contract.action_joints) == H1_LEGS
    # Nobody's robot has nobody's numbers, and its scene lists its joints in another order.
    other = {**real, "policy_path": "motion.pt"}
    case.robot(robot_xml([f"my_{n}" for n in joints], [f"my_{n}" for n in H1], name="my"))
    case.write("h1.yaml", yaml.safe_dump({**other, **NINETEEN}))
    with pytest.raises(MissingFieldsError, match=r"motors \(the joints behind the robot's motors"):
        case.run()
    case.settings.append(f"motors=[{', '.join(f'my_{n}' for n in H1)}]")
    assert list(case.run().policy.contract.joint_names) == [f"my_{n}" for n in H1]
    by_name = {j.name: (j.kp, j.motor) for j in contract.joints}
    assert by_name["torso_joint"] == (300.0, 6)
    assert by_name["left_elbow_joint"] == (51.0, 19)
    held = {h.joint: h.position for h in contract.action.hold}
    assert (held["left_elbow_joint"], held["right_elbow_joint"]) == (0.5, -0.5)


@pytest.mark.parametrize(("dim", "first"), [(21, "base_ang_vel"), (24, "base_lin_vel")])
def test_rl_gym_without_a_clock_asks_and_its_suggestion_is_an_answer(
    tmp_path: Path, dim: int, first: str
) -> None:
    plain = {
        "simulation_dt": 0.002,
        "control_decimation": 10,
        "kps": [100.0] * 4,
        "kds": [2.0] * 4,
        "default_angles": [0.0] * 4,
        "ang_vel_scale": 0.25,
        "dof_pos_scale": 1.0,
        "dof_vel_scale": 0.05,
        "action_scale": 0.25,
        "cmd_scale": [2.0, 2.0, 0.25],
        "num_actions": 4,
        "num_obs": dim,
    }
    case = Case(format="unitree_rl_gym", folder=tmp_path)
    case.robot()
    case.write("x.yaml", yaml.safe_dump(plain))
    case.files.append(Network(inputs={"obs": dim}, actions=4).save(tmp_path / "p.onnx"))
    case.settings = [f"commands.{name}=[-1, 1]" for name in ("lin_vel_x", "lin_vel_y", "ang_vel_z")]
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    (question,) = missing.value.questions
    assert question.path == "observation"
    case.settings.append(f"observation={question.likely[0]}")
    terms = case.run(allow_privileged=True).policy.contract.observation[0].terms
    assert terms[0].name == first
    assert [t.scale for t in terms if t.source in ("command", "joint_vel")] == [
        (2.0, 2.0, 0.25),
        (0.05,),
    ]


def test_rl_gym_with_reduced_hips_and_a_clip_of_actions(tmp_path: Path) -> None:
    plain = {
        "simulation_dt": 0.002,
        "control_decimation": 10,
        "kps": [20.0] * 12,
        "kds": [0.5] * 12,
        "default_angles": [0.0] * 12,
        "ang_vel_scale": 0.25,
        "dof_pos_scale": 1.0,
        "dof_vel_scale": 0.05,
        "action_scale": 0.25,
        "hip_scale_reduction": 0.5,
        "clip_actions": 100.0,
        "cmd_scale": [2.0, 2.0, 0.25],
        "num_actions": 12,
        "num_obs": 47,
    }
    case = Case(format="unitree_rl_gym", folder=tmp_path)
    case.robot(robot_xml(QUADRUPED, QUADRUPED, name="go1"))
    case.write("go1.yaml", yaml.safe_dump(plain))
    case.files.append(Network(inputs={"obs": 47}, actions=12).save(tmp_path / "p.onnx"))
    case.settings = [f"commands.{name}=[-1, 1]" for name in ("lin_vel_x", "lin_vel_y", "ang_vel_z")]
    case.settings += ["phase.period=0.8", "phase.start=0.025"]
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    questions = {question.path: question for question in missing.value.questions}
    assert set(questions) == {"action.scale", "observation.last_action.stage"}
    case.settings += [f"{path}={question.likely[0]}" for path, question in questions.items()]
    (term,) = case.run().policy.contract.action.terms
    assert term.scale == (0.125, 0.25, 0.25) * 4
    assert term.raw_upper == (100.0,) * 12


NAMES = ["left_hip", "right_hip", "left_knee", "right_knee"]
IDS = [2, 0, 3, 1]


def biped(folder: Path, width: int | None = None, **changes: Any) -> Case:
    plain = deploy(NAMES, IDS, [100.0] * 4, **changes)
    case = lab_case(folder, plain, robot_xml(), width)
    case.settings.append(NUMBERED)
    return case


def with_action(name: str = "JointPositionAction", **fields: Any) -> dict[str, Any]:
    action = {"clip": None, "scale": [0.25] * 4, "offset": [0.0] * 4, "joint_ids": None, **fields}
    return {"actions": {name: action}}


def test_names_of_joints_in_the_file_are_compared_with_those_behind_the_motors(
    tmp_path: Path,
) -> None:
    patterns = [".*_hip", "left_.*"]
    with pytest.raises(BadInput, match=r"joint_names: does not name 'right_knee', which joint_ids"):
        biped(tmp_path / "a", **with_action(joint_names=patterns)).run()
    assert biped(tmp_path / "b", **with_action(joint_names=[".*_hip", ".*_knee"])).run()
    other = biped(tmp_path / "c", **with_action(joint_names=[".*_joint"])).run()
    assert any("fits no joint of the model" in note for note in other.notes)
    for slow in (r"(\w+)+!", "(.*_.*)*!", ".*.*.*.*.*.*!", "a" * 101, r"(\w)\1"):
        case = biped(tmp_path / "s", **with_action(joint_names=[slow]))
        assert any("of a kind that is not compared" in note for note in case.run().notes)
    with pytest.raises(BadInput, match="joint_names: not a pattern"):
        biped(tmp_path / "d", **with_action(joint_names=["(", ".*"])).run()


def test_names_one_by_one_in_another_order_ask_for_the_motors(tmp_path: Path) -> None:
    case = biped(tmp_path, **with_action(joint_names=list(LEGS)))
    case.robot(nested_xml(MOTORS))
    case.settings = ["timing.pd_dt=0.002", "joints.effort_limit=30.0"]
    with pytest.raises(MissingFieldsError, match=r"motors \(.*begins with left_hip, the joints"):
        case.run()
    case.settings.append("motors=[right_hip, right_knee, left_hip, left_knee]")
    assert list(case.run().policy.contract.joint_names) == NAMES


def test_what_forks_add_is_asked_for_or_said(tmp_path: Path) -> None:
    case = biped(tmp_path, **with_action(low_pass_filter_cutoff_hz=5.0, owner="me"))
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    (question,) = missing.value.questions
    # A first-order low-pass sampled at 50 Hz: exact, and by backward differences.
    exact, backward = 1.0 - np.exp(-2 * np.pi * 5.0 * 0.02), 1.0 - 1.0 / (1 + 2 * np.pi * 0.1)
    assert [float(x) for x in question.likely] == pytest.approx([exact, backward], rel=1e-5)
    case.settings += [f"action.filter={question.likely[0]}", "observation.last_action.stage=raw"]
    imported = case.run()
    assert imported.policy.contract.action.filter == pytest.approx(exact, rel=1e-5)
    assert any("no such keys: owner" in note for note in imported.notes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low_pass_filter_cutoff_hz": -1e9}, "cutoff_hz: -1e.09 is not positive"),
        ({"low_pass_filter_cutoff_hz": "5"}, "cutoff_hz: expected a finite number"),
        ({"raw_clip": [1.0]}, "raw_clip: expected bounds"),
    ],
)
def test_what_is_wrong_in_what_forks_add_is_said(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        biped(tmp_path, **with_action(**fields)).run()


@pytest.mark.parametrize("names", [[{"a": 1}] * 4, [[1]] * 4, 7, None], ids=str)
def test_names_that_are_none_are_not_compared(tmp_path: Path, names: Any) -> None:
    imported = biped(tmp_path, **with_action(joint_names=names)).run()
    assert list(imported.policy.contract.joint_names) == NAMES


def test_actions_that_are_no_scaled_target(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown kind \(tolimits\).*custom"):
        biped(tmp_path / "a", **with_action("JointPositionToLimitsAction")).run()
    with pytest.raises(BadInput, match=r"unknown kind \(reference\)"):
        biped(tmp_path / "r", **with_action("ReferenceJointPositionAction")).run()
    with pytest.raises(BadInput, match="an action of unknown kind"):
        biped(tmp_path / "b", **with_action(rescale_to_limits=True)).run()
    case = biped(tmp_path / "c", **with_action("RelativeJointPositionAction"))
    with pytest.raises(MissingFieldsError, match=r"relative_to .*likely measured or offset"):
        case.run()
    case.settings.append("action.RelativeJointPositionAction.relative_to=measured")
    assert case.run().policy.contract.action.terms[0].relative_to == "measured"


def with_terms(**terms: Any) -> dict[str, Any]:
    usual = {"params": {}, "clip": None, "scale": None, "history_length": 1}
    return {"observations": {name: {**usual, **fields} for name, fields in terms.items()}}


def test_a_motion_that_is_not_there_is_refused(tmp_path: Path) -> None:
    terms = with_terms(base_ang_vel={}, motion_command={"params": {"command_name": "motion"}})
    with pytest.raises(Refused, match=r"motion_command: follows a motion.*'time_step'.*beyondmim"):
        biped(tmp_path, **terms).run()


@pytest.mark.parametrize("source", ["joint_pos", "joint_pos_rel"])
def test_a_term_that_two_programs_call_alike_is_asked_for(tmp_path: Path, source: str) -> None:
    case = biped(tmp_path, 4, **with_terms(joint_pos={"size": 4}))
    with pytest.raises(MissingFieldsError, match=r"observation.joint_pos.source .*relative in Isa"):
        case.run()
    case.settings.append(f"observation.joint_pos.source={source}")
    imported = case.run()
    assert imported.policy.contract.observation[0].terms[0].source == source
    assert any("joint_pos: not read, as the stack has no such keys: size" in n
               for n in imported.notes)  # fmt: skip


@pytest.mark.parametrize(
    "params",
    [
        {"wheel_joint_ids": [2, 3]},
        {"wheel_asset_cfg": {"joint_ids": [2, 3], "joint_names": [".*_knee"]}},
    ],
)
def test_wheels_have_no_position(tmp_path: Path, params: dict[str, Any]) -> None:
    scaled = {"params": params, "scale": [0.5] * 4}
    case = biped(tmp_path, 4, **with_terms(joint_pos_rel_without_wheel=scaled))
    (term,) = case.run().policy.contract.observation[0].terms
    assert (term.source, term.scale) == ("joint_pos_rel", (0.5, 0.5, 0.0, 0.0))


def test_wheels_that_nobody_names_are_asked_for(tmp_path: Path) -> None:
    case = biped(tmp_path, 4, **with_terms(joint_pos_rel_without_wheel={}))
    with pytest.raises(MissingFieldsError, match=r"joint_pos_rel_without_wheel.scale .*no wheels"):
        case.run()


def test_groups_may_hold_the_same_term_of_other_joints_and_share_one_switch(tmp_path: Path) -> None:
    def term(ids: list[int]) -> dict[str, Any]:
        params = {"asset_cfg": {"joint_ids": ids}}
        return {"params": params, "clip": None, "scale": [1.0] * 2, "history_length": 3}

    gyro = {"params": {}, "clip": None, "scale": [1.0] * 3, "history_length": 3}
    groups = {
        "hips": {"joint_pos_rel": term([0, 1]), "base_ang_vel": gyro},
        "knees": {"use_gym_history": True, "joint_pos_rel": term([2, 3]), "base_ang_vel": gyro},
    }
    case = biped(tmp_path, observations=groups)
    case.files[-1] = Network(inputs={"hips": 15, "knees": 15}, actions=4).save(tmp_path / "p.onnx")
    pose = np.array([0.01 * i for i in range(4)])
    seen: list[list[Any]] = []

    def observe(step: Step) -> Any:
        q = step.pos(NAMES) - pose
        frame = [np.concatenate([q[:2], step.gyro]), np.concatenate([q[2:], step.gyro])]
        seen[:] = [*seen[1:], frame] if seen else [frame] * 3
        return np.concatenate([np.concatenate([f[i] for f in seen]) for i in range(2)])

    case.golden = record(
        tmp_path / "golden.npz",
        observe,
        Network(inputs={"hips": 15, "knees": 15}, actions=4),
        lambda action: 0.25 * action + pose,
        actions=4,
        order=NAMES,
    )
    assert case.run().replayed is not None


@pytest.mark.parametrize("beside", [True, False], ids=["beside the group", "in the group"])
def test_the_switch_of_a_single_group_may_stand_beside_it(tmp_path: Path, beside: bool) -> None:
    """As many numbers in either layout: only the switch tells."""
    group = {
        name: {"params": {}, "clip": None, "scale": [1.0] * size, "history_length": 3}
        for name, size in (("base_ang_vel", 3), ("joint_pos_rel", 4))
    }
    switch = {"use_gym_history": True}
    nested = {"obs": group} if beside else {"obs": {**switch, **group}}
    case = biped(tmp_path, 21, observations={**(switch if beside else {}), **nested})
    pose = np.array([0.01 * i for i in range(4)])
    seen: list[Any] = []

    def observe(step: Step) -> Any:
        frame = np.concatenate([step.gyro, step.pos(NAMES) - pose])
        seen[:] = [*seen[1:], frame] if seen else [frame] * 3
        return np.concatenate(seen)

    case.golden = record(
        tmp_path / "golden.npz",
        observe,
        Network(inputs={"obs": 21}, actions=4),
        lambda action: 0.25 * action + pose,
        actions=4,
        order=NAMES,
    )
    assert case.run().replayed is not None


def test_a_group_without_terms_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="observations params: no observation terms"):
        biped(tmp_path, observations={"params": {}}).run()


def test_a_clip_of_the_raw_action_is_read(tmp_path: Path) -> None:
    case = biped(tmp_path, **with_action(raw_clip=[-10.0, 9.0]))
    with pytest.raises(MissingFieldsError, match=r"last_action\.stage"):
        case.run()
    case.settings.append("observation.last_action.stage=applied")
    (term,) = case.run().policy.contract.action.terms
    assert (term.raw_lower, term.raw_upper) == ((-10.0,) * 4, (9.0,) * 4)


def test_gains_one_per_joint_need_no_question_where_both_orders_are_one(tmp_path: Path) -> None:
    ids = [0, 1, 3, 4]
    case = biped(tmp_path, joint_ids_map=ids, stiffness=[1.0, 2.0, 3.0, 4.0], damping=[0.1] * 4)
    motors = [*NAMES[:2], "", *NAMES[2:]]
    case.settings.append(f"motors={motors}")
    contract = case.run().policy.contract
    assert {j.name: j.kp for j in contract.joints} == dict(
        zip(NAMES, [1.0, 2.0, 3.0, 4.0], strict=True)
    )


def test_rules_of_commands_that_no_contract_has_are_said(tmp_path: Path) -> None:
    ranges = {"lin_vel_x": [-1, 1], "lin_vel_y": [-1, 1], "ang_vel_z": [-1, 1], "gait_freq": [1, 3]}
    commands = {"base_velocity": {"ranges": ranges, "command_smoothing_factor": 0.1}}
    notes = " ".join(biped(tmp_path, commands=commands).run().notes)
    assert "base_velocity: not read, as the stack has no such keys: command_smoothing_f" in notes
    assert "ranges: not read, as the stack has no such keys: gait_freq" in notes


def test_a_clock_without_a_period_is_asked_for(tmp_path: Path) -> None:
    case = biped(tmp_path, 2, **with_terms(gait_phase={}))
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert {q.path for q in missing.value.questions} == {
        "phase.period",
        "phase.start",
        "phase.stand",
    }
    case.settings += ["phase.period=0.5", "phase.stand=run"]
    with pytest.raises(MissingFieldsError, match=r"phase.start .*likely 0.08 or 0.0"):
        case.run()
