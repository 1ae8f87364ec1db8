"""Keys that a fork drops or renames: asked for by name, and the answer makes the same policy."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from export.importers.sheet import MissingFieldsError
from robot_runtime.cli import main
from robot_runtime.errors import BadInput, SurefootError
from tests.export.importers.test_berkeley import BHL, bhl_case
from tests.export.importers.test_custom import COMMON, custom, run
from tests.export.importers.test_holosoma import HOLO_CONFIG, holosoma_case
from tests.export.importers.test_mjlab import mjlab_case
from tests.export.importers.test_rl_sar import BASE, SAR, sar_case
from tests.export.importers.test_unitree import DEPLOY, GYM, REAL, deploy_case, terms
from tests.helpers.foreign import LEGS, VELOCITY, Case, Network, robot_xml

GYM_SCALES = {"ang_vel_scale": "0.25", "dof_pos_scale": "1.0", "dof_vel_scale": "0.05"}
POSE = "[0.1, 0.4, -0.1, 0.4]"


def gym(folder: Path, *without: str, real: dict[str, Any] | None = None) -> Case:
    case = Case(format="unitree_rl_gym", folder=folder)
    case.robot()
    plain = {key: value for key, value in GYM.items() if key not in without}
    case.write("deploy_mujoco/configs/g1.yaml", yaml.safe_dump(plain))
    if real is not None:
        case.write("deploy_real/configs/g1.yaml", yaml.safe_dump(real))
    case.files.append(Network(inputs={"obs": 23}, actions=4).save(folder / "motion.onnx"))
    case.settings = ["phase.period=0.8", "phase.start=0.025", VELOCITY]
    return case


def lab(folder: Path, *without: str) -> Case:
    case = deploy_case(folder, terms(1), {"obs": 21})
    plain = {key: value for key, value in DEPLOY.items() if key not in without}
    case.write("params/deploy.yaml", yaml.safe_dump({**plain, "observations": terms(1)}))
    return case


def sar(folder: Path, *without: str) -> Case:
    case, _ = sar_case(folder)
    base, config = ({k: v for k, v in d.items() if k not in without} for d in (BASE, SAR))
    case.write("policy/biped2/base.yaml", yaml.safe_dump({"biped2": base}))
    case.write("policy/biped2/him/config.yaml", yaml.safe_dump({"biped2/him": config}))
    return case


def bhl(folder: Path, *without: str) -> Case:
    case = bhl_case(folder)
    plain = {key: value for key, value in BHL.items() if key not in without}
    case.write("configs/policy.yaml", yaml.safe_dump(plain))
    return case


def mjlab(folder: Path, *without: str) -> Case:
    changes: dict[str, Any] = dict.fromkeys(without)
    return mjlab_case(folder, **changes)


@pytest.mark.parametrize(
    ("make", "keys", "answers"),
    [
        (gym, ("kps",), {"joints.kp": "[100, 150, 100, 150]"}),
        (gym, ("kds", "default_angles"), {"joints.kd": "[2, 4, 2, 4]", "joints.default_pos": POSE}),
        (gym, ("control_decimation",), {"timing.control_dt": "0.02"}),
        (gym, ("action_scale",), {"action.scale": "0.25"}),
        (
            gym,
            tuple(GYM_SCALES),
            {
                f"observation.{name}.scale": value
                for name, value in zip(
                    ("base_ang_vel", "joint_pos", "joint_vel"), GYM_SCALES.values(), strict=True
                )
            },
        ),
        (gym, ("cmd_scale",), {"observation.command.scale": "[2.0, 2.0, 0.25]"}),
        (lab, ("step_dt",), {"timing.control_dt": "0.02"}),
        (
            lab,
            ("stiffness", "damping"),
            # In the policy's order, of numbers that the file has in the motors'.
            {"joints.kp": "[100.0, 101.0, 150.0, 151.0]", "joints.kd": "[2.5, 2.0, 4.5, 4.0]"},
        ),
        (lab, ("default_joint_pos",), {"joints.default_pos": "[0.1, -0.1, 0.4, 0.41]"}),
        (sar, ("dt",), {"timing.control_dt": "0.02"}),
        (sar, ("decimation",), {"timing.control_dt": "0.02"}),
        (sar, ("action_scale",), {"action.joints_0.scale": "[0.125, 0.25, 0.125, 0.25]"}),
        (sar, ("ang_vel_scale",), {"observation.ang_vel.scale": "0.25"}),
        (sar, ("commands_scale",), {"observation.commands.scale": "[2.0, 2.0, 0.25]"}),
        (mjlab, ("joint_stiffness",), {"joints.kp": "[40.179, 99.098, 40.179, 99.098]"}),
        (mjlab, ("default_joint_pos",), {"joints.default_pos": POSE}),
        (mjlab, ("action_scale",), {"action.scale": "[0.548, 0.351, 0.548, 0.351]"}),
        (bhl, ("policy_dt",), {"timing.control_dt": "0.04"}),
        (bhl, ("physics_dt",), {"timing.pd_dt": "0.0005"}),
        (bhl, ("action_limit_lower",), {"action.raw_clip": "[-0.5, 0.6]"}),
    ],
)
def test_a_key_that_is_left_out_is_asked_for(
    tmp_path: Path, make: Any, keys: tuple[str, ...], answers: dict[str, str]
) -> None:
    complete = make(tmp_path / "complete").run().policy.contract
    case = make(tmp_path / "without", *keys)
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert {question.path for question in missing.value.questions} == set(answers)
    case.settings += [f"{path}={value}" for path, value in answers.items()]
    assert case.run().policy.contract == complete


def test_the_two_files_of_rl_gym_are_compared(tmp_path: Path) -> None:
    changed = {"action_scale": 0.5, "cmd_scale": [1.0, 2.0, 0.25], "dof_vel_scale": 0.1}
    imported = gym(tmp_path, real={**REAL, **changed}).run()
    notes = " ".join(imported.notes)
    for path in ("action.scale", "observation.command.scale", "observation.joint_vel.scale"):
        assert f"contradiction: {path}: file (g1.yaml (simulation) " in notes
    assert imported.policy.contract.action.terms[0].scale == (0.25,) * 4
    for key, value in (("num_obs", 24), ("num_actions", 5)):
        with pytest.raises(BadInput, match=rf"{key}: .* in g1.yaml \(simulation\).*two policies"):
            gym(tmp_path / key, real={**REAL, key: value}).run()


def test_rl_sar_takes_the_only_network_where_none_is_named(tmp_path: Path) -> None:
    case = sar(tmp_path, "model_name")
    case.files.append(tmp_path / "policy/biped2/him/policy.onnx")
    assert case.run().policy.contract == sar(tmp_path).run().policy.contract


def test_rl_sar_does_not_choose_between_two_files_of_one_name(tmp_path: Path) -> None:
    case, config = sar_case(tmp_path)
    case.write("policy/biped2/other/config.yaml", yaml.safe_dump({"biped2/him": config}))
    with pytest.raises(BadInput, match=r"section 'biped2/him' stands in '.*him/config.*other/con"):
        case.run()


def test_rl_sar_clips_of_one_side_are_said(tmp_path: Path) -> None:
    imported = sar(tmp_path, "clip_actions_upper").run()
    assert any("clips of actions of one side only" in note for note in imported.notes)
    assert imported.policy.contract.action.terms[0].raw_lower is None


def test_holosoma_takes_its_config_from_among_other_files(tmp_path: Path) -> None:
    case = holosoma_case(tmp_path, 3 * 25, HOLO_CONFIG)
    complete = case.run().policy.contract
    case.files.insert(0, case.write("a.yaml", "algo: {lr: 0.001}"))
    imported = case.run()
    assert imported.policy.contract == complete
    assert any("a.yaml: not read" in note for note in imported.notes)
    case.write("b.yaml", yaml.safe_dump({"task": {"policy_action_scale": 0.5}}))
    with pytest.raises(BadInput, match=r"several inference configs .*b.yaml; give one"):
        case.run()


def test_mjlab_terms_without_clips_are_said(tmp_path: Path) -> None:
    notes = mjlab_case(tmp_path, observation_terms_clip=None).run().notes
    assert any("says nothing of its terms' clips" in note for note in notes)


def test_mjlab_joints_without_a_motor_are_named(tmp_path: Path) -> None:
    case = mjlab_case(tmp_path, joint_names=",".join([*LEGS, "toe"]))
    case.robot(robot_xml([*LEGS, "toe"], LEGS))
    with pytest.raises(BadInput, match=r"4 numbers for 5 joint names; toe of them no actuator of"):
        case.run()


@pytest.mark.parametrize("make", [lab, sar])
def test_of_a_term_that_nobody_knows_only_the_source_is_asked(tmp_path: Path, make: Any) -> None:
    case = make(tmp_path)
    for path in (path for path in case.files if path.suffix == ".yaml"):
        text = path.read_text()
        path.write_text(text.replace("  base_ang_vel:", "  gyro:").replace("- ang_vel", "- gyro"))
    with pytest.raises(MissingFieldsError) as missing:
        case.run()
    assert [question.path for question in missing.value.questions] == ["observation.gyro.source"]


def test_a_renamed_key_is_shown_beside_the_question_that_it_may_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = lab(tmp_path)
    path = tmp_path / "params/deploy.yaml"
    path.write_text(path.read_text().replace("stiffness:", "joint_stiffness:"))
    assert main(case.argv()) == 2
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown) == {"joints.kp": "..."}
    assert "# note: deploy.yaml: not read, as the stack has no such keys: joint_stiff" in shown


JUNK = (
    None,
    0,
    3,
    True,
    [],
    {},
    [1, 2],
    {"a": 1},
    [[1]],
    float("nan"),
    [None] * 4,
    ["a"] * 4,
    10**30,
)
PATHS = (
    *("name", "motors", "keyframe", "actuators", "robot.name", "network.output"),
    *("joints.names", "joints.kp", "joints.others", "joints.default_pos", "timing.control_dt"),
    *("action.terms", "action.scale", "action.hold", "action.filter", "action.raw_clip"),
    *("action.joints", "commands.lin_vel_x", "commands.names", "phase.period", "observation"),
    *("observation.history", "observation.joint_pos_rel.scale", "observation.joint_pos_rel.lag"),
)


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_of_a_wrong_kind_is_refused_or_taken(tmp_path: Path, path: str) -> None:
    """Never an internal error, whichever importer reads it first."""
    user = tmp_path / "user.yaml"
    made = [sar(tmp_path / "sar"), lab(tmp_path / "lab"), gym(tmp_path / "gym", real=REAL)]
    for value in JUNK:
        user.write_text(yaml.safe_dump({path: value}))
        for case in made:
            with contextlib.suppress(SurefootError):
                case.run(user=(user,))


def test_fewer_actions_than_joints_ask_which(tmp_path: Path) -> None:
    text = f"{COMMON}\nobservation: [joint_pos_rel]\naction: {{scale: 0.25, offset: 0.0}}"
    case = custom(tmp_path, text, 4, actions=2)
    case.settings = [f"joints.names={list(LEGS)}"]
    with pytest.raises(MissingFieldsError, match=r"action.joints \(the joints behind the 2 act"):
        run(case)
