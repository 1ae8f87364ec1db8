"""A robot's MuJoCo model with the actuators its contract declares."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_runtime.errors import BadInput, Refused
from robot_runtime.policy.actuator import stability_audit
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import ImuSpec, Joint
from robot_runtime.robots import RobotModel
from trainer.envs.terrain import HeightField

_LOGGER = logging.getLogger(__name__)

# Below its lowest point, [m].
_GROUND_THICKNESS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class SolverOptions:
    """Physics settings of training.

    Iterations 3 and 6 at 10 ms were measured to be as stable as more: Newton's method stops early.

    Attributes:
        iterations: Newton iterations per step.
        ls_iterations: Line search iterations per Newton iteration.
        colliding_geoms: Names of the robot's geoms that touch the ground; None for all of the
            model's. Leaving out thighs and shanks saves a quarter of the physics, where touching
            with them ends the episode anyway.
    """

    iterations: int = 3
    ls_iterations: int = 6
    colliding_geoms: tuple[str, ...] | None = None


def build_model(
    xml_path: Path,
    contract: PolicyContract,
    options: SolverOptions,
    field: HeightField | None = None,
) -> mujoco.MjModel:
    """Compile a robot model for a contract.

    A ``native`` contract gets MuJoCo position actuators: force kp (u - q) - kd dq, clamped to the
    effort limit, with the damping integrated implicitly. An ``explicit_pd`` contract gets motors,
    whose efforts come from `robot_runtime.policy.actuator`.

    Args:
        xml_path: The robot's model; its own actuators, if any, are replaced.
        contract: What to build for. Actuators stand in the order of its joints.
        options: Physics settings.
        field: Ground that takes the place of the model's floor; None for the floor.

    Raises:
        BadInput: The model cannot be read, or lacks a joint, the base, a geom by name or a floor.
        Refused: The contract asks for what its actuator form cannot do, or would diverge.
    """
    log_warnings()
    try:
        spec = mujoco.MjSpec.from_file(str(xml_path))
    except (ValueError, OSError, mujoco.FatalError) as error:
        raise BadInput(f"cannot read robot model {xml_path}: {error}") from error
    spec.option.timestep = contract.timing.physics_dt
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
    spec.option.iterations = options.iterations
    spec.option.ls_iterations = options.ls_iterations
    _remove_actuators(spec)
    if contract.actuator.form == "native":
        _require_native(contract)
    _require_joints(spec, contract)
    for joint in contract.joints:
        _add_actuator(spec, contract, joint)
        _free_joint_of_the_files_own(spec, contract, joint)
    if options.colliding_geoms is not None:
        _restrict_contacts(spec, options.colliding_geoms)
    if field is not None:
        _lay_ground(spec, field, xml_path)
    try:
        model: mujoco.MjModel = spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        raise BadInput(f"cannot compile robot model {xml_path}: {error}") from error
    stability_audit(contract, effective_inertia(model, contract))
    return model


def effective_inertia(model: mujoco.MjModel, contract: PolicyContract) -> NDArray[np.float64]:
    """Inertia that a small effort at one joint meets, the others free, in the home pose.

    It is 1 / (M^-1)_jj: less than M_jj, because the rest of the robot gives way.

    Args:
        model: The robot's model.
        contract: Names the joints; their default positions are the home pose.

    Returns:
        Inertias, armature included, [kg m^2], float64, shape ``(num_joints,)``, contract order.
    """
    data = mujoco.MjData(model)
    index = joint_addresses(model, contract)
    data.qpos[index.qpos] = contract.joint_array("default_pos")
    mujoco.mj_forward(model, data)
    mass = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, mass)
    return np.asarray(1.0 / np.diag(np.linalg.inv(mass))[index.dof], dtype=np.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class JointAddresses:
    """Where the contract's joints stand in the model's vectors, contract order.

    Attributes:
        qpos: Addresses in qpos, int64, shape ``(num_joints,)``.
        dof: Addresses in qvel, int64, shape ``(num_joints,)``.
    """

    qpos: NDArray[np.int64]
    dof: NDArray[np.int64]


def joint_addresses(model: mujoco.MjModel, contract: PolicyContract) -> JointAddresses:
    """Find the contract's joints in a model that was checked to have them."""
    ids = [model.joint(name).id for name in contract.joint_names]
    return JointAddresses(
        qpos=np.asarray(model.jnt_qposadr[ids], dtype=np.int64),
        dof=np.asarray(model.jnt_dofadr[ids], dtype=np.int64),
    )


def base_addresses(model: mujoco.MjModel, base_body: str) -> tuple[int, int]:
    """Addresses of the base's free joint in qpos and qvel.

    Raises:
        BadInput: The body does not exist or has no free joint.
    """
    body = model.body(int(find_bodies(model, [base_body])[0]))
    joint = int(body.jntadr[0])
    if int(body.jntnum[0]) != 1 or model.jnt_type[joint] != mujoco.mjtJoint.mjJNT_FREE:
        raise BadInput(f"body '{base_body}' of the robot model has no free joint")
    return int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])


def find_geoms(model: mujoco.MjModel, names: Sequence[str]) -> NDArray[np.int64]:
    """Ids of the named geoms, int64, shape ``(len(names),)``.

    Raises:
        BadInput: A geom does not exist; the message lists those there are.
    """
    known = [model.geom(i).name for i in range(model.ngeom)]
    for name in names:
        if name not in known:
            raise BadInput(f"robot model has no geom '{name}'; it has {', '.join(known)}")
    return np.array([known.index(name) for name in names], dtype=np.int64)


def find_bodies(model: mujoco.MjModel, names: Sequence[str]) -> NDArray[np.int64]:
    """Ids of the named bodies, int64, shape ``(len(names),)``.

    Raises:
        BadInput: A body does not exist; the message lists those there are.
    """
    known = [model.body(i).name for i in range(model.nbody)]
    for name in names:
        if name not in known:
            raise BadInput(f"robot model has no body '{name}'; it has {', '.join(known)}")
    return np.array([known.index(name) for name in names], dtype=np.int64)


def joint_axes(robot: RobotModel) -> dict[str, tuple[float, float, float]]:
    """Rotation axis of every actuated joint in the base's frame, all joints at zero, unit."""
    _, data = _at_zero(robot)
    base = data.body(robot.profile.base_body).xmat.reshape(3, 3)
    return {
        joint.name: _rounded(base.T @ data.joint(joint.name).xaxis)
        for joint in robot.profile.joints
    }


def imu_mount(robot: RobotModel) -> ImuSpec:
    """Where the robot's IMU sits in its base."""
    model, _ = _at_zero(robot)
    site = model.site(robot.profile.imu_site)
    quat = site.quat
    return ImuSpec(
        site=robot.profile.imu_site,
        position=_rounded(site.pos),
        quat=(float(quat[0]), float(quat[1]), float(quat[2]), float(quat[3])),
        quaternion_order="wxyz",
    )


def log_warnings() -> None:
    """Send MuJoCo's warnings to our log instead of stderr and a file in the working folder."""
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(lambda text: _LOGGER.debug("MuJoCo: %s", text))


def _at_zero(robot: RobotModel) -> tuple[mujoco.MjModel, mujoco.MjData]:
    log_warnings()
    model = mujoco.MjModel.from_xml_path(str(robot.xml_path))
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    return model, data


def _rounded(vector: NDArray[np.float64]) -> tuple[float, float, float]:
    """Free of the last bits that rotations leave; adding zero turns -0.0 into 0.0."""
    x, y, z = (float(np.round(v, 12) + 0.0) for v in vector)
    return x, y, z


def _require_joints(spec: mujoco.MjSpec, contract: PolicyContract) -> None:
    hinge = mujoco.mjtJoint.mjJNT_HINGE
    known = [joint.name for joint in spec.joints if joint.type == hinge]
    for name in contract.joint_names:
        if name not in known:
            raise BadInput(f"robot model has no hinge joint '{name}'; it has {', '.join(known)}")


def _require_native(contract: PolicyContract) -> None:
    """Refuse what a MuJoCo position actuator cannot do."""
    for term in contract.action.terms:
        if term.kind != "position":
            raise Refused(
                f"action term '{term.name}': a native actuator tracks positions only, "
                f"not {term.kind}; declare explicit_pd"
            )
    for joint in contract.joints:
        if joint.stall_effort is not None:
            raise Refused(
                f"joint '{joint.name}': a native actuator has no torque-speed line; "
                "declare explicit_pd"
            )


def _remove_actuators(spec: mujoco.MjSpec) -> None:
    """Take out the file's own actuators and what measures them; their rotors stay."""
    on_joints = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)
    for actuator in list(spec.actuators):
        joint = spec.joint(actuator.target) if actuator.trntype in on_joints else None
        if joint is not None:
            # MuJoCo adds gear^2 armature of an actuator to its joint.
            joint.armature += float(actuator.gear[0]) ** 2 * float(actuator.armature)
        spec.delete(actuator)
    for sensor in list(spec.sensors):
        if sensor.objtype == mujoco.mjtObj.mjOBJ_ACTUATOR:
            spec.delete(sensor)


def _add_actuator(spec: mujoco.MjSpec, contract: PolicyContract, joint: Joint) -> None:
    """A plain actuator, every field set: the file's defaults must not leak into it."""
    actuator = spec.add_actuator(name=joint.name)
    actuator.trntype, actuator.target = mujoco.mjtTrn.mjTRN_JOINT, joint.name
    actuator.gear = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    actuator.dyntype = mujoco.mjtDyn.mjDYN_NONE
    actuator.gaintype = mujoco.mjtGain.mjGAIN_FIXED
    actuator.gainprm = [1.0] + [0.0] * (len(actuator.gainprm) - 1)
    actuator.biastype = mujoco.mjtBias.mjBIAS_NONE
    actuator.biasprm = [0.0] * len(actuator.biasprm)
    actuator.ctrllimited = mujoco.mjtLimited.mjLIMITED_FALSE
    actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_FALSE
    actuator.actlimited = mujoco.mjtLimited.mjLIMITED_FALSE
    actuator.armature = 0.0
    actuator.damping = [0.0] * len(actuator.damping)
    actuator.delay, actuator.nsample = 0.0, 0
    if contract.actuator.form == "explicit_pd":
        return
    if joint.effort_limit is not None:
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        actuator.forcerange = [-joint.effort_limit, joint.effort_limit]
    inside = contract.actuator.damping == "actuator"
    actuator.gainprm[0] = joint.kp
    actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
    actuator.biasprm[:3] = [0.0, -joint.kp, -joint.kd if inside else 0.0]


def _free_joint_of_the_files_own(
    spec: mujoco.MjSpec, contract: PolicyContract, joint: Joint
) -> None:
    """Let the contract's effort limits hold alone, and its damping where it is the joint's."""
    own = spec.joint(joint.name)
    own.actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE
    if contract.actuator.damping == "joint":
        own.damping = [joint.kd] + [0.0] * (len(own.damping) - 1)


def _lay_ground(spec: mujoco.MjSpec, field: HeightField, xml_path: Path) -> None:
    """Make height fields of the planes of the world; they keep their friction and contacts."""
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    floors = [geom for geom in spec.worldbody.geoms if geom.type == plane]
    if not floors:
        raise BadInput(f"robot model {xml_path} has no floor: no plane in its world")
    low = float(field.heights.min())
    # MuJoCo keeps heights between 0 and 1, and wants a field that is not flat.
    span = max(float(field.heights.max()) - low, 1e-3)
    rows, columns = field.heights.shape
    spec.add_hfield(
        name="terrain",
        nrow=rows,
        ncol=columns,
        size=[*field.half_size, span, _GROUND_THICKNESS],
        userdata=((field.heights - low) / span).ravel().tolist(),
    )
    for floor in floors:
        floor.type = mujoco.mjtGeom.mjGEOM_HFIELD
        floor.hfieldname = "terrain"
        floor.pos = [*field.center, low]


def _restrict_contacts(spec: mujoco.MjSpec, colliding: tuple[str, ...]) -> None:
    """Let only the named geoms of moving bodies collide."""
    names = {geom.name for geom in spec.geoms}
    for name in colliding:
        if name not in names:
            known = ", ".join(sorted(names))
            raise BadInput(f"robot model has no geom '{name}'; it has {known}")
    for geom in spec.geoms:
        if geom.name not in colliding and geom.parent.name != "world":
            geom.contype, geom.conaffinity = 0, 0
