"""What whoever deploys a policy should know, although nothing is wrong with the export."""

from __future__ import annotations

import numpy as np

from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.sides import AXIAL, other_side
from robot_runtime.policy.spec import Joint
from robot_runtime.policy.terms import required_measurements


def check_measurable(contract: PolicyContract, *, allowed: bool) -> list[str]:
    """Name the terms that the contract's robot cannot measure.

    Args:
        contract: The contract.
        allowed: Whether they are accepted, for a robot with an estimator or for simulation.

    Returns:
        A sentence for each.

    Raises:
        Refused: There is one and it is not accepted.
    """
    found = required_measurements(contract)
    for field, term in found.items():
        if not allowed:
            raise Refused(
                f"observation term '{term}' needs {field}, which robot '{contract.robot.name}' "
                "does not measure by itself; for a robot with an estimator, or for simulation "
                "alone, say --allow-privileged"
            )
    return [f"term '{t}' needs {field}: an estimator must give it" for field, t in found.items()]


def contract_findings(contract: PolicyContract) -> list[str]:
    """Gains of zero, and sides that differ; a sentence for each kind and joint."""
    return [*_zero_gains(contract), *_sides(contract)]


def _zero_gains(contract: PolicyContract) -> list[str]:
    kinds = {name: term.kind for term in contract.action.terms for name in term.joints}
    found: list[str] = []
    for joint in contract.joints:
        kind = kinds.get(joint.name, "position")
        if joint.kp == 0.0 and kind == "position":
            found.append(f"kp of {joint.name} is 0: nothing holds its position")
        if joint.kd == 0.0 and kind != "effort":
            found.append(f"kd of {joint.name} is 0: nothing damps it, and damping stops nothing")
    return found


def _sides(contract: PolicyContract) -> list[str]:
    joints = {joint.name: joint for joint in contract.joints}
    found: list[str] = []
    for i, left in enumerate(contract.joints):
        right = joints.get(other_side(left.name) or "")
        if right is None or contract.joint_names.index(right.name) < i:
            continue
        for field in ("kp", "kd", "effort_limit", "default_pos"):
            a, b = getattr(left, field), getattr(right, field)
            if a is None or b is None:
                continue
            signs = _signs(left, right) if field == "default_pos" else (1.0,)
            if all(abs(a - sign * b) > 1e-6 * max(1.0, abs(a)) for sign in signs):
                found.append(
                    f"left and right differ: {field} of {left.name} is {a:g}, of {right.name} {b:g}"
                )
    return found


def _signs(left: Joint, right: Joint) -> tuple[float, ...]:
    """How the angle of one joint may mirror the other's: by their axes where they are stated."""
    if left.axis is None or right.axis is None:
        return (1.0, -1.0)
    image = np.multiply(AXIAL, right.axis)
    for sign in (1.0, -1.0):
        if np.allclose(sign * image, left.axis, atol=1e-4):
            return (sign,)
    return (1.0, -1.0)
