"""mjlab, against its runtime as slow loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput
from tests.helpers.foreign import LEGS, MOTORS, VELOCITY, Case, Network, Step, record, robot_xml

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
        ({"joint_names": None}, r"metadata 'joint_names' is missing; there are run_path"),
        ({"joint_damping": "1,2,x,4"}, r"joint_damping: expected a number, found 'x'"),
        ({"joint_stiffness": "1,2"}, r"'joint_stiffness' has 2 numbers for 4 joint names$"),
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


def test_brackets_of_pythons_own_lists_are_read(tmp_path: Path) -> None:
    """One release of the exporter wrote nested lists as Python prints them."""
    scales = "0.250,1.000,1.000,0.050,1.000,[2.0, 2.0, 0.5]"
    clips = "[-1.0, 1.5],[-inf, inf],[-inf, inf],[-3.0, inf],[-inf, inf],[-inf, inf]"
    case = mjlab_case(tmp_path / "a", observation_terms_scale=scales, observation_terms_clip=clips)
    plain = mjlab_case(tmp_path / "b")
    assert case.run().policy.contract.observation == plain.run().policy.contract.observation


def test_histories_under_the_name_of_another_exporter(tmp_path: Path) -> None:
    lengths = "3,1,2,2,1,1"
    case = mjlab_case(
        tmp_path / "a",
        observation_terms_history_length=None,
        observation_terms_flatten_history_dim=None,
        observation_history_lengths=lengths,
    )
    plain = mjlab_case(tmp_path / "b")
    assert case.run().policy.contract.observation == plain.run().policy.contract.observation


def test_metadata_that_a_fork_adds_are_said(tmp_path: Path) -> None:
    notes = mjlab_case(tmp_path, action_delay="1").run().notes
    assert any(
        "metadata: not read, as the stack has no such keys: action_delay" in n for n in notes
    )
    assert not any("no such keys" in n for n in mjlab_case(tmp_path).run().notes)
