"""A motor of another strength is the same motor in sim2sim and in training, from equal states."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.state import JointCommand, JointTargets
from sim2sim.mujoco_robot import MujocoRobot
from tests.helpers.tiny_robot import tiny_contract, tiny_sim, tiny_xml
from trainer.envs.model import SolverOptions, build_model
from trainer.envs.physics import BatchedPhysics

ROWS = 64
FORMS = [("explicit_pd", "actuator"), ("native", "actuator"), ("native", "joint")]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """States, targets and strengths, each ``(ROWS, num_joints)``."""

    joint_pos: NDArray[np.float64]
    joint_vel: NDArray[np.float64]
    target: NDArray[np.float64]
    strength: NDArray[np.float64]


def draw(joints: int) -> Drawn:
    """Targets on both sides of the effort limits; motors of half to double strength."""
    rng = np.random.default_rng(4)

    def uniform(low: float, high: float) -> NDArray[np.float64]:
        # What training takes is float32.
        return rng.uniform(low, high, size=(ROWS, joints)).astype(np.float32).astype(np.float64)

    return Drawn(
        joint_pos=uniform(-1.0, 1.0),
        joint_vel=uniform(-2.0, 2.0),
        target=uniform(-1.0, 1.0),
        strength=uniform(0.5, 2.0),
    )


def in_training(path: Path, contract: PolicyContract, drawn: Drawn) -> tuple[Any, Any]:
    """Efforts in the first PD step and joint velocities after it."""
    physics = BatchedPhysics(build_model(path, contract, SolverOptions()), contract, ROWS, 1)
    rows = np.arange(ROWS)
    strength = torch.from_numpy(drawn.strength).float()
    physics.set_params(rows, dataclasses.replace(physics.params, strength=strength))
    state = dataclasses.replace(
        physics.read(),
        joint_pos=torch.from_numpy(drawn.joint_pos).float(),
        joint_vel=torch.from_numpy(drawn.joint_vel).float(),
    )
    physics.place_rows(rows, state)
    target = torch.from_numpy(drawn.target).float()
    zeros = torch.zeros_like(target)
    physics.step_pd(JointTargets(position=target, velocity=zeros, effort=zeros))
    return physics.joint_effort().double().numpy(), physics.read().joint_vel.double().numpy()


def in_sim2sim(folder: Path, contract: PolicyContract, drawn: Drawn) -> tuple[Any, Any]:
    """The same of one robot after the other."""
    sim = tiny_sim(folder, contract, tiny_xml())
    zeros = np.zeros(len(contract.joints))
    efforts, velocities = [], []
    for i in range(ROWS):
        robot = MujocoRobot(sim, drawn.strength[i])
        robot.data.qpos[sim.qpos], robot.data.qvel[sim.dof] = drawn.joint_pos[i], drawn.joint_vel[i]
        robot.reset()
        command = JointCommand(
            position=drawn.target[i], velocity=zeros, effort=zeros,
            kp=contract.joint_array("kp"), kd=contract.joint_array("kd"),
        )  # fmt: skip
        # What the loop is told is what it asked for: it knows nothing of the motors.
        assert robot.write(command) is command
        robot.advance(1)
        efforts.append(robot.drive.efforts().copy())
        velocities.append(robot.read().joint_vel)
    return np.array(efforts), np.array(velocities)


@pytest.mark.parametrize(("form", "damping"), FORMS)
def test_strength_means_the_same_in_training_and_in_sim2sim(
    tmp_path: Path, form: str, damping: str
) -> None:
    contract = tiny_contract(form=form, damping=damping, pd_dt=0.005)
    drawn = draw(len(contract.joints))
    effort, velocity = in_sim2sim(tmp_path, contract, drawn)
    expected_effort, expected_velocity = in_training(tmp_path / "tiny.xml", contract, drawn)
    # Training computes an explicit law in float32, efforts up to 30 Nm.
    np.testing.assert_allclose(velocity, expected_velocity, rtol=1e-4, atol=1e-4)
    if damping == "actuator":
        np.testing.assert_allclose(effort, expected_effort, rtol=1e-5, atol=1e-4)
    ones = dataclasses.replace(drawn, strength=np.ones_like(drawn.strength))
    nominal, _ = in_sim2sim(tmp_path, contract, ones)
    limit = contract.joint_array("effort_limit")
    saturated = np.abs(nominal) >= 0.999 * limit
    assert 0.1 < saturated.mean() < 0.9, "the draws must lie on both sides of the limits"
    if form == "explicit_pd":
        # A factor on the effort after its limit, which a stronger motor's exceeds.
        np.testing.assert_allclose(effort, drawn.strength * nominal, rtol=1e-12)
    assert (np.abs(effort[saturated & (drawn.strength > 1.1)]) > 1.05).any()
