"""Where a robot begins, and what a disturbance changes in its own model alone."""

from __future__ import annotations

import math
from pathlib import Path

import mujoco
import numpy as np
import pytest

from robot_runtime.errors import Refused
from sim2sim.model import SimModel, build_model, find_model
from sim2sim.mujoco_robot import MujocoRobot
from sim2sim.placement import disturb, floor_distance, home_keyframe, place
from sim2sim.scenarios import Disturbance, Push, Start
from tests.helpers.tiny_robot import tiny_contract, tiny_sim, tiny_xml
from tests.sim2sim.conftest import standing_contract


@pytest.fixture(scope="module")
def sim() -> SimModel:
    contract = standing_contract()
    return build_model(contract, find_model(contract, None))


def _start(**changes: object) -> Start:
    fields = {"yaw": 0.0, "joint_offsets": (0.0,) * 12, "base_velocity": (0.0, 0.0)}
    return Start(**{**fields, **changes})  # type: ignore[arg-type]


def test_without_a_start_the_robot_is_in_its_keyframe(sim: SimModel) -> None:
    robot = MujocoRobot(sim)
    robot.data.qvel[:] = 1.0
    place(robot, None)
    key = home_keyframe(sim)
    assert key is not None
    np.testing.assert_array_equal(robot.data.qpos, sim.mj.key_qpos[key])
    np.testing.assert_array_equal(robot.data.qvel, np.zeros(sim.mj.nv))


def test_a_start_is_set_and_the_robot_stands_over_the_floor(sim: SimModel) -> None:
    rng = np.random.default_rng(0)
    robot = MujocoRobot(sim)
    for yaw in (-2.0, 0.4):
        offsets = tuple(rng.uniform(-0.1, 0.1, size=12).tolist())
        place(robot, _start(yaw=yaw, joint_offsets=offsets, base_velocity=(0.1, -0.2)))
        data = robot.data
        # Oracle: the lowest point of the feet, which are spheres.
        feet = [data.geom(name) for name in sim.file.feet]
        radius = sim.mj.geom(sim.file.feet[0]).size[0]
        assert min(foot.xpos[2] for foot in feet) - radius == pytest.approx(0.002, abs=1e-9)
        w, x, y, z = data.qpos[3:7]
        assert (x, y) == (0.0, 0.0)
        assert 2.0 * math.atan2(z, w) == pytest.approx(yaw)
        np.testing.assert_array_equal(data.qvel[:2], (0.1, -0.2))
        expected = sim.mj.key_qpos[home_keyframe(sim)][sim.qpos] + offsets
        np.testing.assert_allclose(data.qpos[sim.qpos], expected, atol=1e-12)


def test_offsets_stay_within_the_joints_ranges(tmp_path: Path) -> None:
    contract = tiny_contract()
    xml = tiny_xml().replace("-3 3", "-.3 .25")
    robot = MujocoRobot(tiny_sim(tmp_path, contract, xml))
    place(robot, _start(joint_offsets=(-0.5, 0.05, 0.1)))
    np.testing.assert_allclose(robot.data.qpos[robot.sim.qpos], (-0.3, 0.15, 0.25))


def test_without_keyframe_the_default_pose_is_taken(tmp_path: Path) -> None:
    robot = MujocoRobot(tiny_sim(tmp_path, tiny_contract(), tiny_xml()))
    assert home_keyframe(robot.sim) is None
    place(robot, None)
    np.testing.assert_allclose(robot.data.qpos[robot.sim.qpos], (0.0, 0.1, 0.2))
    assert floor_distance(robot) == pytest.approx(0.002, abs=1e-9)


def test_a_model_without_floor_is_refused(tmp_path: Path) -> None:
    xml = tiny_xml().replace('<geom name="floor" type="plane" size="0 0 1"', '<geom size=".1" pos="9 9 9"').replace('contype="1" conaffinity="0"/>', 'contype="0" conaffinity="0"/>')  # fmt: skip # noqa: E501
    with pytest.raises(Refused, match="has no floor"):
        place(MujocoRobot(tiny_sim(tmp_path, tiny_contract(), xml)), None)


def test_a_disturbance_changes_this_robot_alone(sim: SimModel) -> None:
    robot, other = MujocoRobot(sim), MujocoRobot(sim)
    weight = sim.mj.body_mass.sum()
    push = Push(time=0.1, velocity=(0.3, -0.4))
    disturbance = Disturbance(
        friction=0.55, payload=1.25, strength=(1.0,) * 12, latency=0.0, pushes=(push,)
    )
    disturb(robot, disturbance)
    place(robot, None)
    assert robot.model.body_mass.sum() == pytest.approx(weight + 1.25)
    assert robot.model.body_subtreemass[0] == pytest.approx(weight + 1.25)
    mujoco.mj_step(robot.model, robot.data, 20)
    assert robot.data.ncon > 0
    np.testing.assert_array_equal(robot.data.contact.friction[:, 0], 0.55)
    assert other.model.body_mass.sum() == weight
    assert sim.mj.geom_friction[0, 0] != 0.55


def test_a_push_comes_once_and_when_it_is_due(sim: SimModel) -> None:
    robot = MujocoRobot(sim)
    push = Push(time=0.0525, velocity=(0.3, -0.4))
    disturb(
        robot,
        Disturbance(friction=0.8, payload=0.0, strength=(1.0,) * 12, latency=0.0, pushes=(push,)),
    )
    place(robot, None)
    robot.data.qpos[2] = 2.0  # in free fall nothing else changes the horizontal velocity
    robot.reset()
    speeds = []
    for _ in range(20):
        robot.advance(1)
        speeds.append(tuple(robot.data.qvel[:2].round(6).tolist()))
    # Limp legs swing a little in the push, so the trunk itself is within a few cm/s.
    assert max(abs(vx) for vx, _ in speeds[:11]) < 1e-3
    assert speeds[11] == pytest.approx((0.3, -0.4), abs=0.05)
    assert speeds[19] == pytest.approx((0.3, -0.4), abs=0.1)
