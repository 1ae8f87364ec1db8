"""A robot of three joints as MJCF text and the contract that fits it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import ActionSpec, ActuatorSpec, ImuSpec, RobotRef, Timing
from sim2sim.model import ModelFile, SimModel, build_model
from tests.helpers.contracts import make_action, make_joint, quadruped_contract

JOINTS = {"left": ("1 0 0", "0 .1 0"), "right": ("0 1 0", "0 -.1 0"), "tail": ("0 0 1", "-.15 0 0")}
"""Axis in the base's frame and place of every joint."""


def tiny_xml(
    *,
    order: tuple[str, ...] = ("left", "right", "tail"),
    axes: dict[str, str] | None = None,
    names: dict[str, str] | None = None,
    passive: tuple[str, ...] = (),
    joint: str = 'armature=".02" damping=".1"',
    actuators: str = "",
    size: str = "",
    extra: str = "",
) -> str:
    """A floating box with one swinging rod per joint, over a floor, without gravity.

    Args:
        order: Joints in the order of the file.
        axes: Axes to use instead, by joint.
        names: Names to use instead, by joint.
        passive: Names of further joints, spread over the file.
        joint: Attributes of the joints.
        actuators: Content of ``<actuator>``.
        size: Attributes of ``<size>``.
        extra: More elements of ``<mujoco>``.
    """
    axes, names = axes or {}, names or {}
    bodies: list[str] = []
    for i, name in enumerate(order):
        bodies += [_rod(extra_name, "0 1 0", ".15 0 .1") for extra_name in passive[i : i + 1]]
        axis, place = JOINTS[name]
        bodies.append(_rod(names.get(name, name), axes.get(name, axis), place, joint))
    return f"""
    <mujoco>
      <compiler angle="radian" autolimits="true"/>
      <option timestep=".001" gravity="0 0 0"/>
      <size {size}/>
      <worldbody>
        <geom name="floor" type="plane" size="0 0 1" contype="1" conaffinity="0"/>
        <body name="base" pos="0 0 1">
          <freejoint/>
          <site name="imu" pos=".01 0 .02"/>
          <geom type="box" size=".1 .1 .05" mass="20" contype="0" conaffinity="1"/>
          {"".join(bodies)}
        </body>
      </worldbody>
      <actuator>{actuators}</actuator>
      {extra}
    </mujoco>"""


def crowded_xml(memory: str) -> str:
    """The robot beside eight boxes on the floor, whose contacts need memory.

    Args:
        memory: What MuJoCo may take; 40K is too little for the contacts, 1M is plenty.
    """
    boxes = "".join(
        f'<body pos="{2 + i} 0 .05"><freejoint/><geom type="box" size=".06 .06 .06" '
        f'contype="0" conaffinity="1"/></body>'
        for i in range(8)
    )
    xml = tiny_xml(size=f'memory="{memory}"')
    return xml.replace('<body name="base"', f'{boxes}<body name="base"', 1)


def _rod(name: str, axis: str, place: str, joint: str = 'armature=".02"') -> str:
    return f"""
        <body name="{name}_rod" pos="{place}">
          <joint name="{name}" axis="{axis}" range="-3 3" {joint}/>
          <geom type="capsule" size=".01" fromto="0 0 0 .12 .1 -.15" mass=".2" contype="0"
                conaffinity="1"/>
        </body>"""


def tiny_contract(
    *,
    form: str = "native",
    damping: str = "actuator",
    delay: float = 0.0,
    pd_dt: float = 0.005,
    joint: dict[str, Any] | None = None,
    **changes: Any,
) -> PolicyContract:
    """The contract of `tiny_xml`, with different gains and limits for each joint.

    Args:
        form: Form of the actuators.
        damping: Where the damping sits.
        delay: Delay of the actuators, [s].
        pd_dt: PD period, [s].
        joint: Fields of every `Joint` to set instead.
        changes: Fields of `PolicyContract` to set instead.
    """
    axes = {"left": (1.0, 0.0, 0.0), "right": (0.0, 1.0, 0.0), "tail": (0.0, 0.0, 1.0)}
    joints = tuple(
        make_joint(
            name,
            **{
                "axis": axes[name],
                "default_pos": 0.1 * i,
                "lower": -3.0,
                "upper": 3.0,
                "kp": 15.0 + 5.0 * i,
                "kd": 0.6 + 0.2 * i,
                "effort_limit": 4.0 + 2.0 * i,
                **(joint or {}),
            },
        )
        for i, name in enumerate(axes)
    )
    action = dataclasses.replace(make_action("all", tuple(axes)), offset=(0.0, 0.1, 0.2))
    fields: dict[str, Any] = {
        "name": "tiny",
        "robot": RobotRef(name="tiny", model_sha256="", base_body="base"),
        "joints": joints,
        "timing": Timing(control_dt=0.02, pd_dt=pd_dt, physics_dt=pd_dt),
        "actuator": ActuatorSpec(form=form, damping=damping, delay=delay, target_filter=1.0),  # type: ignore[arg-type]
        "action": ActionSpec(terms=(action,), hold=(), filter=1.0),
        "imu": ImuSpec(
            site="imu",
            position=(0.01, 0.0, 0.02),
            quat=(1.0, 0.0, 0.0, 0.0),
            quaternion_order="wxyz",
        ),
    }
    return quadruped_contract(**{**fields, **changes})


def tiny_sim(
    folder: Path, contract: PolicyContract, xml: str, physics_dt: float | None = None
) -> SimModel:
    """Write the robot into a folder and bind it."""
    path = folder / "tiny.xml"
    path.write_text(xml)
    file = ModelFile(path=path, sha256="0" * 64, keyframe="", feet=())
    return build_model(contract, file, physics_dt)
