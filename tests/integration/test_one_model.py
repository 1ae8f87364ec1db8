"""Training and sim2sim make the same robot of a file, whatever actuators of its own it has."""

from __future__ import annotations

from pathlib import Path

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

DEFAULTS = """<default><general gear="2" ctrlrange="-.3 .3" forcerange="-.5 .5" armature=".004"
    damping=".2"/></default><sensor><actuatorfrc name="felt" actuator="servo"/></sensor>"""
SERVO = '<position name="servo" joint="right" kp="50" gear="1.5" armature=".03"/>'


def awkward_xml() -> str:
    """Defaults that would change any actuator, a servo with a rotor, limits and damping."""
    joint = 'armature=".02" damping=".3" actuatorfrcrange="-.7 .7"'
    xml = tiny_xml(joint=joint, actuators=SERVO, extra=DEFAULTS)
    return xml.replace("<option ", '<option integrator="implicitfast" ', 1)


def targets_over_time(contract: PolicyContract) -> list[NDArray[np.float64]]:
    """Half a second of targets: far ones, at the effort limits, and near ones."""
    rng = np.random.default_rng(4)
    sizes = np.array([[1.5], [0.2], [1.0], [0.1], [0.05]])
    return list(np.repeat(sizes * rng.choice([-1.0, 1.0], size=(5, len(contract.joints))), 5, 0))


def in_sim2sim(folder: Path, contract: PolicyContract) -> NDArray[np.float64]:
    robot = MujocoRobot(tiny_sim(folder, contract, awkward_xml()))
    zero, path = np.zeros(len(contract.joints)), []
    for position in targets_over_time(contract):
        robot.write(
            JointCommand(
                position=position,
                velocity=zero,
                effort=zero,
                kp=contract.joint_array("kp"),
                kd=contract.joint_array("kd"),
            )
        )
        robot.advance(contract.decimation)
        path.append(robot.read().joint_pos)
    return np.array(path)


def in_training(folder: Path, contract: PolicyContract) -> NDArray[np.float64]:
    file = folder / "trained.xml"
    file.write_text(awkward_xml())
    model = build_model(file, contract, SolverOptions(iterations=50, ls_iterations=50))
    physics = BatchedPhysics(model, contract, 1, 1)
    path = []
    for position in targets_over_time(contract):
        wanted = torch.from_numpy(position).float()[None]
        zeros = torch.zeros_like(wanted)
        for _ in range(contract.decimation):
            physics.step_pd(JointTargets(position=wanted, velocity=zeros, effort=zeros))
        path.append(physics.read().joint_pos[0].double().numpy())
    return np.array(path)


@pytest.mark.parametrize(
    ("form", "damping"),
    [("explicit_pd", "actuator"), ("native", "actuator"), ("native", "joint")],
)
def test_the_same_file_moves_alike(tmp_path: Path, form: str, damping: str) -> None:
    contract = tiny_contract(form=form, damping=damping)
    trained, judged = in_training(tmp_path, contract), in_sim2sim(tmp_path, contract)
    assert np.ptp(judged, axis=0).min() > 0.3, "the joints must move"
    # Training rounds targets and efforts to float32; anything of the file's own shows as 0.01.
    assert np.abs(trained - judged).max() < 1e-5
