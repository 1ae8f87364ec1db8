"""Compares a MuJoCo model with a contract before anything moves, joint by joint and by name.

What would make the robot fall for the wrong reason is refused. Whatever else differs is a
`Finding`, and the report shows it: half of all wrong contracts still walk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import Joint

AXIS_TOLERANCE = 0.1
"""Largest angle between the contract's joint axis and the model's, [rad]."""

JOINT_TRANSMISSIONS = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)
"""How an actuator acts on one joint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something about a model that the reader of a report should know.

    Attributes:
        subject: The joint, actuator, site or file it is about.
        text: What was found, one sentence without the subject.
        differs: Whether model and contract disagree; otherwise it is for information.
    """

    subject: str
    text: str
    differs: bool


def grouped(findings: Iterable[Finding]) -> list[tuple[str, Finding]]:
    """Findings with equal text as one, in order of the first.

    Returns:
        Pairs of the subjects, comma-separated, and the first finding of each group.
    """
    groups: dict[tuple[str, bool], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.text, finding.differs), []).append(finding)
    return [(", ".join(f.subject for f in group), group[0]) for group in groups.values()]


def examine(model: mujoco.MjModel, contract: PolicyContract) -> list[Finding]:
    """Compare a model, as its file has it, with a contract.

    Args:
        model: The compiled model with its own actuators.
        contract: What the policy expects.

    Returns:
        Everything that differs or that a reader should know.

    Raises:
        Refused: The base or a joint is missing, is no hinge, turns the other way, or cannot reach
            the default pose; the message names it and what exists.
    """
    _check_base(model, contract)
    return [
        *_check_names(model, contract),
        *_check_axes(model, contract),
        *_check_limits(model, contract),
        *check_actuators(model, contract),
        *_check_imu(model, contract),
    ]


def joint_ids(model: mujoco.MjModel, contract: PolicyContract) -> NDArray[np.int64]:
    """Where the contract's joints stand in a model.

    Returns:
        int64, shape ``(num_joints,)``, contract order.

    Raises:
        Refused: A joint is missing or is no hinge; the message lists the model's hinges.
    """
    hinges = _hinges(model)
    for name in contract.joint_names:
        if name not in hinges:
            found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name)
            what = "is not in the model" if found < 0 else "is no hinge in the model"
            raise Refused(
                f"joint {name!r} of the contract {what}; its hinges are: {', '.join(hinges)}"
            )
    return np.array([hinges[name] for name in contract.joint_names], dtype=np.int64)


def _hinges(model: mujoco.MjModel) -> dict[str, int]:
    hinge = mujoco.mjtJoint.mjJNT_HINGE
    return {model.joint(i).name: i for i in range(model.njnt) if model.jnt_type[i] == hinge}


def _check_base(model: mujoco.MjModel, contract: PolicyContract) -> None:
    name = contract.robot.base_body
    bodies = [model.body(i).name for i in range(1, model.nbody)]
    if name not in bodies:
        raise Refused(
            f"body {name!r}, the contract's base, is not in the model; its bodies are: "
            f"{', '.join(filter(None, bodies))}"
        )
    if free_joint(model, name) is None:
        free = [b for b in bodies if b and free_joint(model, b) is not None]
        raise Refused(
            f"body {name!r}, the contract's base, has no free joint in the model; bodies with one: "
            f"{', '.join(free) or 'none'}"
        )


def free_joint(model: mujoco.MjModel, body: str) -> int | None:
    """Index of the free joint of a body, or None."""
    view = model.body(body)
    if view.jntnum[0] != 1:
        return None
    joint = int(view.jntadr[0])
    return joint if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE else None


def _check_names(model: mujoco.MjModel, contract: PolicyContract) -> list[Finding]:
    bound = set(joint_ids(model, contract).tolist())
    base = free_joint(model, contract.robot.base_body)
    driven = {int(model.actuator_trnid[a, 0]): model.actuator(a).name for a in _on_joints(model)}
    findings: list[Finding] = []
    for i in range(model.njnt):
        if i in bound or i == base:
            continue
        text = "joint that the contract does not have: moves freely"
        if i in driven:
            text = f"joint that the contract does not have: its actuator {driven[i]!r} gets zero"
        findings.append(Finding(subject=model.joint(i).name, text=text, differs=True))
    return findings


def _check_axes(model: mujoco.MjModel, contract: PolicyContract) -> list[Finding]:
    axes = axes_in_base(model, contract)
    unstated = [joint.name for joint in contract.joints if joint.axis is None]
    findings = [
        Finding(subject=name, text="the contract states no axis: unchecked", differs=False)
        for name in unstated
    ]
    for joint, axis in zip(contract.joints, axes, strict=True):
        if joint.axis is None:
            continue
        expected = np.array(joint.axis) / np.linalg.norm(joint.axis)
        angle = float(np.arctan2(np.linalg.norm(np.cross(axis, expected)), axis @ expected))
        if angle > AXIS_TOLERANCE:
            what = "is flipped: it" if angle > np.pi - AXIS_TOLERANCE else "is another one: it"
            raise Refused(
                f"joint {joint.name!r} of the model {what} turns about {_vector(axis)} in the "
                f"base's frame, the contract says {_vector(expected)}"
            )
        if angle > 1e-3:
            text = f"axis is {angle:.3g} rad off the contract's"
            findings.append(Finding(subject=joint.name, text=text, differs=True))
    return findings


def axes_in_base(model: mujoco.MjModel, contract: PolicyContract) -> NDArray[np.float64]:
    """Unit axes of the contract's joints with every joint at zero.

    Returns:
        float64, base frame, shape ``(num_joints, 3)``, contract order.
    """
    data = mujoco.MjData(model)
    hinges = list(_hinges(model).values())
    data.qpos[model.jnt_qposadr[hinges]] = 0.0
    mujoco.mj_kinematics(model, data)
    base = data.body(contract.robot.base_body).xmat.reshape(3, 3)
    return data.xaxis[joint_ids(model, contract)] @ base


def _check_limits(model: mujoco.MjModel, contract: PolicyContract) -> list[Finding]:
    findings: list[Finding] = []
    for joint, i in zip(contract.joints, joint_ids(model, contract), strict=True):
        limited = bool(model.jnt_limited[i])
        low, high = model.jnt_range[i] if limited else (-np.inf, np.inf)
        if not low - 1e-6 <= joint.default_pos <= high + 1e-6:
            raise Refused(
                f"joint {joint.name!r}: the contract's default position {joint.default_pos:g} rad "
                f"is outside the model's range {low:g}..{high:g}"
            )
        if joint.lower is None and joint.upper is None:
            continue
        lower = -np.inf if joint.lower is None else joint.lower
        upper = np.inf if joint.upper is None else joint.upper
        if not _same(low, lower, 1e-3) or not _same(high, upper, 1e-3):
            text = f"range is {low:g}..{high:g} rad, the contract's {lower:g}..{upper:g}"
            findings.append(Finding(subject=joint.name, text=text, differs=True))
    return findings


def check_actuators(model: mujoco.MjModel, contract: PolicyContract) -> list[Finding]:
    """What the contract's actuators replace, and where their numbers differ."""
    findings: list[Finding] = []
    by_joint: dict[int, list[int]] = {}
    for a in _on_joints(model):
        by_joint.setdefault(int(model.actuator_trnid[a, 0]), []).append(a)
    for joint, i in zip(contract.joints, joint_ids(model, contract), strict=True):
        own = by_joint.get(int(i), [])
        findings += [_replaced(model, a, int(i), joint) for a in own]
        if not own and model.jnt_actfrclimited[i]:
            limit = float(np.abs(model.jnt_actfrcrange[i]).max())
            if not _same(limit, _limit(joint), 1e-6):
                text = f"effort limit {limit:g} Nm replaced by {_show_limit(_limit(joint))}"
                findings.append(Finding(subject=joint.name, text=text, differs=True))
    kept = set(range(model.nactuator)) - set(_on_joints(model))
    for a in sorted(kept):
        text = "actuator that drives no joint directly: kept, gets zero"
        findings.append(Finding(subject=model.actuator(a).name, text=text, differs=True))
    return findings


def _replaced(model: mujoco.MjModel, a: int, i: int, joint: Joint) -> Finding:
    kp, kd = float(model.actuator_gainprm[a, 0]), 0.0 - float(model.actuator_biasprm[a, 2])
    damping = float(model.dof_damping[model.jnt_dofadr[i]])
    limit = _model_limit(model, a, i)
    same_limit = _same(limit, _limit(joint), 1e-6)
    if is_servo(model, a):
        same = (
            _same(kp, joint.kp, 1e-6)
            and same_limit
            and (_same(kd, joint.kd, 1e-6) or (kd == 0.0 and _same(damping, joint.kd, 1e-6)))
        )
        has = f"position servo with kp {kp:g}, kd {kd:g}, joint damping {damping:g} and"
    else:
        same, has = same_limit, "motor with"
    text = (
        f"{has} {_show_limit(limit)} replaced by the contract's kp {joint.kp:g}, "
        f"kd {joint.kd:g} and {_show_limit(_limit(joint))}"
    )
    return Finding(subject=joint.name, text=text, differs=not same)


def is_servo(model: mujoco.MjModel, actuator: int) -> bool:
    """Whether an actuator has a position feedback of its own."""
    affine = model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_AFFINE
    return bool(affine and model.actuator_biasprm[actuator, 1] != 0.0)


def _model_limit(model: mujoco.MjModel, a: int, i: int) -> float:
    """Largest effort that a model's own actuator may give at its joint, [Nm]."""
    gear = abs(float(model.actuator_gear[a, 0]))
    limits = [np.inf]
    if model.actuator_forcelimited[a]:
        limits.append(gear * float(np.abs(model.actuator_forcerange[a]).max()))
    if model.jnt_actfrclimited[i]:
        limits.append(float(np.abs(model.jnt_actfrcrange[i]).max()))
    if model.actuator_ctrllimited[a] and not is_servo(model, a):
        gain = abs(float(model.actuator_gainprm[a, 0]))
        limits.append(gear * gain * float(np.abs(model.actuator_ctrlrange[a]).max()))
    return min(limits)


def _check_imu(model: mujoco.MjModel, contract: PolicyContract) -> list[Finding]:
    imu = contract.imu
    if not imu.site:
        return []
    if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, imu.site) < 0:
        text = "IMU site of the contract is not in the model: the contract's mounting is used"
        return [Finding(subject=imu.site, text=text, differs=True)]
    site = model.site(imu.site)
    if site.bodyid[0] != model.body(contract.robot.base_body).id:
        body = model.body(int(site.bodyid[0])).name
        text = f"IMU site sits on {body!r}, the contract measures on its base"
        return [Finding(subject=imu.site, text=text, differs=True)]
    distance = float(np.linalg.norm(site.pos - np.array(imu.position)))
    cosine = min(1.0, abs(float(site.quat @ np.array(imu.quat))))
    angle = 2.0 * float(np.arccos(cosine))
    if distance <= 1e-3 and angle <= 1e-3:
        return []
    text = f"IMU site is {1e3 * distance:.3g} mm and {angle:.3g} rad off the contract's mounting"
    return [Finding(subject=imu.site, text=text, differs=True)]


def _on_joints(model: mujoco.MjModel) -> list[int]:
    """The actuators that act on a joint."""
    kinds = [int(kind) for kind in JOINT_TRANSMISSIONS]
    return [a for a in range(model.nactuator) if int(model.actuator_trntype[a]) in kinds]


def _limit(joint: Joint) -> float:
    return np.inf if joint.effort_limit is None else joint.effort_limit


def _show_limit(limit: float) -> str:
    return "no effort limit" if np.isinf(limit) else f"±{limit:g} Nm"


def _same(a: float, b: float, tolerance: float) -> bool:
    return a == b or abs(a - b) <= tolerance


def _vector(values: NDArray[np.float64]) -> str:
    return "(" + ", ".join(f"{value:.3g}" for value in values + 0.0) + ")"
