"""A MuJoCo model that realizes a contract: bound by name, driven as the contract declares.

The model's own actuators on the contract's joints are replaced, because a position servo in the
file would override the policy's PD. Gains are set on the way by `actuation.py`.
"""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_runtime.errors import BadInput
from robot_runtime.policy.actuator import stability_audit
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import MIN_PERIOD
from robot_runtime.robots import load_model, model_names, read_model
from sim2sim.doctor import JOINT_TRANSMISSIONS, Finding, examine, free_joint, joint_ids

_LOG = logging.getLogger(__name__)

LARGEST_STEP = 0.005
"""Largest physics step that is taken unasked, [s]."""

FEWEST_ITERATIONS = 20
"""Iterations that solver and line search may take at least; Newton stops earlier by itself.

With the one iteration that some models are trained with, implicitfast throws a standing robot into
the air (measured with MuJoCo 4.0 on a model of 12 joints; ten iterations agree with Euler).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """A model on disk.

    Attributes:
        path: The MJCF.
        sha256: Its hash; of a robot model's folder where it is one.
        keyframe: Name of the keyframe with the home pose, or empty where nothing names one.
        feet: Names of the geoms that are meant to touch the ground, or none where nothing says.
    """

    path: Path
    sha256: str
    keyframe: str
    feet: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimModel:
    """A compiled model bound to a contract. Whoever simulates works on a copy of ``mj``.

    Attributes:
        contract: The contract.
        mj: The compiled model with the contract's actuators.
        physics_dt: Physics step, [s]; divides the contract's ``pd_dt``.
        qpos: Addresses of the joints' positions in ``qpos``, int64, shape ``(num_joints,)``.
        dof: Addresses of the joints' velocities in ``qvel``, int64, shape ``(num_joints,)``.
        ctrl: Indices of the contract's actuators, int64, shape ``(num_joints,)``.
        base: Index of the base body.
        base_qpos: Address of the base's position and quaternion in ``qpos``.
        base_dof: Address of the base's velocities in ``qvel``.
        file: Where the model came from.
        findings: What differs between model and contract.
    """

    contract: PolicyContract
    mj: mujoco.MjModel
    physics_dt: float
    qpos: NDArray[np.int64]
    dof: NDArray[np.int64]
    ctrl: NDArray[np.int64]
    base: int
    base_qpos: int
    base_dof: int
    file: ModelFile
    findings: tuple[Finding, ...]

    @property
    def substeps(self) -> int:
        """Physics steps per PD step."""
        return round(self.contract.timing.pd_dt / self.physics_dt)


def find_model(contract: PolicyContract, scene: Path | None) -> ModelFile:
    """The model to simulate: the one asked for, else the robot model that the contract names.

    `scene` is a MuJoCo scene or, where there is no such file, the name of a robot model.

    Raises:
        BadInput: There is no such file, or no such robot model.
    """
    if scene is None or (not scene.exists() and str(scene) in model_names()):
        try:
            robot = load_model(contract.robot.name if scene is None else str(scene))
        except BadInput as error:
            raise BadInput(f"{error}; give a MuJoCo scene with --model") from None
        profile = robot.profile
        return ModelFile(
            path=robot.xml_path,
            sha256=robot.hash,
            keyframe=profile.keyframe,
            feet=profile.foot_geoms,
        )
    if not scene.is_file():
        known = ", ".join(model_names())
        raise BadInput(f"model '{scene}': no such file, nor an installed robot model ({known})")
    if scene.name == "robot.xml" and (scene.parent / "profile.json").is_file():
        robot = read_model(scene.parent)
        keyframe, feet = robot.profile.keyframe, robot.profile.foot_geoms
        return ModelFile(path=scene, sha256=robot.hash, keyframe=keyframe, feet=feet)
    digest = hashlib.sha256(scene.read_bytes()).hexdigest()
    return ModelFile(path=scene, sha256=digest, keyframe="", feet=())


def build_model(
    contract: PolicyContract, file: ModelFile, physics_dt: float | None = None
) -> SimModel:
    """Load a model, examine it and give it the contract's actuators.

    Args:
        contract: What the policy expects.
        file: The model.
        physics_dt: Physics step, [s]; None for the training's, at most `LARGEST_STEP`.

    Returns:
        The bound model.

    Raises:
        BadInput: The file is no MuJoCo model, or the step does not divide the PD period.
        Refused: The model does not fit the contract (see `doctor.examine`), or an explicit PD
            cannot be stable with its inertias.
    """
    step = choose_step(contract, physics_dt)
    spec = read_spec(file.path)
    original = _compile(spec, file.path)
    findings = [*_check_file(contract, file), *examine(original, contract)]
    _replace_actuators(spec, original, contract)
    model = _compile(spec, file.path)
    joints = joint_ids(model, contract)
    findings += _set_options(model, contract, step)
    _clear_joint_limits(model, joints)
    stability_audit(contract, effective_inertia(model, contract))
    base_joint = free_joint(model, contract.robot.base_body)
    assert base_joint is not None, "examine has refused a base without a free joint"
    return SimModel(
        contract=contract,
        mj=model,
        physics_dt=step,
        qpos=model.jnt_qposadr[joints].astype(np.int64),
        dof=model.jnt_dofadr[joints].astype(np.int64),
        ctrl=np.array([model.actuator(_name(n)).id for n in contract.joint_names], dtype=np.int64),
        base=model.body(contract.robot.base_body).id,
        base_qpos=int(model.jnt_qposadr[base_joint]),
        base_dof=int(model.jnt_dofadr[base_joint]),
        file=file,
        findings=tuple(findings),
    )


def choose_step(contract: PolicyContract, asked: float | None) -> float:
    """The physics step, [s].

    Raises:
        BadInput: The step asked for does not divide the contract's PD period.
    """
    period = contract.timing.pd_dt
    if asked is None:
        largest = min(contract.timing.physics_dt, LARGEST_STEP)
        return period / math.ceil(period / largest - 1e-9)
    if not MIN_PERIOD <= asked <= period:
        raise BadInput(f"physics step {asked} s is not in {MIN_PERIOD:g} ... {period} s, the pd_dt")
    if abs(period / asked - round(period / asked)) > 1e-6:
        raise BadInput(f"physics step {asked} s does not divide the contract's pd_dt {period} s")
    return period / round(period / asked)


def read_spec(path: Path) -> mujoco.MjSpec:
    """Read an MJCF.

    Raises:
        BadInput: MuJoCo cannot read it; the message is MuJoCo's.
    """
    # Without a handler MuJoCo writes MUJOCO_LOG.TXT into the current folder.
    mujoco.set_mju_user_warning(_log_warning)
    try:
        return mujoco.MjSpec.from_file(str(path))
    except (ValueError, mujoco.FatalError) as error:
        raise BadInput(f"cannot read model '{path}': {error}") from error


def _log_warning(text: str) -> None:
    _LOG.debug("MuJoCo: %s", text)


def _compile(spec: mujoco.MjSpec, path: Path) -> mujoco.MjModel:
    try:
        return spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        raise BadInput(f"cannot compile model '{path}': {error}") from error


def effective_inertia(model: mujoco.MjModel, contract: PolicyContract) -> NDArray[np.float64]:
    """What each joint's own motor feels at the default pose in free flight.

    The inertia is 1 / (M^-1)_ii, armature included: the neighbours and the base give way. The
    symmetric matrix sqrt(kd) M^-1 sqrt(kd) has no eigenvalue below its largest diagonal element,
    so gains that diverge by this figure diverge in the simulator as well.

    Returns:
        float64, [kg m^2], shape ``(num_joints,)``, contract order.
    """
    data = mujoco.MjData(model)
    joints = joint_ids(model, contract)
    data.qpos[model.jnt_qposadr[joints]] = contract.joint_array("default_pos")
    mujoco.mj_forward(model, data)
    mass = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, mass)
    response = np.diag(np.linalg.inv(mass))[model.jnt_dofadr[joints]]
    return np.asarray(1.0 / response, dtype=np.float64)


def strongest(sim: SimModel) -> NDArray[np.float64]:
    """Largest factor on each joint's gains that an explicit PD at this period can integrate.

    The bound of `stability_audit`, with 2 % to spare. A real motor's own loop is far faster, so
    that its stronger copy is no less stable.

    Returns:
        float64, shape ``(num_joints,)``; infinite for native actuators.
    """
    contract = sim.contract
    if contract.actuator.form != "explicit_pd":
        return np.full(len(contract.joints), np.inf)
    dt, inertia = contract.timing.pd_dt, effective_inertia(sim.mj, contract)
    kp, kd = contract.joint_array("kp"), contract.joint_array("kd")
    load = np.maximum((kp * dt * dt + 2.0 * kd * dt) / inertia, 1e-12)
    return 0.98 * 4.0 / load


def _check_file(contract: PolicyContract, file: ModelFile) -> list[Finding]:
    expected = contract.robot.model_sha256
    if not expected:
        text = "the contract does not say which model it was trained on"
        return [Finding(subject=file.path.name, text=text, differs=False)]
    if file.sha256 == expected:
        return []
    text = (
        f"another model than the one trained on: hash {file.sha256[:12]}, the contract has "
        f"{expected[:12]}"
    )
    return [Finding(subject=file.path.name, text=text, differs=True)]


def _name(joint: str) -> str:
    """Name of the contract's actuator of a joint; no model of its own has such a one."""
    return f"contract/{joint}"


def _replace_actuators(
    spec: mujoco.MjSpec, original: mujoco.MjModel, contract: PolicyContract
) -> None:
    names = set(contract.joint_names)
    gone: set[str] = set()
    for actuator in list(spec.actuators):
        if actuator.trntype in JOINT_TRANSMISSIONS and actuator.target in names:
            # The rotor stays when its servo goes: MuJoCo adds gear^2 armature to the joint.
            gear = float(actuator.gear[0])
            spec.joint(actuator.target).armature += gear * gear * float(actuator.armature)
            gone.add(actuator.name)
            spec.delete(actuator)
    for sensor in list(spec.sensors):
        if sensor.objtype == mujoco.mjtObj.mjOBJ_ACTUATOR and sensor.objname in gone:
            spec.delete(sensor)
    native = contract.actuator.form == "native"
    for joint in contract.joints:
        _add_actuator(spec, joint.name, native)


def _add_actuator(spec: mujoco.MjSpec, joint: str, native: bool) -> None:
    """A plain actuator, every field set: the file's defaults must not leak into it."""
    actuator = spec.add_actuator(name=_name(joint))
    actuator.trntype = mujoco.mjtTrn.mjTRN_JOINT
    actuator.target = joint
    actuator.gear = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    actuator.dyntype = mujoco.mjtDyn.mjDYN_NONE
    actuator.gaintype = mujoco.mjtGain.mjGAIN_FIXED
    actuator.gainprm = [1.0] + [0.0] * (len(actuator.gainprm) - 1)
    bias = mujoco.mjtBias.mjBIAS_AFFINE if native else mujoco.mjtBias.mjBIAS_NONE
    actuator.biastype = bias
    actuator.biasprm = [0.0] * len(actuator.biasprm)
    actuator.ctrllimited = mujoco.mjtLimited.mjLIMITED_FALSE
    actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_FALSE
    actuator.actlimited = mujoco.mjtLimited.mjLIMITED_FALSE
    actuator.armature = 0.0
    actuator.damping = [0.0] * len(actuator.damping)
    actuator.delay = 0.0
    actuator.nsample = 0


def _set_options(model: mujoco.MjModel, contract: PolicyContract, step: float) -> list[Finding]:
    """Physics step, integrator, solver; and no silent restart of a simulation that diverged."""
    findings: list[Finding] = []
    if abs(model.opt.timestep - step) > 1e-9:
        text = f"physics step {1e3 * step:g} ms instead of the file's {1e3 * model.opt.timestep:g}"
        findings.append(Finding(subject="option", text=text, differs=False))
    euler = mujoco.mjtIntegrator.mjINT_EULER
    if contract.actuator.form == "native" and model.opt.integrator == euler:
        # Euler would integrate the actuators' damping explicitly.
        model.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
        text = "integrator implicitfast instead of Euler, as the contract's native actuators ask"
        findings.append(Finding(subject="option", text=text, differs=False))
    for field in ("iterations", "ls_iterations"):
        own = int(getattr(model.opt, field))
        if own < FEWEST_ITERATIONS:
            setattr(model.opt, field, FEWEST_ITERATIONS)
            text = f"{field} {FEWEST_ITERATIONS} instead of the file's {own}, so that they converge"
            findings.append(Finding(subject="option", text=text, differs=False))
    model.opt.timestep = step
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return findings


def _clear_joint_limits(model: mujoco.MjModel, joints: NDArray[np.int64]) -> None:
    """The contract's effort limits hold, and no second ones."""
    model.jnt_actfrclimited[joints] = 0
