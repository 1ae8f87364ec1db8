"""Recorded policies of other projects, imported from their own files, end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from export.importers.pipeline import Imported, Request, import_policy
from export.importers.provenance import field_paths
from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import Refused
from robot_runtime.policy.file import open_policy

VELOCITY = "{lin_vel_x: [-1.0, 1.0], lin_vel_y: [-1.0, 1.0], ang_vel_z: [-1.0, 1.0]}"
COMMANDS = {"commands.lin_vel_x", "commands.lin_vel_y", "commands.ang_vel_z"}

CASES: dict[str, tuple[str, str, set[str]]] = {
    "unitree_rl_gym__g1": (
        "unitree_rl_gym",
        "phase: {period: 0.8, start: 0.025}",
        {"phase.period", "phase.start"},
    ),
    "unitree_rl_lab__g1": ("unitree_rl_lab", "timing: {pd_dt: 0.002}", {"timing.pd_dt"}),
    "rl_sar__go2__himloco": (
        "rl_sar",
        f"timing: {{pd_dt: 0.002}}\ncommands: {VELOCITY}",
        {"timing.pd_dt", *COMMANDS},
    ),
    "rl_sar__go2__robot_lab": (
        "rl_sar",
        f"timing: {{pd_dt: 0.002}}\ncommands: {VELOCITY}",
        {"timing.pd_dt", *COMMANDS},
    ),
    "holosoma__t1_ppo": (
        "holosoma",
        """
        timing: {control_dt: 0.02, pd_dt: 0.005}
        action.scale: 0.25
        phase.period: 1.0
        observation.base_ang_vel.scale: 1.0
        observation.dof_vel.scale: 0.1
        joints:
          default_pos:
            (Left|Right)_Shoulder_Pitch: 0.2
            Left_Shoulder_Roll: -1.35
            Right_Shoulder_Roll: 1.35
            Left_Elbow_Yaw: -0.5
            Right_Elbow_Yaw: 0.5
            (Left|Right)_Hip_Pitch: -0.2
            (Left|Right)_Knee_Pitch: 0.4
            (Left|Right)_Ankle_Pitch: -0.25
            ".*(Head|Wrist|Hand|Waist|Elbow_Pitch|Hip_Roll|Hip_Yaw|Ankle_Roll).*": 0.0
        """,
        {
            "action.scale",
            "observation.base_ang_vel.scale",
            "observation.dof_vel.scale",
            "phase.period",
            "timing.control_dt",
            "timing.pd_dt",
            "joints.default_pos",
        },
    ),
    "bhl__policy_biped_25hz_a": ("berkeley_humanoid_lite", f"commands: {VELOCITY}", COMMANDS),
    "playground__go1": (
        "custom",
        """
        keyframe: home
        actuators: model
        timing: {control_dt: 0.02, pd_dt: 0.004}
        action: {scale: 0.5, offset: default_pos}
        commands: {lin_vel_x: [-1.5, 1.5], lin_vel_y: [-0.8, 0.8], ang_vel_z: [-6.28, 6.28]}
        observation:
          - base_lin_vel: {sensor: imu}
          - base_ang_vel: {sensor: imu}
          - projected_gravity: {sensor: imu}
          - joint_pos_rel
          - joint_vel
          - last_action
          - command
        """,
        {
            "joints.default_pos",
            "joints.kp",
            "joints.kd",
            "action.scale",
            "action.offset",
            "observation",
            "timing.control_dt",
            "timing.pd_dt",
        },
    ),
}


def request(real_dir: Path, case: str, out: Path, *user: Path, **changes: Any) -> Request:
    folder = real_dir / case
    fields: dict[str, Any] = {
        "format": CASES[case][0],
        "files": (folder / "vendor",),
        "model": str(folder / "model.xml"),
        "output": out,
        "user": user,
        "golden": folder / "golden.npz",
        "run_torchscript": True,
        "allow_privileged": True,
    }
    return Request(**{**fields, **changes})


@pytest.fixture(scope="module")
def imported(real_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Imported]:
    out = tmp_path_factory.mktemp("real")
    found = {}
    for case, (_, text, _) in CASES.items():
        user = out / f"{case}.yaml"
        user.write_text(text)
        found[case] = import_policy(request(real_dir, case, out / f"{case}.onnx", user))
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_the_files_do_not_state_is_asked_for_by_name(
    case: str, real_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(MissingFieldsError) as missing:
        import_policy(request(real_dir, case, tmp_path / "p.onnx"))
    assert {question.path for question in missing.value.questions} == CASES[case][2]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", CASES)
def test_the_recorded_run_is_reproduced(case: str, imported: dict[str, Imported]) -> None:
    replayed = imported[case].replayed
    assert replayed is not None
    report = replayed.report
    # States are float32, so 2e-7 is what a right import shows; a wrong one is off by 1e-3 and more.
    assert report.rows >= 250
    assert report.observation < 1e-6
    assert report.action < 1e-5
    assert report.target < 1e-6
    policy = open_policy(imported[case].policy.path)
    assert policy.trace.origin == "recorded"
    assert policy.provenance["trace"]["origin"] == "recorded"


@pytest.mark.parametrize("case", CASES)
def test_the_facts_of_the_record_are_in_the_contract(
    case: str, imported: dict[str, Imported], real_dir: Path
) -> None:
    facts = json.loads((real_dir / case / "facts.json").read_text())
    contract = imported[case].policy.contract
    assert list(contract.joint_names) == facts["joints"]
    assert contract.timing.control_dt == facts["timing"]["control_dt"]
    assert contract.timing.pd_dt == facts["timing"]["sim_dt"]
    assert contract.robot.base_body == facts["model"]["base_body"]
    for joint in contract.joints:
        gains = facts["gains"][joint.name]
        assert (joint.kp, joint.kd) == (gains["kp"], gains["kd"])
        assert joint.default_pos == facts["default_pose"][joint.name]
        if gains["torque_limit"] is not None:
            assert joint.effort_limit == pytest.approx(gains["torque_limit"])
    native = facts["model"]["actuator_type"] == "position"
    assert contract.actuator.form == ("native" if native else "explicit_pd")


@pytest.mark.parametrize("case", CASES)
def test_every_field_says_where_it_comes_from(case: str, imported: dict[str, Imported]) -> None:
    policy = imported[case].policy
    fields = policy.provenance["fields"]
    kinds = {source.partition(": ")[0] for source in fields.values()}
    assert kinds <= {"file", "model", "inferred", "default", "user"}
    for path in field_paths(policy.contract.to_dict()):
        merged = ".".join(
            "*" if i == 1 and p.isdigit() else p for i, p in enumerate(path.split("."))
        )
        assert path in fields or (path.startswith("joints.") and merged in fields), path
    for question in CASES[case][2]:
        said = [s for p, s in fields.items() if p == question or p == f"joints.*.{question[7:]}"]
        if question.startswith(("phase", "timing")):
            assert said[0].startswith("user")


def test_contradictions_and_rounding_are_reported(imported: dict[str, Imported]) -> None:
    notes = {case: " | ".join(found.notes) for case, found in imported.items()}
    assert "33.5 for FL_hip_joint" in notes["rl_sar__go2__himloco"]
    assert "says 6.0 for leg_left_hip_roll_joint" in notes["bhl__policy_biped_25hz_a"]
    assert "three digits" in notes["unitree_rl_lab__g1"]
    assert "leave the ranges from row 351" in notes["unitree_rl_lab__g1"]
    assert "needs the base's velocity" in notes["playground__go1"]


def test_a_file_of_one_robot_is_not_read_as_another(real_dir: Path, tmp_path: Path) -> None:
    go2 = str(real_dir / "rl_sar__go2__himloco" / "model.xml")
    g1 = str(real_dir / "unitree_rl_gym__g1" / "model.xml")
    user = tmp_path / "u.yaml"
    user.write_text(CASES["unitree_rl_gym__g1"][1])
    wrong = request(real_dir, "unitree_rl_gym__g1", tmp_path / "p.onnx", user, model=go2)
    # Both have twelve joints.
    with pytest.raises(Refused, match=r"files are of the robot 'g1'|outside of the model's range"):
        import_policy(wrong)
    user.write_text(CASES["unitree_rl_lab__g1"][1])
    wrong = request(real_dir, "unitree_rl_lab__g1", tmp_path / "p.onnx", user, model=g1)
    with pytest.raises(Exception, match=r"names motor 28, but actuators of model.xml are 12"):
        import_policy(wrong)


def test_torchscript_and_privileged_terms_need_the_users_word(
    real_dir: Path, tmp_path: Path
) -> None:
    user = tmp_path / "u.yaml"
    user.write_text(CASES["unitree_rl_gym__g1"][1])
    out = tmp_path / "p.onnx"
    with pytest.raises(Refused, match="--run-torchscript"):
        import_policy(request(real_dir, "unitree_rl_gym__g1", out, user, run_torchscript=False))
    user.write_text(CASES["playground__go1"][1])
    with pytest.raises(Refused, match=r"'base_lin_vel'.*--allow-privileged"):
        import_policy(request(real_dir, "playground__go1", out, user, allow_privileged=False))
