"""Policies that sim2sim's tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.file import write_policy
from robot_runtime.policy.spec import ImuSpec, RobotRef
from robot_runtime.policy.state import JointCommand
from robot_runtime.robots import load_model
from sim2sim.mujoco_robot import MujocoRobot
from tests.helpers.contracts import joint_names, make_joint, quadruped_contract
from tests.helpers.policies import mlp_model, synthesized_trace


def write_still_policy(path: Path, contract: PolicyContract) -> Path:
    """A policy whose action is always zero: it holds the default pose."""
    zeros = [
        (
            np.zeros((contract.observation_dim, contract.num_actions), dtype=np.float32),
            np.zeros(contract.num_actions, dtype=np.float32),
        )
    ]
    model = mlp_model(contract, zeros)
    trace = synthesized_trace(contract, model)
    write_policy(
        path, model, contract=contract, trace=trace, provenance={"task": "stand"}, report={}
    )
    return path


def hold_command(robot: MujocoRobot) -> JointCommand:
    """Keep the joints where they are, with the contract's gains."""
    contract = robot.sim.contract
    zero = np.zeros(len(contract.joints))
    return JointCommand(
        position=robot.data.qpos[robot.sim.qpos].copy(),
        velocity=zero,
        effort=zero,
        kp=contract.joint_array("kp"),
        kd=contract.joint_array("kd"),
    )


def standing_contract(**changes: object) -> PolicyContract:
    """A contract for the built-in quadruped, stiff enough to stand."""
    robot = load_model("quadruped")
    joints = tuple(make_joint(name, kp=80.0, kd=1.5) for name in joint_names())
    return quadruped_contract(
        **{
            "name": "standing",
            "joints": joints,
            "robot": RobotRef(name="quadruped", model_sha256=robot.hash, base_body="trunk"),
            "imu": ImuSpec(
                site="imu",
                position=(0.0, 0.0, 0.02),
                quat=(1.0, 0.0, 0.0, 0.0),
                quaternion_order="wxyz",
            ),
            **changes,
        }
    )


@pytest.fixture(scope="session")
def still_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy file that stands still on the built-in quadruped."""
    return write_still_policy(tmp_path_factory.mktemp("policy") / "still.onnx", standing_contract())
