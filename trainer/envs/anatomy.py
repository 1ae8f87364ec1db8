"""What the model of a robot says beyond its profile: where its feet are, and what its base is."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco

from robot_runtime.errors import BadInput
from robot_runtime.robots import RobotModel
from trainer.envs.model import log_warnings


@dataclass(frozen=True, kw_only=True, slots=True)
class Foot:
    """A foot in the home pose.

    Attributes:
        geom: Its geom.
        body: The body that carries the geom.
        forward: How far it is ahead of the middle of all feet, base frame, [m].
        left: How far it is to the left of the middle of all feet, base frame, [m].
    """

    geom: str
    body: str
    forward: float
    left: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Anatomy:
    """The parts that a task has to know by name.

    Attributes:
        feet: The feet, in the order of the profile.
        base_geoms: Geoms of the base body that can touch the ground.
    """

    feet: tuple[Foot, ...]
    base_geoms: tuple[str, ...]


def anatomy_of(robot: RobotModel) -> Anatomy:
    """Read feet and base from a robot's model, in the home pose of its profile.

    Raises:
        BadInput: The profile names a foot, a body or a keyframe that the model lacks, or a geom of
            the base has no name.
    """
    profile = robot.profile
    log_warnings()
    model = mujoco.MjModel.from_xml_path(str(robot.xml_path))
    data = mujoco.MjData(model)
    key = _id(model, mujoco.mjtObj.mjOBJ_KEY, profile.keyframe, robot)
    base = _id(model, mujoco.mjtObj.mjOBJ_BODY, profile.base_body, robot)
    mujoco.mj_resetDataKeyframe(model, data, key)
    mujoco.mj_kinematics(model, data)
    geoms = [_id(model, mujoco.mjtObj.mjOBJ_GEOM, name, robot) for name in profile.foot_geoms]
    turn = data.xmat[base].reshape(3, 3)
    places = (data.geom_xpos[geoms] - data.geom_xpos[geoms].mean(0)) @ turn
    feet = tuple(
        Foot(
            geom=name,
            body=model.body(int(model.geom_bodyid[geom])).name,
            forward=float(place[0]),
            left=float(place[1]),
        )
        for name, geom, place in zip(profile.foot_geoms, geoms, places, strict=True)
    )
    return Anatomy(feet=feet, base_geoms=_base_geoms(model, base, robot))


def _base_geoms(model: mujoco.MjModel, base: int, robot: RobotModel) -> tuple[str, ...]:
    found: list[str] = []
    for geom in range(model.ngeom):
        touches = model.geom_contype[geom] or model.geom_conaffinity[geom]
        if model.geom_bodyid[geom] == base and touches:
            name = model.geom(geom).name
            if not name:
                raise BadInput(
                    f"robot '{robot.name}': a geom of its base '{robot.profile.base_body}' has no "
                    "name"
                )
            found.append(name)
    return tuple(found)


def _id(model: mujoco.MjModel, kind: mujoco.mjtObj, name: str, robot: RobotModel) -> int:
    found = mujoco.mj_name2id(model, kind, name)
    if found < 0:
        what = kind.name.removeprefix("mjOBJ_").lower()
        raise BadInput(f"robot '{robot.name}': its model has no {what} '{name}'")
    return int(found)
