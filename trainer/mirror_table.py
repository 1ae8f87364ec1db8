"""Mirror tables derived from names, joint axes and observation terms, never written by hand.

The mirror is the robot's sagittal plane (y to -y). Under it a polar vector (velocity, gravity)
changes the sign of y, an axial one (angular velocity) those of x and z, and left and right limbs
swap. `trainer.envs.mirror_check` tries a table in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.observation import history_gather
from robot_runtime.policy.sides import AXIAL, other_side
from robot_runtime.policy.spec import Joint, ObservationBlock, ObservationTerm
from trainer.symmetry import Mirror, MirrorTable

POLAR = (1.0, -1.0, 1.0)
PLANAR = (1.0, -1.0, -1.0)
"""Forward and left velocity and yaw rate."""

_COMMAND_SIGNS = {"lin_vel_x": 1.0, "lin_vel_y": -1.0, "ang_vel_z": -1.0}

# Names, axes and offsets are written with a handful of digits.
_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class Reflection:
    """A reflection under construction: entry i of the image is ``sign[i] * x[index[i]]``."""

    index: tuple[int, ...]
    sign: tuple[float, ...]


def mirror_table(
    contract: PolicyContract,
    *,
    half_cycle: bool,
    critic: Reflection | None = None,
) -> MirrorTable:
    """Derive the reflections of observations and actions.

    Args:
        contract: Names the joints with their axes, and the observation terms.
        half_cycle: Whether the mirrored gait is the gait half a cycle later, as in a trot; else it
            is the same, as in a bound.
        critic: Reflection of what the critic sees after the policy's observation; None where the
            critic sees the policy's.

    Raises:
        Refused: Something has no mirror image; the message names the joint or the term.
    """
    policy = _observation(contract, half_cycle)
    obs = {"policy": Mirror.of(policy.index, policy.sign)}
    if critic is not None:
        both = concat([policy, critic])
        obs["critic"] = Mirror.of(both.index, both.sign)
    action = joint_reflection(contract, contract.action_joints)
    _check_actions(contract)
    return MirrorTable(obs=obs, action=Mirror.of(action.index, action.sign))


def joint_reflection(contract: PolicyContract, names: Sequence[str]) -> Reflection:
    """The reflection of one number per joint (position, velocity, effort, action).

    Raises:
        Refused: A joint has no partner among ``names``, or their axes are no mirror images.
    """
    joints = {joint.name: joint for joint in contract.joints}
    index: list[int] = []
    sign: list[float] = []
    for name in names:
        partner = _partner(name, names)
        index.append(names.index(partner))
        sign.append(_joint_sign(joints[name], joints[partner]))
    return Reflection(index=tuple(index), sign=tuple(sign))


def named_reflection(names: Sequence[str]) -> Reflection:
    """The reflection of one scalar per named part, such as the contact of each foot.

    Raises:
        Refused: A part has no partner among ``names``.
    """
    index = tuple(names.index(_partner(name, names)) for name in names)
    return Reflection(index=index, sign=(1.0,) * len(names))


def vector_reflection(signs: Sequence[float]) -> Reflection:
    """A reflection that only changes signs."""
    return Reflection(index=tuple(range(len(signs))), sign=tuple(signs))


def concat(parts: Sequence[Reflection]) -> Reflection:
    """The reflection of a concatenation."""
    index: list[int] = []
    sign: list[float] = []
    for part in parts:
        start = len(index)
        index.extend(start + i for i in part.index)
        sign.extend(part.sign)
    return Reflection(index=tuple(index), sign=tuple(sign))


def _partner(name: str, names: Sequence[str]) -> str:
    other = other_side(name)
    if other is None:
        return name
    if other not in names:
        raise Refused(
            f"mirror table: '{name}' needs its partner '{other}' on the other side; "
            f"there are {', '.join(names)}"
        )
    return other


def _joint_sign(joint: Joint, partner: Joint) -> float:
    """How an angle of ``partner`` becomes one of ``joint``.

    The mirror image of a rotation about an axis is one about the axis' axial image; where that is
    the other joint's axis turned round, the angle changes its sign.
    """
    if joint.axis is None or partner.axis is None:
        lacking = joint if joint.axis is None else partner
        raise Refused(f"mirror table: joint '{lacking.name}' states no axis")
    image = [s * a for s, a in zip(AXIAL, partner.axis, strict=True)]
    for sign in (1.0, -1.0):
        if all(abs(sign * a - b) < _TOLERANCE for a, b in zip(image, joint.axis, strict=True)):
            _check_pair(joint, partner, sign)
            return sign
    if joint is partner:
        raise Refused(
            f"mirror table: joint '{joint.name}' has no partner, and its axis {joint.axis} neither "
            "lies in the sagittal plane nor stands on it"
        )
    raise Refused(
        f"mirror table: the axes of '{joint.name}' {joint.axis} and '{partner.name}' "
        f"{partner.axis} are no mirror images"
    )


def _check_pair(joint: Joint, partner: Joint, sign: float) -> None:
    if abs(joint.default_pos - sign * partner.default_pos) > _TOLERANCE:
        raise Refused(
            f"mirror table: the default positions of '{joint.name}' ({joint.default_pos}) and "
            f"'{partner.name}' ({partner.default_pos}) are no mirror images"
        )
    for field in ("kp", "kd", "effort_limit"):
        if getattr(joint, field) != getattr(partner, field):
            raise Refused(
                f"mirror table: '{joint.name}' and '{partner.name}' differ in {field}: "
                f"{getattr(joint, field)} and {getattr(partner, field)}"
            )


def _check_actions(contract: PolicyContract) -> None:
    """Scales, offsets and bounds of actions must be mirror images as well."""
    for term in contract.action.terms:
        mirror = joint_reflection(contract, term.joints)
        for i, (j, sign) in enumerate(zip(mirror.index, mirror.sign, strict=True)):
            pairs = [
                ("scale", term.scale[i], term.scale[j]),
                ("offset", term.offset[i], sign * term.offset[j]),
            ]
            for field, low, high in (
                ("raw bound", term.raw_lower, term.raw_upper),
                ("target bound", term.target_lower, term.target_upper),
            ):
                if low is not None and high is not None:
                    # A change of sign makes a lower bound of an upper one.
                    pairs.append((field, low[i], low[j] if sign > 0 else -high[j]))
            for field, mine, image in pairs:
                if abs(mine - image) > _TOLERANCE:
                    raise Refused(
                        f"mirror table: action term '{term.name}': {field} of "
                        f"'{term.joints[i]}' and '{term.joints[j]}' are no mirror images"
                    )


def _observation(contract: PolicyContract, half_cycle: bool) -> Reflection:
    return concat([_block(contract, block, half_cycle) for block in contract.observation])


def _block(contract: PolicyContract, block: ObservationBlock, half_cycle: bool) -> Reflection:
    """The reflection of a block in its layout: every frame is mirrored alike."""
    frame = concat([_term(contract, term, half_cycle) for term in block.terms])
    width = len(frame.index)
    places = [divmod(int(place), width) for place in history_gather(contract, block)]
    where = {place: i for i, place in enumerate(places)}
    return Reflection(
        index=tuple(where[age, frame.index[feature]] for age, feature in places),
        sign=tuple(frame.sign[feature] for _, feature in places),
    )


def _term(contract: PolicyContract, term: ObservationTerm, half_cycle: bool) -> Reflection:
    if term.source not in _TERMS:
        raise Refused(
            f"mirror table: observation term '{term.name}' ({term.source}) has no known mirror "
            f"image; known are {', '.join(sorted(_TERMS))}"
        )
    _check_mounting(contract, term)
    mirror = _TERMS[term.source](contract, term, half_cycle)
    _check_scaling(term, mirror)
    return mirror


def _check_mounting(contract: PolicyContract, term: ObservationTerm) -> None:
    """A tilted sensor sees a mirrored world only if it is tilted about the y axis."""
    if term.sensor != "imu":
        return
    _, x, _, z = contract.imu.quat
    off = abs(x) > _TOLERANCE or abs(z) > _TOLERANCE
    lever = term.source == "base_lin_vel" and abs(contract.imu.position[1]) > _TOLERANCE
    if off or lever:
        raise Refused(
            f"mirror table: observation term '{term.name}': the IMU does not sit symmetrically"
        )


def _check_scaling(term: ObservationTerm, mirror: Reflection) -> None:
    for field, values in (("scale", term.scale), ("noise", term.noise)):
        if len(values) > 1 and any(
            abs(values[i] - values[j]) > _TOLERANCE for i, j in enumerate(mirror.index)
        ):
            raise Refused(
                f"mirror table: observation term '{term.name}': {field} differs left and right"
            )
    if term.clip is not None and -1.0 in mirror.sign and term.clip[0] != -term.clip[1]:
        raise Refused(f"mirror table: observation term '{term.name}': clip {term.clip} is lopsided")


def _polar(contract: PolicyContract, term: ObservationTerm, half_cycle: bool) -> Reflection:
    return vector_reflection(POLAR)


def _axial(contract: PolicyContract, term: ObservationTerm, half_cycle: bool) -> Reflection:
    return vector_reflection(AXIAL)


def _quat(contract: PolicyContract, term: ObservationTerm, half_cycle: bool) -> Reflection:
    # The vector part is along the rotation axis, which is axial.
    last = contract.imu.quaternion_order == "xyzw"
    return vector_reflection((*AXIAL, 1.0) if last else (1.0, *AXIAL))


def _command(contract: PolicyContract, term: ObservationTerm, half_cycle: bool) -> Reflection:
    channels = term.channels or contract.command_names
    for name in channels:
        if name not in _COMMAND_SIGNS:
            raise Refused(
                f"mirror table: observation term '{term.name}': command '{name}' has no known "
                f"mirror image; known are {', '.join(_COMMAND_SIGNS)}"
            )
    return vector_reflection([_COMMAND_SIGNS[name] for name in channels])


def _joints(contract: PolicyContract, term: ObservationTerm, half_cycle: bool) -> Reflection:
    return joint_reflection(contract, term.joints or contract.joint_names)


def _actions(contract: PolicyContract, term: ObservationTerm, half_cycle: bool) -> Reflection:
    return joint_reflection(contract, contract.action_joints)


def _wave(contract: PolicyContract, term: ObservationTerm, half_cycle: bool) -> Reflection:
    """Sine and cosine change their sign half a cycle later."""
    clock = contract.phase
    if clock is not None and clock.stand == "fixed" and half_cycle:
        raise Refused(
            f"mirror table: observation term '{term.name}': a clock that stands at a fixed phase "
            "has no mirror image half a cycle later"
        )
    return vector_reflection([-1.0 if half_cycle else 1.0] * contract.term_dim(term))


def _scalars(contract: PolicyContract, term: ObservationTerm, half_cycle: bool) -> Reflection:
    return vector_reflection([1.0] * contract.term_dim(term))


_TERMS: dict[str, Callable[[PolicyContract, ObservationTerm, bool], Reflection]] = {
    "base_ang_vel": _axial,
    "projected_gravity": _polar,
    "base_lin_vel": _polar,
    "base_quat": _quat,
    "euler_xyz": _axial,
    "command": _command,
    "command_active": _scalars,
    "joint_pos": _joints,
    "joint_pos_rel": _joints,
    "joint_vel": _joints,
    "last_action": _actions,
    "phase_sin": _wave,
    "phase_cos": _wave,
    "phase_sin_cos": _wave,
    "constant": _scalars,
}
