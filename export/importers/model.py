"""What a MuJoCo model says about a robot. MuJoCo is imported when a model is read."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from export.importers.reading import one_line, read_bytes
from robot_runtime.errors import BadInput
from robot_runtime.robots import load_model, model_names, read_model

if TYPE_CHECKING:
    import mujoco

_LOG = logging.getLogger(__name__)
_MAX_XML = 2**25


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelJoint:
    """One hinge or slide of the model.

    Attributes:
        name: Its name.
        axis: Unit axis in the base's frame with every joint at zero.
        lower: Lower end of its range, [rad] or [m]; None where it has none.
        upper: Upper end of its range, [rad] or [m]; None where it has none.
        effort_limit: Largest effort that actuator and joint allow, [Nm] or [N]; None where neither
            says.
        servo: Stiffness and damping of its position actuator with the joint's own damping; None
            where it has none.
        driven: Whether an actuator acts on it.
    """

    name: str
    axis: tuple[float, float, float]
    lower: float | None
    upper: float | None
    effort_limit: float | None
    servo: tuple[float, float, float] | None
    driven: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSite:
    """A site of the model.

    Attributes:
        body: Its body.
        position: In the base's frame with every joint at zero, [m].
        quat: Unit quaternion w, x, y, z, site to base, with every joint at zero.
        on_base: Whether no joint is between it and the base.
    """

    body: str
    position: tuple[float, float, float]
    quat: tuple[float, float, float, float]
    on_base: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelBody:
    """A body of the model and how it hangs on its parent.

    Attributes:
        parent: Name of its parent; empty for the world.
        quat: Fixed unit quaternion w, x, y, z, body to parent.
        hinges: Its hinges in order: name, unit axis in the body, angle of the joint's zero, [rad].
    """

    parent: str
    quat: tuple[float, float, float, float]
    hinges: tuple[tuple[str, tuple[float, float, float], float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What importers need of a model.

    Attributes:
        path: The file.
        sha256: Its hash, or that of its robot folder, as sim2sim compares it.
        name: The model's own name.
        base_body: Body that carries the free joint, or the first body.
        joints: Hinges and slides beside the base's own, in the order of ``qpos``.
        actuators: The joint behind each actuator, in order; empty text for another transmission.
        timestep: Its physics step, [s].
        keyframes: Joint positions by joint name, by keyframe.
        sites: Its sites by name.
        gyro_site: Site of its first gyro, or empty.
        bodies: Its named bodies.
    """

    path: Path
    sha256: str
    name: str
    base_body: str
    joints: tuple[ModelJoint, ...]
    actuators: tuple[str, ...]
    timestep: float
    keyframes: dict[str, dict[str, float]]
    sites: dict[str, ModelSite]
    gyro_site: str
    bodies: dict[str, ModelBody]

    @property
    def joint_names(self) -> list[str]:
        """All its joints, in the order of ``qpos``."""
        return [joint.name for joint in self.joints]

    @property
    def driven(self) -> list[str]:
        """The joints that a policy can drive, in the order of ``qpos``.

        Those with an actuator; all of them in a model that has no actuator at all.
        """
        driven = [joint.name for joint in self.joints if joint.driven]
        return driven or self.joint_names

    def by_depth(self) -> list[str]:
        """All its joints, those nearer to the base first, else in the order of ``qpos``.

        Bodies without names tell nothing: then it is the order of ``qpos``.
        """
        if "" in self.bodies:
            return self.joint_names
        depth: dict[str, int] = {}
        for name in self.bodies:
            at, steps = name, 0
            while at in self.bodies and steps <= len(self.bodies):
                at, steps = self.bodies[at].parent, steps + 1
            depth |= {joint: steps for joint, *_ in self.bodies[name].hinges}
        return sorted(self.joint_names, key=lambda name: depth.get(name, 0))

    def chain(self, body: str) -> list[ModelBody]:
        """The bodies from below the base to a body, outermost last.

        Raises:
            BadInput: The body does not exist or does not hang on the base.
        """
        found: list[ModelBody] = []
        name = body
        while name != self.base_body:
            if name not in self.bodies:
                known = ", ".join(self.bodies)
                raise BadInput(
                    f"model '{self.path.name}': body '{body}' does not hang on '{self.base_body}'; "
                    f"there are {known}"
                )
            found.append(self.bodies[name])
            name = self.bodies[name].parent
        return found[::-1]

    def joint(self, name: str) -> ModelJoint:
        """The joint of that name.

        Raises:
            BadInput: There is none; the message lists those there are.
        """
        for joint in self.joints:
            if joint.name == name:
                return joint
        raise BadInput(
            f"model '{self.path.name}' has no joint '{name}'; it has {', '.join(self.joint_names)}"
        )


def read_model_facts(where: str) -> ModelFacts:
    """Read a MuJoCo model.

    Args:
        where: An MJCF file, or the name of an installed robot model.

    Raises:
        BadInput: No such file, or MuJoCo cannot read it; the message has MuJoCo's reason.
        ModuleNotFoundError: MuJoCo is not installed.
    """
    # Only here, so that everything else of export works without MuJoCo.
    import mujoco

    path, digest = _find(where)
    # Without a handler MuJoCo writes MUJOCO_LOG.TXT into the current folder.
    mujoco.set_mju_user_warning(_tell)
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    except Exception as error:
        raise BadInput(f"model '{path}': MuJoCo cannot read it: {one_line(error, 400)}") from None
    data = mujoco.MjData(model)
    data.qpos[:] = 0.0
    free = [j for j in range(model.njnt) if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_FREE]
    if free:
        data.qpos[model.jnt_qposadr[free[0]] + 3] = 1.0
    for j in range(model.njnt):
        if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_BALL:
            data.qpos[model.jnt_qposadr[j]] = 1.0
    mujoco.mj_kinematics(model, data)
    base = _base_body(model, free)
    to_base = data.xmat[base].reshape(3, 3).T
    joints = tuple(_joint(model, data, to_base, j) for j in _robot_joints(model, base))
    return ModelFacts(
        path=path,
        sha256=digest,
        name=model.names[: model.names.index(b"\0")].decode(errors="replace"),
        base_body=model.body(base).name,
        joints=joints,
        actuators=tuple(_actuated(model, a) for a in range(model.nu)),
        timestep=float(model.opt.timestep),
        keyframes=_keyframes(model, joints),
        sites={
            model.site(s).name: _site(model, data, base, s)
            for s in range(model.nsite)
            if model.site(s).name
        },
        gyro_site=_gyro_site(model),
        bodies={model.body(b).name: _body(model, b) for b in range(1, model.nbody)},
    )


def _find(where: str) -> tuple[Path, str]:
    path = Path(where)
    if not path.exists() and where in model_names():
        robot = load_model(where)
        return robot.xml_path, robot.hash
    content = read_bytes(path, _MAX_XML)
    if path.name == "robot.xml" and (path.parent / "profile.json").is_file():
        return path, read_model(path.parent).hash
    return path, hashlib.sha256(content).hexdigest()


def _base_body(model: mujoco.MjModel, free: list[int]) -> int:
    """The free body; else the last body of the chain of slides and balls that stand for it."""
    import mujoco

    if free:
        return int(model.jnt_bodyid[free[0]])
    balls = [j for j in range(model.njnt) if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_BALL]
    if balls:
        return int(model.jnt_bodyid[balls[0]])
    if model.nbody < 2:
        raise BadInput("the model has no body")
    return 1


def _robot_joints(model: mujoco.MjModel, base: int) -> list[int]:
    """Named hinges and slides on the bodies below the base."""
    import mujoco

    kinds = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    found: list[int] = []
    for j in range(model.njnt):
        body = int(model.jnt_bodyid[j])
        if int(model.jnt_type[j]) not in kinds or (body == base and _carries(model, base)):
            continue
        while body not in (0, base):
            body = int(model.body_parentid[body])
        if body == base and model.joint(j).name:
            found.append(j)
    return found


def _tell(text: str) -> None:
    _LOG.debug("MuJoCo: %s", text)


def _carries(model: mujoco.MjModel, base: int) -> bool:
    """Whether the base's own joints are the six of a floating base, in whatever form."""
    import mujoco

    kinds = {int(model.jnt_type[j]) for j in range(model.njnt) if model.jnt_bodyid[j] == base}
    return bool(kinds & {int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)})


def _joint(model: mujoco.MjModel, data: mujoco.MjData, to_base: Any, j: int) -> ModelJoint:
    limited = bool(model.jnt_limited[j])
    axis: Any = to_base @ data.xaxis[j]
    x, y, z = (round(float(axis[i]), 12) + 0.0 for i in range(3))
    return ModelJoint(
        name=model.joint(j).name,
        axis=(x, y, z),
        lower=float(model.jnt_range[j, 0]) if limited else None,
        upper=float(model.jnt_range[j, 1]) if limited else None,
        effort_limit=_effort_limit(model, j),
        servo=_servo(model, j),
        driven=model.joint(j).name in [_actuated(model, a) for a in range(model.nu)],
    )


def _acting(model: mujoco.MjModel, j: int) -> list[int]:
    name = model.joint(j).name
    return [a for a in range(model.nu) if _actuated(model, a) == name]


def _effort_limit(model: mujoco.MjModel, j: int) -> float | None:
    """The smallest of the joint's and its actuators' force ranges."""
    import mujoco

    bounds: list[float] = []
    if model.jnt_actfrclimited[j]:
        bounds.append(float(np.abs(model.jnt_actfrcrange[j]).max()))
    for a in _acting(model, j):
        gear = abs(float(model.actuator_gear[a, 0]))
        fixed = model.actuator_gaintype[a] == mujoco.mjtGain.mjGAIN_FIXED
        plain = fixed and model.actuator_biastype[a] == mujoco.mjtBias.mjBIAS_NONE
        if model.actuator_forcelimited[a]:
            bounds.append(float(np.abs(model.actuator_forcerange[a]).max()) * gear)
        if plain and model.actuator_ctrllimited[a]:
            gain = abs(float(model.actuator_gainprm[a, 0]))
            bounds.append(float(np.abs(model.actuator_ctrlrange[a]).max()) * gain * gear)
    positive = [bound for bound in bounds if bound > 0.0]
    return min(positive) if positive else None


def _servo(model: mujoco.MjModel, j: int) -> tuple[float, float, float] | None:
    """Stiffness, the actuator's damping, and the joint's, of a position actuator on the joint."""
    import mujoco

    for a in _acting(model, j):
        affine = model.actuator_biastype[a] == mujoco.mjtBias.mjBIAS_AFFINE
        kp = float(model.actuator_gainprm[a, 0])
        if affine and kp > 0.0 and abs(model.actuator_biasprm[a, 1] + kp) < 1e-9 * kp:
            damping = float(np.ravel(model.dof_damping[model.jnt_dofadr[j]])[0])
            return kp, -float(model.actuator_biasprm[a, 2]) + 0.0, damping
    return None


def _actuated(model: mujoco.MjModel, a: int) -> str:
    """Name of the joint that an actuator drives, or empty."""
    import mujoco

    kinds = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
    if int(model.actuator_trntype[a]) not in kinds:
        return ""
    return str(model.joint(int(model.actuator_trnid[a, 0])).name)


def _keyframes(
    model: mujoco.MjModel, joints: tuple[ModelJoint, ...]
) -> dict[str, dict[str, float]]:
    return {
        model.key(k).name: {
            joint.name: float(model.key_qpos[k, model.joint(joint.name).qposadr[0]])
            for joint in joints
        }
        for k in range(model.nkey)
        if model.key(k).name
    }


def _site(model: mujoco.MjModel, data: mujoco.MjData, base: int, s: int) -> ModelSite:
    import mujoco

    # Site poses follow from body poses by the site's own offset; mj_kinematics has computed them.
    to_base = data.xmat[base].reshape(3, 3).T
    x, y, z = (float(v) for v in to_base @ (data.site_xpos[s] - data.xpos[base]))
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, (to_base @ data.site_xmat[s].reshape(3, 3)).ravel())
    quat = np.round(quat / np.linalg.norm(quat), 12) + 0.0
    quat /= np.linalg.norm(quat)
    w, i, j, k = (float(v) for v in quat)
    return ModelSite(
        body=model.body(int(model.site_bodyid[s])).name,
        position=(x, y, z),
        quat=(w, i, j, k),
        on_base=model.body_weldid[model.site_bodyid[s]] == model.body_weldid[base],
    )


def _body(model: mujoco.MjModel, b: int) -> ModelBody:
    import mujoco

    hinges: list[tuple[str, tuple[float, float, float], float]] = []
    for j in range(model.njnt):
        if model.jnt_bodyid[j] == b and int(model.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_HINGE):
            x, y, z = (float(v) for v in model.jnt_axis[j])
            zero = float(model.qpos0[model.jnt_qposadr[j]])
            hinges.append((str(model.joint(j).name), (x, y, z), zero))
    w, x, y, z = (float(v) for v in model.body_quat[b])
    parent = int(model.body_parentid[b])
    return ModelBody(
        parent=model.body(parent).name if parent else "",
        quat=(w, x, y, z),
        hinges=tuple(hinges),
    )


def _gyro_site(model: mujoco.MjModel) -> str:
    import mujoco

    for i in range(model.nsensor):
        if model.sensor_type[i] == mujoco.mjtSensor.mjSENS_GYRO:
            return str(model.site(int(model.sensor_objid[i])).name)
    return ""
