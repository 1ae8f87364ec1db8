"""Contracts and golden traces of policies that other projects recorded, from their facts.json.

The folders are not part of this project; see the fixture ``real_dir``.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.contract import SCHEMA, PolicyContract
from robot_runtime.policy.pipeline import Network
from robot_runtime.policy.proof import roll
from robot_runtime.policy.rotation import rotate_inverse
from robot_runtime.policy.spec import (
    ActionSpec,
    ActionTerm,
    ActuatorSpec,
    CommandChannel,
    HistorySpec,
    ImuSpec,
    Joint,
    NetworkSpec,
    ObservationBlock,
    ObservationTerm,
    RobotRef,
    Timing,
)
from robot_runtime.policy.trace import GoldenTrace, TraceInputs

SOURCES = {
    "gyro": "base_ang_vel",
    "sensor:gyro": "base_ang_vel",
    "sensor:local_linvel": "base_lin_vel",
    "gravity": "projected_gravity",
    "site_gravity:imu": "projected_gravity",
    "cmd": "command",
    "q-default": "joint_pos_rel",
    "dq": "joint_vel",
    "prev_action": "last_action",
}
"""What facts.json calls a source, and what a contract calls it."""


def read_facts(folder: Path) -> dict[str, Any]:
    """The facts of one recorded policy."""
    facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return facts


def real_contract(folder: Path) -> PolicyContract:
    """The contract that the facts of a recorded policy state."""
    facts = read_facts(folder)
    timing = facts["timing"]
    native = facts["model"]["actuator_type"] == "position"
    return PolicyContract(
        schema=SCHEMA,
        name=facts["case"],
        robot=RobotRef(
            name=facts["folder"],
            model_sha256=facts["files"]["model.xml"]["sha256"],
            base_body=facts["model"]["base_body"],
        ),
        joints=tuple(_joint(facts, name) for name in facts["joints"]),
        timing=Timing(
            control_dt=timing["control_dt"], pd_dt=timing["sim_dt"], physics_dt=timing["sim_dt"]
        ),
        actuator=ActuatorSpec(
            form="native" if native else "explicit_pd",
            damping="joint" if native else "actuator",
            delay=0.0,
            target_filter=1.0,
        ),
        observation=(_block(facts),),
        action=_action(facts),
        commands=_commands(facts),
        phase=None,
        imu=_imu(folder, facts),
        network=NetworkSpec(
            output=next(iter(facts["policy"]["outputs"])), normalizer="in_graph", states=()
        ),
    )


def real_trace(folder: Path, contract: PolicyContract, network: Network) -> GoldenTrace:
    """The recorded run of a policy as a golden trace.

    Observations, actions and targets are the record's own. Efforts were not recorded and are
    those of the law. The record's last row has no target and is left out.
    """
    with np.load(folder / "golden.npz", allow_pickle=False) as npz:
        data = {name: npz[name] for name in npz.files}
    rows = int(np.isfinite(data["target"]).all(axis=1).sum())
    names = tuple(str(name) for name in data["joints"])
    assert names == contract.joint_names
    inputs = _inputs(data, contract, rows)
    given = roll(contract, inputs, network, origin="recorded")
    return dataclasses.replace(
        given,
        observation=data["obs"][:rows].astype(np.float32),
        network_action=data["act"][:rows].astype(np.float32),
        target_pos=data["target"][:rows].astype(np.float32),
    )


def _inputs(data: dict[str, NDArray[Any]], contract: PolicyContract, rows: int) -> TraceInputs:
    hinges = [str(name) for name in data["all_joints"]]
    columns = [hinges.index(name) for name in contract.joint_names]
    qpos = data["qpos"][:rows].astype(np.float64)
    qvel = data["qvel"][:rows].astype(np.float64)
    lin_vel_b = rotate_inverse(qpos[:, 3:7], qvel[:, :3])
    return TraceInputs(
        start=np.arange(rows) == 0,
        elapsed=contract.timing.control_dt * np.arange(rows, dtype=np.float64),
        base_quat=qpos[:, 3:7].astype(np.float32),
        base_ang_vel_b=qvel[:, 3:6].astype(np.float32),
        base_lin_vel_b=np.asarray(lin_vel_b, dtype=np.float32),
        joint_pos=qpos[:, 7:][:, columns].astype(np.float32),
        joint_vel=qvel[:, 6:][:, columns].astype(np.float32),
        asked=data["cmd"][:rows].astype(np.float32),
        raw_action=data["act"][:rows].astype(np.float32),
    )


def _joint(facts: dict[str, Any], name: str) -> Joint:
    gains = facts["gains"][name]
    return Joint(
        name=name,
        motor=facts["model"]["actuator_order"].index(name),
        axis=None,
        default_pos=facts["default_pose"][name],
        lower=None,
        upper=None,
        velocity_limit=None,
        effort_limit=gains["torque_limit"],
        stall_effort=None,
        no_load_speed=None,
        kp=gains["kp"],
        kd=gains["kd"],
    )


def _block(facts: dict[str, Any]) -> ObservationBlock:
    observation = facts["observation"]
    history = observation["history"]
    length = history["length"]
    if length > 1:
        assert history["layout"].startswith("term-major")
        assert history["order"] == "oldest-first"
        assert history["warmup"].startswith("repeat-first")
        assert history["includes_current"] is True
    return ObservationBlock(
        input=next(iter(facts["policy"]["inputs"])),
        terms=tuple(_term(term) for term in observation["terms"]),
        history=HistorySpec(
            length=length,
            layout="term_major",
            order="oldest_first",
            fill="first",
            includes_current=True,
            stride=1,
        ),
        clip=observation["frame_clip"],
    )


def _term(term: dict[str, Any]) -> ObservationTerm:
    scale = term["scale"]
    at_imu = term["source"].startswith(("sensor:", "site_gravity:"))
    return ObservationTerm(
        name=term["name"],
        source=SOURCES[term["source"]],  # type: ignore[arg-type]
        scale=tuple(scale) if isinstance(scale, list) else (scale,),
        clip=None,
        clip_first=True,
        noise=(0.0,),
        history_length=None,
        joints=None,
        channels=None,
        stage=term.get("stage", "raw"),
        frame="body",
        sensor="imu" if at_imu else "base",
        value=None,
    )


def _action(facts: dict[str, Any]) -> ActionSpec:
    action = facts["action"]
    joints = tuple(action["joints"])
    assert action["filter"] is None
    assert action["target_clip"] is None
    assert action["raw_clip"] is None
    scale = action["scale"]
    return ActionSpec(
        terms=(
            ActionTerm(
                name="joints",
                kind="position",
                joints=joints,
                scale=tuple(scale) if isinstance(scale, list) else (scale,) * len(joints),
                offset=tuple(action["offset"]),
                relative_to="offset",
                raw_lower=None,
                raw_upper=None,
                target_lower=None,
                target_upper=None,
            ),
        ),
        hold=(),
        filter=1.0,
    )


def _commands(facts: dict[str, Any]) -> tuple[CommandChannel, ...]:
    ranges = facts["command_range"]
    names = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
    if "max_abs" in ranges:
        limits = [(-value, value) for value in ranges["max_abs"]]
    else:
        # The recorded runs go beyond what the vendor lets an operator ask for.
        limits = [(min(ranges[n][0], -1.0), max(ranges[n][1], 1.0)) for n in names]
    return tuple(
        CommandChannel(name=name, lower=low, upper=high, max_rate=None)
        for name, (low, high) in zip(names, limits, strict=True)
    )


def _imu(folder: Path, facts: dict[str, Any]) -> ImuSpec:
    name = facts["conventions"].get("imu_site", "")
    sites = ElementTree.parse(folder / facts["model"]["file"]).iter("site")
    place = next((site.get("pos", "0 0 0") for site in sites if site.get("name") == name), "0 0 0")
    x, y, z = (float(number) for number in place.split())
    return ImuSpec(
        site=name,
        position=(x, y, z),
        quat=(1.0, 0.0, 0.0, 0.0),
        quaternion_order="wxyz",
    )
