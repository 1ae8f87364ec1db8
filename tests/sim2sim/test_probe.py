"""What the judge measures: velocities against MuJoCo's own, saturation counted by hand."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from robot_runtime.policy.state import JointCommand
from sim2sim.mujoco_robot import MujocoRobot
from sim2sim.probe import Probe
from tests.helpers.tiny_robot import tiny_contract, tiny_sim, tiny_xml


@pytest.mark.parametrize("seed", range(5))
def test_velocities_are_those_of_mujoco_in_the_heading_frame(tmp_path: Path, seed: int) -> None:
    robot = MujocoRobot(tiny_sim(tmp_path, tiny_contract(), tiny_xml()))
    rng, data, base = np.random.default_rng(seed), robot.data, robot.sim.base
    quat = np.array([1.0, 0.3, 0.3, 4.0]) * rng.normal(size=4)
    data.qpos[3:7] = quat / np.linalg.norm(quat)
    data.qvel[:] = rng.normal(size=robot.model.nv)
    robot.reset()
    truth = Probe(robot).truth()
    # Turning and moving of the base's origin along the axes of the world.
    spatial, kind = np.zeros(6), mujoco.mjtObj.mjOBJ_XBODY
    mujoco.mj_objectVelocity(robot.model, data, kind, base, spatial, 0)
    ahead = data.xmat[base].reshape(3, 3)[:2, 0]
    ahead = ahead / np.linalg.norm(ahead)
    left = np.array([-ahead[1], ahead[0]])
    expected = [ahead @ spatial[3:5], left @ spatial[3:5], spatial[2]]
    # float64 on both sides.
    np.testing.assert_allclose(truth.velocity, [expected], atol=1e-12)
    upright = np.arccos(data.xmat[base].reshape(3, 3)[2, 2])
    np.testing.assert_allclose(truth.tilt, [upright], atol=1e-7)
    weights = robot.model.body_mass[1:]
    height = weights @ data.xipos[1:, 2] / weights.sum()
    np.testing.assert_allclose(truth.com_height, [height], atol=1e-12)


def test_saturation_is_the_share_of_pd_steps_at_the_limit(tmp_path: Path) -> None:
    contract = tiny_contract()
    robot = MujocoRobot(tiny_sim(tmp_path, contract, tiny_xml()))
    probe, limit = Probe(robot), contract.joint_array("effort_limit")
    assert contract.decimation == 4

    def push(effort: np.ndarray, pd_steps: int) -> None:
        zero = np.zeros(3)
        robot.write(JointCommand(position=zero, velocity=zero, effort=effort, kp=zero, kd=zero))
        robot.advance(pd_steps)

    push(limit * [2.0, -2.0, 0.9], 1)
    push(limit * [0.5, -2.0, 0.9], 3)
    push(limit * [0.5, 0.0, 1.0], 4)
    truth = probe.truth()
    np.testing.assert_allclose(truth.time, [0.0, 0.02, 0.04], atol=1e-12)
    np.testing.assert_array_equal(truth.saturation, [[0, 0, 0], [0.25, 1.0, 0], [0, 0, 1.0]])
    np.testing.assert_allclose(truth.efforts[1:], limit * [[0.5, -1.0, 0.9], [0.5, 0.0, 1.0]])
