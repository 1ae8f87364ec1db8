"""rl_sar's older files and rarer terms, against its programs as slow loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import yaml

from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput
from tests.helpers.foreign import LEGS, VELOCITY, Case, Network, Step, record

ORDER = ["left_hip", "left_knee", "right_hip", "right_knee"]
"""The policy's order: also that of the model's joints, but not that of its motors."""

OLD: dict[str, Any] = {
    "model_name": "policy.onnx",
    "num_observations": 21,
    "observations": ["ang_vel", "gravity_vec", "commands", "dof_pos", "dof_vel", "actions"],
    "observations_history": [],
    "clip_obs": 100.0,
    "clip_actions_lower": [-0.5, -0.6, -0.7, -0.8],
    "clip_actions_upper": [0.4, 0.5, 0.6, 0.7],
    "rl_kp": [20.0, 21.0, 22.0, 23.0],
    "rl_kd": [0.5, 0.6, 0.7, 0.8],
    "num_of_dofs": 4,
    "action_scale": 0.5,
    "lin_vel_scale": 2.0,
    "ang_vel_scale": 0.25,
    "dof_pos_scale": 1.0,
    "dof_vel_scale": 0.05,
    "commands_scale": [2.0, 2.0, 0.25],
    "default_dof_pos": [0.1, 0.4, -0.1, 0.3],
    "dt": 0.005,
    "decimation": 4,
    "framework": "isaacgym",
    "joint_controller_names": [f"{name}_controller" for name in ORDER],
}


def old_case(folder: Path, section: str = "biped2/old", **changes: Any) -> Case:
    """A policy without a robot's file; the section names the robot."""
    config = {**OLD, **changes}
    case = Case(format="rl_sar", folder=folder)
    case.robot()
    case.write("models/old/config.yaml", yaml.safe_dump({section: config}))
    frames = max(1, len(config["observations_history"]))
    dim = config["num_observations"] * frames
    Network(inputs={"obs": dim}, actions=4).save(folder / "models/old/policy.onnx")
    case.settings = ["timing.pd_dt=0.002", VELOCITY]
    return case


def transposed(values: list[Any]) -> list[Any]:
    """Two legs with two joints each: written leg by leg, meant joint by joint."""
    return [values[0], values[2], values[1], values[3]]


def old_golden(
    case: Case, order: list[str], config: dict[str, Any], *, wheels: tuple[int, ...] = ()
) -> None:
    """Record the old program: hips reduced in the action that is kept, wheels with a scale."""
    low, high = np.array(config["clip_actions_lower"]), np.array(config["clip_actions_upper"])
    factor = np.ones(4)
    factor[config.get("hip_scale_reduction_indices", [])] = config.get("hip_scale_reduction", 1.0)
    scale = np.full(4, config["action_scale"])
    scale[list(wheels)] = config.get("action_scale_wheel", 0.0)
    pose = np.array(config["default_dof_pos"])

    def kept(action: Any) -> Any:
        return np.clip(action, low, high) * factor

    def observe(step: Step) -> Any:
        relative = step.pos(order) - pose
        relative[list(wheels)] = 0.0
        last = kept(step.last) if step.k else np.zeros(4)
        parts = [step.gyro * 0.25, step.gravity, step.cmd * [2.0, 2.0, 0.25], relative]
        return np.concatenate([*parts, step.vel(order) * 0.05, last])

    def target(action: Any) -> Any:
        moved = kept(action) * scale
        moved[list(wheels)] = 0.0
        return moved + pose

    network = Network(inputs={"obs": 21}, actions=4)
    path = case.folder / "golden.npz"
    kp = np.array(config["rl_kp"])
    case.golden = record(path, observe, network, target, actions=4, order=order, kp=kp)
    with np.load(path) as npz:
        arrays = dict(npz)
    speeds = np.zeros_like(arrays["act"])
    speeds[:, list(wheels)] = (kept(arrays["act"]) * scale)[:, list(wheels)]
    np.savez(path, **arrays, dtarget=speeds)


def test_lists_of_the_oldest_files_are_turned_joint_by_joint(tmp_path: Path) -> None:
    case = old_case(tmp_path, "biped2_isaacsim", framework="isaacsim", rows=2, cols=2)
    lists = ("clip_actions_lower", "clip_actions_upper", "rl_kp", "default_dof_pos")
    config = {**OLD, **{key: transposed(OLD[key]) for key in lists}}
    old_golden(case, transposed(ORDER), config)
    contract = case.run().policy.contract
    assert list(contract.joint_names) == transposed(ORDER)
    assert contract.joint_array("kd").tolist() == transposed(OLD["rl_kd"])


def test_lists_that_rows_and_columns_do_not_fit_are_refused(tmp_path: Path) -> None:
    case = old_case(tmp_path, framework="isaacsim", rows=2, cols=3)
    with pytest.raises(BadInput, match=r"clip_actions_lower: 4 items, rows and cols say 2 x 3"):
        case.run()


def test_reduced_hips_and_wheels_with_a_scale_of_their_own(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "hip_scale_reduction": 0.5,
        "hip_scale_reduction_indices": [0, 2],
        "action_scale_wheel": 8.0,
        "wheel_indices": [3],
        "rl_kp": [20.0, 21.0, 22.0, 0.0],
    }
    case = old_case(tmp_path, **changes)
    old_golden(case, ORDER, {**OLD, **changes}, wheels=(3,))
    imported = case.run()
    scales = [s for term in imported.policy.contract.action.terms for s in term.scale]
    assert scales == [0.25, 0.5, 0.25, 8.0]
    assert not any("not read" in note for note in imported.notes)


def test_names_beside_a_state_mapping_are_in_the_policys_order(tmp_path: Path) -> None:
    """Today's ``joint_mapping`` picks from the names; the older one only says which motor it is."""
    case = old_case(tmp_path, state_mapping=[2, 3, 1, 0], command_mapping=[3, 2, 0, 1])
    old_golden(case, ORDER, OLD)
    contract = case.run().policy.contract
    assert list(contract.joint_names) == ORDER
    assert [joint.motor for joint in contract.joints] == [2, 3, 1, 0]
    case = old_case(tmp_path / "b", state_mapping=[2, 3, 1, 0], command_mapping=[0, 1, 2, 3])
    with pytest.raises(BadInput, match=r"command_mapping: .* does not lead back"):
        case.run()


def test_joints_that_nobody_names_are_asked_for(tmp_path: Path) -> None:
    case = old_case(tmp_path, joint_controller_names=None)
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [q.path for q in missing.value.questions][-1] == "joints.names"
    case.settings.append(f"joints.names=[{', '.join(ORDER)}]")
    old_golden(case, ORDER, OLD)
    case.run()


def test_gains_that_nobody_states_are_asked_for(tmp_path: Path) -> None:
    """``fixed_kp`` are those of standing up: they are not taken for the policy's."""
    case = old_case(tmp_path, rl_kp=None, fixed_kp=[80.0] * 4)
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [q.path for q in missing.value.questions] == ["joints.kp"]


def test_frames_without_a_priority_follow_one_another(tmp_path: Path) -> None:
    """The buffer of programs before that field knows whole frames only."""
    imported = old_case(tmp_path, observations_history=[0, 1]).run()
    assert imported.policy.contract.observation[0].history.layout == "frame_major"
    assert any("without observations_history_priority" in note for note in imported.notes)


def test_the_part_of_a_motion_that_is_over(tmp_path: Path) -> None:
    """A clock of the motion's length; and nobody asks for commands that no term uses."""
    terms = ["gravity_vec", "dof_pos", "dof_vel", "actions", "RoboMimic_Deploy/phase"]
    case = old_case(tmp_path, observations=terms, num_observations=16)
    case.settings = ["timing.pd_dt=0.002"]
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [q.path for q in missing.value.questions][-1] == "phase.period"
    case.settings.append("phase.period=18.0")
    low, high = OLD["clip_actions_lower"], OLD["clip_actions_upper"]
    pose = np.array(OLD["default_dof_pos"])

    def observe(step: Step) -> Any:
        last = np.clip(step.last, low, high) if step.k else np.zeros(4)
        done = (step.k + 1) * 0.02 / 18.0
        parts = [step.gravity, step.pos(ORDER) - pose, step.vel(ORDER) * 0.05, last, [done]]
        return np.concatenate(parts)

    case.golden = record(
        tmp_path / "golden.npz",
        observe,
        Network(inputs={"obs": 16}, actions=4),
        lambda a: pose + 0.5 * np.clip(a, low, high),
        actions=4,
        order=ORDER,
        kp=np.array(OLD["rl_kp"]),
    )
    imported = case.run()
    assert not imported.policy.contract.commands
    assert any("the motion takes 18.0 s" in note for note in imported.notes)


@pytest.mark.parametrize(
    ("term", "why"),
    [("phase", "clocks of three periods"), ("whole_body_tracking/motion_command", "motion file")],
)
def test_terms_that_no_contract_has_are_refused_with_their_reason(
    tmp_path: Path, term: str, why: str
) -> None:
    case = old_case(tmp_path, observations=[*OLD["observations"], term])
    with pytest.raises(BadInput, match=why):
        case.run()


def test_the_users_list_of_terms_stands_for_one_that_cannot_be_read(tmp_path: Path) -> None:
    case = old_case(tmp_path, observations=["phase"], num_observations=21)
    case.settings.append(
        "observation=[base_ang_vel: {scale: 0.25}, projected_gravity, "
        "command: {scale: [2.0, 2.0, 0.25]}, joint_pos_rel, joint_vel: {scale: 0.05}, "
        "last_action: {stage: applied}]"
    )
    old_golden(case, ORDER, OLD)
    case.run()


def test_a_clock_of_the_users_has_no_period_of_the_stacks(tmp_path: Path) -> None:
    case = old_case(tmp_path, observations=[*OLD["observations"], "gait"], num_observations=23)
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [q.path for q in missing.value.questions] == ["observation.gait.source"]
    case.settings.append("observation.gait.source=phase_sin_cos")
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert {q.path for q in missing.value.questions} == {
        "phase.period",
        "phase.start",
        "phase.stand",
    }


def test_targets_from_a_gait_generator_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="use_pmtg_controller"):
        old_case(tmp_path, use_pmtg_controller=True).run()


def test_one_of_several_policies_is_named(tmp_path: Path) -> None:
    case = old_case(tmp_path)
    text = yaml.safe_dump({"biped2/one": OLD, "biped2/two": {**OLD, "action_scale": 0.125}})
    case.write("models/old/config.yaml", text)
    with pytest.raises(BadInput, match=r"sections biped2/one, biped2/two: .* name: ROBOT/POLICY"):
        case.run()
    case.settings.append("name=biped2/two")
    (action,) = case.run().policy.contract.action.terms
    assert action.scale == (0.125,) * len(LEGS)


def test_a_policy_among_others_has_the_network_beside_it(tmp_path: Path) -> None:
    case = old_case(tmp_path)
    case.write("models/other/config.yaml", yaml.safe_dump({"biped2/other": OLD}))
    Network(inputs={"obs": 21}, actions=4, seed=7).save(tmp_path / "models/other/policy.onnx")
    case.files = [tmp_path / "models"]
    case.settings.append("name=biped2/other")
    network = Network(inputs={"obs": 21}, actions=4, seed=7)
    policy = case.run().policy
    obs = np.linspace(-1.0, 1.0, 21)
    # One float32 layer in two libraries.
    (action,) = run_onnx_bytes(policy.model, obs)
    np.testing.assert_allclose(action, network(obs), atol=1e-6)


def test_a_robots_file_that_was_not_given_is_pointed_to(tmp_path: Path) -> None:
    case = old_case(tmp_path, dt=None, decimation=None)
    policy = {key: value for key, value in OLD.items() if key not in ("dt", "decimation")}
    case.write("models/old/config.yaml", yaml.safe_dump({"biped2/old": policy}))
    base = case.write("models/base.yaml", yaml.safe_dump({"biped2": {"dt": 0.01}}))
    case.files.remove(base)
    with pytest.raises(BadInput, match=rf"base.yaml of 'biped2' is missing: .* \({base}\)"):
        case.run()


def run_onnx_bytes(model: bytes, obs: Any) -> Any:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"obs": obs[None].astype(np.float32)})[0]
