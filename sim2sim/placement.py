"""Where a simulated robot begins, and what of the model a disturbance changes."""

from __future__ import annotations

import math

import mujoco
import numpy as np

from robot_runtime.errors import Refused
from robot_runtime.policy.rotation import multiply
from sim2sim.model import SimModel
from sim2sim.mujoco_robot import MujocoRobot
from sim2sim.scenarios import Disturbance, Start

CLEARANCE = 0.002
"""Height of the lowest geom above the floor at the start, [m]."""

HOME = "home"
"""Keyframe that is taken for the home pose where no profile names one."""

_HIGH = 10.0
"""Height at which the distance to the floor is measured, [m]: nothing touches there."""


def place(robot: MujocoRobot, start: Start | None) -> None:
    """Put the robot where a scenario begins, at rest but for the start's velocity.

    Joints are those of the home keyframe where the model has one, else the contract's default
    positions, plus the start's offsets within the joints' ranges. With a keyframe and no start
    the base is the keyframe's too; otherwise it is upright, with the lowest geom `CLEARANCE`
    above the floor.

    Args:
        robot: The robot; its time begins anew.
        start: The drawn start, or None for the pose alone.

    Raises:
        Refused: The model has no floor that the robot could stand on.
    """
    sim, data = robot.sim, robot.data
    key = home_keyframe(sim)
    mujoco.mj_resetData(robot.model, data)
    if key is None:
        data.qpos[sim.qpos] = sim.contract.joint_array("default_pos")
    else:
        data.qpos[:] = robot.model.key_qpos[key]
    if start is not None:
        _apply_start(robot, start)
    if start is not None or key is None:
        _drop(robot, 0.0 if start is None else start.yaw)
    robot.reset()


def home_keyframe(sim: SimModel) -> int | None:
    """Index of the keyframe with the home pose, or None."""
    name = sim.file.keyframe or HOME
    index = mujoco.mj_name2id(sim.mj, mujoco.mjtObj.mjOBJ_KEY, name)
    return None if index < 0 else int(index)


def disturb(robot: MujocoRobot, disturbance: Disturbance) -> None:
    """Change friction and the base's mass in the robot's own model, and schedule the pushes.

    The inertia of the base scales with its mass. A payload takes at most half of the base away.
    """
    model, base = robot.model, robot.sim.base
    model.geom_friction[:, 0] = disturbance.friction
    model.pair_friction[:, :2] = disturbance.friction
    mass = float(model.body_mass[base])
    factor = max(0.5, (mass + disturbance.payload) / mass)
    model.body_mass[base] *= factor
    model.body_inertia[base] *= factor
    mujoco.mj_setConst(model, mujoco.MjData(model))
    waiting = sorted(disturbance.pushes, key=lambda push: push.time)

    def push() -> None:
        while waiting and waiting[0].time <= robot.time + 1e-9:
            robot.data.qvel[robot.sim.base_dof : robot.sim.base_dof + 2] += waiting.pop(0).velocity

    robot.before_pd.append(push)


def floor_distance(robot: MujocoRobot) -> float:
    """Smallest distance between the robot and what is fixed to the world, [m].

    Raises:
        Refused: Nothing of the robot can collide with anything fixed.
    """
    model, data = robot.model, robot.data
    mujoco.mj_kinematics(model, data)
    # Every body of the robot descends from its base.
    roots = model.body_rootid[model.geom_bodyid]
    own = np.flatnonzero(roots == model.body_rootid[robot.sim.base])
    fixed = np.flatnonzero(model.body_weldid[model.geom_bodyid] == 0)
    touch = (model.geom_contype[fixed, None] & model.geom_conaffinity[own]) | (
        model.geom_conaffinity[fixed, None] & model.geom_contype[own]
    )
    distances = [
        mujoco.mj_geomDistance(model, data, int(fixed[i]), int(own[j]), 10.0 * _HIGH, None)
        for i, j in np.argwhere(touch)
    ]
    if not distances:
        raise Refused(
            f"model '{robot.sim.file.path}' has no floor: no geom fixed to the world can touch "
            f"the robot"
        )
    return min(distances)


def _apply_start(robot: MujocoRobot, start: Start) -> None:
    sim, data = robot.sim, robot.data
    joints = robot.model.dof_jntid[sim.dof]
    limited = robot.model.jnt_limited[joints].astype(bool)
    low, high = robot.model.jnt_range[joints].T
    wanted = data.qpos[sim.qpos] + np.array(start.joint_offsets)
    within = np.minimum(np.maximum(wanted, low), high)
    data.qpos[sim.qpos] = np.where(limited, within, wanted)
    data.qvel[sim.base_dof : sim.base_dof + 2] = start.base_velocity


def _drop(robot: MujocoRobot, yaw: float) -> None:
    qpos, at = robot.data.qpos, robot.sim.base_qpos
    turn = np.array([math.cos(yaw / 2.0), 0.0, 0.0, math.sin(yaw / 2.0)])
    qpos[at : at + 3] = (0.0, 0.0, _HIGH)
    upright = np.array([1.0, 0.0, 0.0, 0.0])
    qpos[at + 3 : at + 7] = multiply(turn, upright)
    qpos[at + 2] = _HIGH - floor_distance(robot) + CLEARANCE
