"""``deploy.yaml`` as Unitree's controllers read it, at full precision."""

from __future__ import annotations

from typing import Any

import yaml

from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import ActionTerm, ObservationBlock, ObservationTerm

_TERMS = {
    "base_lin_vel": "base_lin_vel",
    "base_ang_vel": "base_ang_vel",
    "projected_gravity": "projected_gravity",
    "command": "velocity_commands",
    "joint_pos": "joint_pos",
    "joint_pos_rel": "joint_pos_rel",
    "joint_vel": "joint_vel_rel",
    "last_action": "last_action",
    "phase_sin_cos": "gait_phase",
}
_ACTIONS = {
    "position": "JointPositionAction",
    "velocity": "JointVelocityAction",
    "effort": "JointEffortAction",
}
_PLAIN_CHANNELS = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


def deploy_yaml(contract: PolicyContract) -> str:
    """The contract in the words of Unitree's controllers.

    Args:
        contract: The contract.

    Raises:
        Refused: Something the policy needs has no place in that format; the message names it.
    """
    _check(contract)
    motors = [joint.motor for joint in contract.joints]
    ids = [i if motor is None else motor for i, motor in enumerate(motors)]
    gains: dict[str, list[float]] = {"kp": [0.0] * (max(ids) + 1), "kd": [0.0] * (max(ids) + 1)}
    for joint, motor in zip(contract.joints, ids, strict=True):
        gains["kp"][motor], gains["kd"][motor] = joint.kp, joint.kd
    plain: dict[str, Any] = {
        "joint_ids_map": ids,
        "step_dt": contract.timing.control_dt,
        "stiffness": gains["kp"],
        "damping": gains["kd"],
        "default_joint_pos": [joint.default_pos for joint in contract.joints],
        "commands": {"base_velocity": {"ranges": _ranges(contract)}},
        "actions": {_ACTIONS[t.kind]: _action(contract, t) for t in contract.action.terms},
        "observations": _observations(contract),
    }
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=100)


def _check(contract: PolicyContract) -> None:
    """Refuse what the format cannot say and its controllers would do differently."""
    terms = contract.action.terms
    kinds = [term.kind for term in terms]
    refusals = {
        "a filter on actions": contract.action.filter != 1.0,
        "a filter on targets": contract.actuator.target_filter != 1.0,
        "bounds on raw actions": any(term.raw_lower is not None for term in terms),
        "targets relative to the measured position": any(
            term.relative_to == "measured" for term in terms
        ),
        "two action terms of one kind": len(set(kinds)) != len(kinds),
        "recurrent state": bool(contract.network.states),
        "a limit on the change of commands": any(c.max_rate for c in contract.commands),
        "a gait clock that stops": contract.phase is not None and contract.phase.stand != "run",
    }
    for block in contract.observation:
        refusals["bounds on whole frames"] = block.clip is not None
        history = block.history
        long = history.length > 1 or any(t.history_length for t in block.terms)
        refusals["a history newest first"] = long and history.order != "oldest_first"
        refusals["a history that starts at zero"] = long and history.fill != "first"
        refusals["a history with gaps"] = history.stride != 1 or not history.includes_current
        _refuse(refusals)
        for term in block.terms:
            if term.source not in _TERMS or term.sensor == "imu" or term.frame == "world":
                raise Refused(f"deploy.yaml has no term for '{term.name}' ({term.source})")
            if term.joints is not None or term.channels not in (None, _PLAIN_CHANNELS):
                raise Refused(f"deploy.yaml has no term for a part of '{term.name}'")


def _refuse(refusals: dict[str, bool]) -> None:
    for what, found in refusals.items():
        if found:
            raise Refused(
                f"deploy.yaml cannot say {what}, which this policy has; leave out "
                "--format deploy-yaml"
            )


def _ranges(contract: PolicyContract) -> dict[str, Any]:
    ranges: dict[str, Any] = {c.name: [c.lower, c.upper] for c in contract.commands}
    return {**ranges, "heading": None}


def _action(contract: PolicyContract, term: ActionTerm) -> dict[str, Any]:
    clip = None
    if term.target_lower is not None and term.target_upper is not None:
        clip = [[a, b] for a, b in zip(term.target_lower, term.target_upper, strict=True)]
    names = contract.joint_names
    everything = term.joints == names
    return {
        "clip": clip,
        "joint_names": [".*"] if everything else list(term.joints),
        "scale": list(term.scale),
        "offset": list(term.offset),
        "joint_ids": None if everything else [names.index(name) for name in term.joints],
    }


def _observations(contract: PolicyContract) -> dict[str, Any]:
    groups = [_group(contract, block) for block in contract.observation]
    inputs = [block.input for block in contract.observation]
    if len(set(inputs)) != len(inputs):
        raise Refused("deploy.yaml cannot say two blocks of one input, which this policy has")
    if len(groups) == 1:
        return groups[0]
    return dict(zip(inputs, groups, strict=True))


def _group(contract: PolicyContract, block: ObservationBlock) -> dict[str, Any]:
    frame_major = block.history.layout == "frame_major" and block.history.length > 1
    group: dict[str, Any] = {"use_gym_history": True} if frame_major else {}
    for term in block.terms:
        entry = _term(contract, block, term)
        if _TERMS[term.source] in group:
            raise Refused(f"deploy.yaml cannot say '{term.name}': a second {term.source}")
        group[_TERMS[term.source]] = entry
    return group


def _term(
    contract: PolicyContract, block: ObservationBlock, term: ObservationTerm
) -> dict[str, Any]:
    dim = contract.term_dim(term)
    params: dict[str, Any] = {}
    if term.source == "command":
        params = {"command_name": "base_velocity"}
    if term.source == "phase_sin_cos" and contract.phase is not None:
        params = {"period": contract.phase.period}
    entry: dict[str, Any] = {
        "params": params,
        "clip": None if term.clip is None else list(term.clip),
        "scale": list(term.scale) * (dim if len(term.scale) == 1 else 1),
        "history_length": block.length_of(term),
    }
    if term.clip is not None and not term.clip_first:
        entry["scale_first"] = True
    return entry


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes every list out instead of pointing to an equal one."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
