"""Unitree's numbering of motors, by which its stacks speak of joints.

A motor's number is its place on the robot's bus, the same for all who drive that robot; models list
their actuators as their authors liked. Orders are those of the vendor's documentation of its
robots' low-level interfaces; a place without a name is a motor that the robot does not have.
"""

from __future__ import annotations

_QUADRUPED = tuple(
    f"{leg}_{part}_joint" for leg in ("FR", "FL", "RR", "RL") for part in ("hip", "thigh", "calf")
)
_WHEELS = tuple(f"{leg}_foot_joint" for leg in ("FR", "FL", "RR", "RL"))


def _sides(*parts: str, sides: tuple[str, str] = ("left", "right")) -> tuple[str, ...]:
    return tuple(f"{side}_{part}_joint" for side in sides for part in parts)


_ARM = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow")
_WRIST = ("wrist_roll", "wrist_pitch", "wrist_yaw")
_H1_2_LEGS = ("hip_yaw", "hip_pitch", "hip_roll", "knee", "ankle_pitch", "ankle_roll")

ORDERS: dict[str, tuple[str, ...]] = {
    "Go2, B2, A1": _QUADRUPED,
    "Go2-W, B2-W": (*_QUADRUPED, *_WHEELS),
    "G1": (
        *_sides("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll"),
        *("waist_yaw_joint", "waist_roll_joint", "waist_pitch_joint"),
        *_sides(*_ARM, *_WRIST),
    ),
    "H1": (
        *_sides("hip_roll", "hip_pitch", "knee", sides=("right", "left")),
        *("torso_joint", "left_hip_yaw_joint", "right_hip_yaw_joint", ""),
        *_sides("ankle"),
        *_sides(*_ARM, sides=("right", "left")),
    ),
    "H1-2": (*_sides(*_H1_2_LEGS), "torso_joint", *_sides(*_ARM, *_WRIST)),
    "H1-2 (early names)": (
        *_sides(*_H1_2_LEGS),
        "torso_joint",
        *_sides(*_ARM[:3], "elbow_pitch", "elbow_roll", "wrist_pitch", "wrist_yaw"),
    ),
}
"""Joints by motor number, by robot."""


def motor_order(joints: list[str]) -> tuple[str, list[str]] | None:
    """The robot that a model's joints are of, and the joint behind each of its motors.

    Args:
        joints: Joints that the model drives, in any order, with or without ``_joint`` at the end.

    Returns:
        Name and joints by number, in the model's words, a joint that the model lacks included; None
        where the joints are of no robot that is known, or of two that number them differently.
    """
    own = {joint.removesuffix("_joint"): joint for joint in joints}
    plain = {
        name: [joint.removesuffix("_joint") for joint in order] for name, order in ORDERS.items()
    }
    fitting = [(name, order) for name, order in plain.items() if own.keys() <= set(order)]
    numbers = {tuple(order.index(joint) for joint in own) for _, order in fitting}
    if len(own) != len(joints) or not joints or len(numbers) != 1:
        return None
    name, order = fitting[0]
    return name, [own.get(short, full) for short, full in zip(order, ORDERS[name], strict=True)]
