"""rl_sar, against its runtime as slow loops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from export.importers.sheet import MissingFieldsError
from robot_runtime.errors import BadInput, Refused
from tests.helpers.foreign import LEGS, MOTORS, VELOCITY, Case, Network, Step, record

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
    case, _ = sar_case(tmp_path, observations=[*SAR["observations"], "gait"], num_observations=22)
    with pytest.raises(MissingFieldsError, match=r"observation.gait.source"):
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
