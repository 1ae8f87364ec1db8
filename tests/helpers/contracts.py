"""Contracts for tests: a plain quadruped, a rich one that uses every field, and edits by path."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from robot_runtime.policy.contract import SCHEMA, PolicyContract
from robot_runtime.policy.spec import (
    ActionSpec,
    ActionTerm,
    ActuatorSpec,
    CommandChannel,
    HistorySpec,
    HoldTarget,
    ImuSpec,
    Joint,
    NetworkSpec,
    ObservationBlock,
    ObservationTerm,
    PhaseClock,
    RobotRef,
    Timing,
)

LEGS = ("FL", "FR", "RL", "RR")
"""Front left, front right, rear left, rear right."""

PARTS = {"hip": 0.0, "thigh": 0.8, "calf": -1.6}
"""The joints of a leg with their default positions, [rad]."""


def joint_names(legs: tuple[str, ...] = LEGS) -> tuple[str, ...]:
    """Names like those of the built-in quadruped, leg by leg."""
    return tuple(f"{leg}_{part}_joint" for leg in legs for part in PARTS)


def make_joint(name: str, **changes: Any) -> Joint:
    """A joint with the limits and gains of the built-in quadruped, without a torque-speed line."""
    part = name.split("_")[1] if "_" in name else "hip"
    fields: dict[str, Any] = {
        "name": name,
        "motor": None,
        "axis": (1.0, 0.0, 0.0) if part == "hip" else (0.0, 1.0, 0.0),
        "default_pos": PARTS.get(part, 0.0),
        "lower": -3.0,
        "upper": 4.0,
        "velocity_limit": 30.0,
        "effort_limit": 45.0 if part == "calf" else 23.7,
        "stall_effort": None,
        "no_load_speed": None,
        "kp": 25.0,
        "kd": 0.5,
    }
    return Joint(**{**fields, **changes})


def make_term(name: str, source: str, **changes: Any) -> ObservationTerm:
    """A term without scale, clip, noise or history of its own."""
    fields: dict[str, Any] = {
        "name": name,
        "source": source,
        "scale": (1.0,),
        "clip": None,
        "clip_first": True,
        "noise": (0.0,),
        "history_length": None,
        "joints": None,
        "channels": None,
        "stage": "raw",
        "frame": "body",
        "sensor": "base",
        "value": None,
    }
    return ObservationTerm(**{**fields, **changes})


def make_history(length: int = 1, **changes: Any) -> HistorySpec:
    """A history: term-major, oldest first, filled with the first frame."""
    fields: dict[str, Any] = {
        "length": length,
        "layout": "term_major",
        "order": "oldest_first",
        "fill": "first",
        "includes_current": True,
        "stride": 1,
    }
    return HistorySpec(**{**fields, **changes})


def make_block(
    *terms: ObservationTerm,
    input: str = "obs",
    history: HistorySpec | None = None,
    clip: float | None = None,
) -> ObservationBlock:
    """A block of terms."""
    return ObservationBlock(input=input, terms=terms, history=history or make_history(), clip=clip)


def make_action(name: str, joints: tuple[str, ...], **changes: Any) -> ActionTerm:
    """A position term around the default pose, without bounds."""
    fields: dict[str, Any] = {
        "name": name,
        "kind": "position",
        "joints": joints,
        "scale": (0.25,) * len(joints),
        "offset": tuple(make_joint(joint).default_pos for joint in joints),
        "relative_to": "offset",
        "raw_lower": None,
        "raw_upper": None,
        "target_lower": None,
        "target_upper": None,
    }
    return ActionTerm(**{**fields, **changes})


def quadruped_contract(**changes: Any) -> PolicyContract:
    """A plain velocity policy: 12 joints, 45 observations, 50 Hz over a 200 Hz PD.

    Args:
        changes: Fields of `PolicyContract` to set instead.
    """
    names = joint_names()
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "name": "quadruped-test",
        "robot": RobotRef(name="quadruped", model_sha256="", base_body="trunk"),
        "joints": tuple(make_joint(name) for name in names),
        "timing": Timing(control_dt=0.02, pd_dt=0.005, physics_dt=0.005),
        "actuator": ActuatorSpec(
            form="explicit_pd", damping="actuator", delay=0.0, target_filter=1.0
        ),
        "observation": (
            make_block(
                make_term("base_ang_vel", "base_ang_vel", scale=(0.25,), noise=(0.2,)),
                make_term("projected_gravity", "projected_gravity", noise=(0.05,)),
                make_term("command", "command", scale=(2.0, 2.0, 0.25)),
                make_term("joint_pos", "joint_pos_rel", noise=(0.01,)),
                make_term("joint_vel", "joint_vel", scale=(0.05,), noise=(1.5,)),
                make_term("last_action", "last_action"),
            ),
        ),
        "action": ActionSpec(terms=(make_action("legs", names),), hold=(), filter=1.0),
        "commands": (
            CommandChannel(name="lin_vel_x", lower=-1.0, upper=1.0, max_rate=None),
            CommandChannel(name="lin_vel_y", lower=-0.6, upper=0.6, max_rate=None),
            CommandChannel(name="ang_vel_z", lower=-1.0, upper=1.0, max_rate=None),
        ),
        "phase": None,
        "imu": ImuSpec(
            site="imu",
            position=(0.0, 0.0, 0.0),
            quat=(1.0, 0.0, 0.0, 0.0),
            quaternion_order="wxyz",
        ),
        "network": NetworkSpec(output="actions", normalizer="none", states=()),
    }
    return PolicyContract(**{**fields, **changes})


def rich_contract(**changes: Any) -> PolicyContract:
    """The same robot with every field of the contract doing something.

    Histories of both layouts, two network inputs, clips of every kind, a tilted and displaced IMU,
    a gait clock, command rates, position, velocity and effort actions, a held joint, both filters,
    a delay, torque-speed lines.

    Args:
        changes: Fields of `PolicyContract` to set instead.
    """
    names = joint_names()
    fields: dict[str, Any] = {
        "name": "rich-test",
        "joints": tuple(
            make_joint(name, motor=i, stall_effort=40.0, no_load_speed=25.0, kp=20.0 + i)
            for i, name in enumerate(names)
        ),
        "timing": Timing(control_dt=0.02, pd_dt=0.005, physics_dt=0.0025),
        "actuator": ActuatorSpec(
            form="explicit_pd", damping="actuator", delay=0.01, target_filter=0.8
        ),
        "observation": (_rich_state(), _rich_actions()),
        "action": _rich_action(names),
        "commands": (
            CommandChannel(name="lin_vel_x", lower=-1.0, upper=1.4, max_rate=8.0),
            CommandChannel(name="lin_vel_y", lower=-0.6, upper=0.6, max_rate=6.0),
            CommandChannel(name="ang_vel_z", lower=-1.2, upper=1.0, max_rate=10.0),
        ),
        "phase": PhaseClock(
            period=0.5,
            offsets=(0.0, 0.5),
            start=0.1,
            stand="fixed",
            stand_channels=("lin_vel_x", "ang_vel_z", "lin_vel_y"),
            stand_norm="euclidean",
            stand_threshold=0.15,
            stand_phase=0.2,
            restart=0.3,
        ),
        "imu": ImuSpec(
            site="imu",
            position=(0.05, -0.02, 0.03),
            quat=(0.9689124217106447, 0.0, 0.24740395925452294, 0.0),
            quaternion_order="xyzw",
        ),
    }
    return quadruped_contract(**{**fields, **changes})


def _rich_state() -> ObservationBlock:
    return make_block(
        make_term("gyro", "base_ang_vel", scale=(0.25,), clip=(-4.0, 4.0), sensor="imu"),
        make_term("gravity", "projected_gravity", sensor="imu"),
        make_term("lin_vel", "base_lin_vel", sensor="imu", scale=(2.0,), history_length=2),
        make_term("quat", "base_quat", sensor="imu", history_length=1),
        make_term("command", "command", scale=(2.0, 2.0, 0.25), history_length=1),
        make_term("joint_pos", "joint_pos_rel", clip=(-0.8, 0.8), noise=(0.01,)),
        make_term("joint_abs", "joint_pos", joints=("RL_thigh_joint", "FL_hip_joint")),
        make_term("joint_vel", "joint_vel", scale=(0.05,), clip=(-0.5, 0.5), clip_first=False),
        make_term("sin", "phase_sin", history_length=1),
        make_term("cos", "phase_cos", history_length=1),
        make_term("phase", "phase", history_length=1),
        make_term("euler", "euler_xyz", history_length=1),
        make_term("active", "command_active", value=(0.23,), history_length=1),
        make_term("constant", "constant", value=(0.7, -0.3), history_length=1),
        make_term("sin_cos", "phase_sin_cos", history_length=1),
        history=make_history(3, stride=2),
        clip=3.0,
    )


def _rich_actions() -> ObservationBlock:
    return make_block(
        make_term("world_vel", "base_lin_vel", frame="world", scale=(0.5,)),
        make_term("raw", "last_action"),
        make_term("applied", "last_action", stage="applied"),
        make_term("yaw_command", "command", channels=("ang_vel_z",)),
        input="past",
        history=make_history(
            2, layout="frame_major", order="newest_first", fill="zero", includes_current=False
        ),
    )


def _rich_action(names: tuple[str, ...]) -> ActionSpec:
    legs, knee, wheel, direct = names[:8], names[8:9], names[9:10], names[10:11]
    return ActionSpec(
        terms=(
            make_action(
                "legs",
                legs,
                raw_lower=(-3.0,) * 8,
                raw_upper=(3.5,) * 8,
                target_lower=tuple(PARTS[name.split("_")[1]] - 0.5 for name in legs),
                target_upper=tuple(PARTS[name.split("_")[1]] + 0.4 for name in legs),
            ),
            make_action("step", knee, relative_to="measured", offset=(0.05,)),
            make_action("wheel", wheel, kind="velocity", scale=(4.0,), offset=(0.5,)),
            make_action("direct", direct, kind="effort", scale=(3.0,), offset=(0.2,)),
        ),
        hold=(HoldTarget(joint=names[11], position=-1.4),),
        filter=0.7,
    )


def edited(contract: PolicyContract, changes: Mapping[str, Any]) -> PolicyContract:
    """The contract with some values of its JSON replaced.

    Args:
        contract: The contract.
        changes: New values by path, as in ``{"joints.0.kp": 30.0}``.
    """
    plain = contract.to_dict()
    for path, value in changes.items():
        put(plain, path, value)
    return PolicyContract.from_json(json.dumps(plain))


def put(plain: Any, path: str, value: Any) -> None:
    """Replace the value at a path of plain JSON values; a wrong path raises."""
    *parents, last = path.split(".")
    for key in parents:
        plain = plain[int(key)] if isinstance(plain, list) else plain[key]
    if isinstance(plain, list):
        plain[int(last)] = value
        return
    plain[last]
    plain[last] = value


def leaves(plain: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of plain JSON values that is no object and no list, with its path."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(plain, list):
        for i, value in enumerate(plain):
            yield from leaves(value, f"{path}.{i}" if path else str(i))
    else:
        yield path, plain


def with_network(contract: PolicyContract, **changes: Any) -> PolicyContract:
    """The contract with fields of its network replaced."""
    return dataclasses.replace(contract, network=dataclasses.replace(contract.network, **changes))
