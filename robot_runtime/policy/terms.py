"""The observation terms, each once, for NumPy and torch and any leading batch shape."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from robot_runtime.policy.codec import ContractError
from robot_runtime.policy.contract import PolicyContract, index_by_name
from robot_runtime.policy.gait import gait_phase, is_standing, standing_command
from robot_runtime.policy.rotation import (
    cross,
    euler_xyz,
    multiply,
    projected_gravity,
    rotate,
    rotate_inverse,
)
from robot_runtime.policy.spec import ObservationTerm
from robot_runtime.policy.state import Array, AsArray, PolicyInputs

TermFunction = Callable[[PolicyInputs], Array]
"""Computes one frame of one term, unscaled, shape ``(..., term_dim)``."""


def bind_term(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    """The function that computes a term's unscaled value.

    Args:
        contract: The contract the term belongs to.
        term: The term.
        asarray: Makes constants of the array library to compute with.

    Returns:
        A function of `PolicyInputs` giving float32 of shape ``(..., term_dim)``.

    Raises:
        ContractError: The term's source is unknown; the message lists the known ones.
    """
    if term.source not in _SOURCES:
        known = ", ".join(sorted(_SOURCES))
        raise ContractError(f"term {term.name!r}: no source {term.source!r}; known: {known}")
    return _SOURCES[term.source](contract, term, asarray)


def required_measurements(contract: PolicyContract) -> dict[str, str]:
    """Measurements that not every robot has, by name, with the term that needs each."""
    terms = [term for block in contract.observation for term in block.terms]
    return {"base_lin_vel_b": t.name for t in terms if t.source == "base_lin_vel"}  # noqa: B035


def _base_ang_vel(
    contract: PolicyContract, term: ObservationTerm, asarray: AsArray
) -> TermFunction:
    return _framed(contract, term, asarray, lambda inputs: inputs.state.base_ang_vel_b)


def _base_lin_vel(
    contract: PolicyContract, term: ObservationTerm, asarray: AsArray
) -> TermFunction:
    lever = asarray(np.array(contract.imu.position))

    def value(inputs: PolicyInputs) -> Array:
        state = inputs.state
        if state.base_lin_vel_b is None:
            raise ContractError(f"term {term.name!r}: this robot does not measure base_lin_vel_b")
        if term.sensor == "base":
            return state.base_lin_vel_b
        # A point at r on a rigid body moves with v + w x r.
        return state.base_lin_vel_b + cross(state.base_ang_vel_b, lever + 0 * state.base_lin_vel_b)

    return _framed(contract, term, asarray, value)


def _framed(
    contract: PolicyContract, term: ObservationTerm, asarray: AsArray, value: TermFunction
) -> TermFunction:
    """A body vector, turned into the frame and sensor the term asks for."""
    mount = asarray(np.array(contract.imu.quat))
    if term.frame == "world":
        return lambda inputs: rotate(inputs.state.base_quat, value(inputs))
    if term.sensor == "imu":
        return lambda inputs: rotate_inverse(mount, value(inputs))
    return value


def _projected_gravity(
    contract: PolicyContract, term: ObservationTerm, asarray: AsArray
) -> TermFunction:
    if term.sensor == "imu":
        mount = asarray(np.array(contract.imu.quat))
        return lambda inputs: rotate_inverse(mount, projected_gravity(inputs.state.base_quat))
    return lambda inputs: projected_gravity(inputs.state.base_quat)


def _base_quat(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    mount = asarray(np.array(contract.imu.quat))
    last = contract.imu.quaternion_order == "xyzw"

    def value(inputs: PolicyInputs) -> Array:
        quat = inputs.state.base_quat
        if term.sensor == "imu":
            quat = multiply(quat, mount)
        xp = array_namespace(quat)
        return xp.concat([quat[..., 1:], quat[..., :1]], axis=-1) if last else quat

    return value


def _command(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    names = contract.command_names
    pick = _picker(index_by_name("command", term.channels or names, names), len(names))
    return lambda inputs: pick(inputs.command)


def _joint_pos(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    pick = _joint_picker(contract, term)
    return lambda inputs: pick(inputs.state.joint_pos)


def _joint_pos_rel(
    contract: PolicyContract, term: ObservationTerm, asarray: AsArray
) -> TermFunction:
    pick = _joint_picker(contract, term)
    default = asarray(contract.joint_array("default_pos"))
    return lambda inputs: pick(inputs.state.joint_pos - default)


def _joint_vel(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    pick = _joint_picker(contract, term)
    return lambda inputs: pick(inputs.state.joint_vel)


def _last_action(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    if term.stage == "raw":
        return lambda inputs: inputs.raw_action
    return lambda inputs: inputs.applied_action


def _euler_xyz(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    if term.sensor == "imu":
        mount = asarray(np.array(contract.imu.quat))
        return lambda inputs: euler_xyz(multiply(inputs.state.base_quat, mount))
    return lambda inputs: euler_xyz(inputs.state.base_quat)


def _command_active(
    contract: PolicyContract, term: ObservationTerm, asarray: AsArray
) -> TermFunction:
    (threshold,) = term.value or (0.0,)
    names = contract.command_names
    pick = _picker(index_by_name("command", term.channels or names, names), len(names))

    def value(inputs: PolicyInputs) -> Array:
        command = pick(inputs.command)
        xp = array_namespace(command)
        active = xp.sum(command * command, axis=-1) > threshold * threshold
        return xp.astype(active, command.dtype)[..., None]

    return value


def _constant(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    numbers = asarray(np.array(term.value))

    def value(inputs: PolicyInputs) -> Array:
        xp, shape = array_namespace(numbers), inputs.state.joint_pos.shape[:-1]
        return xp.broadcast_to(numbers, (*shape, numbers.shape[0]))

    return value


def _phase_sin(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    return _phase(contract, asarray, lambda xp, cycles: xp.sin(2.0 * math.pi * cycles))


def _phase_cos(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    return _phase(contract, asarray, lambda xp, cycles: xp.cos(2.0 * math.pi * cycles))


def _phase_sin_cos(
    contract: PolicyContract, term: ObservationTerm, asarray: AsArray
) -> TermFunction:
    def wave(xp: Array, cycles: Array) -> Array:
        angle = 2.0 * math.pi * cycles
        pairs = xp.stack([xp.sin(angle), xp.cos(angle)], axis=-1)
        return xp.reshape(pairs, (*cycles.shape[:-1], 2 * cycles.shape[-1]))

    return _phase(contract, asarray, wave)


def _phase_cycles(
    contract: PolicyContract, term: ObservationTerm, asarray: AsArray
) -> TermFunction:
    return _phase(contract, asarray, lambda _, cycles: cycles)


def _phase(
    contract: PolicyContract, asarray: AsArray, wave: Callable[[Array, Array], Array]
) -> TermFunction:
    clock = contract.phase
    if clock is None:
        raise ContractError("phase: a gait clock term needs one, but phase is null")
    like = asarray(np.zeros(1))
    xp = array_namespace(like)

    def value(inputs: PolicyInputs) -> Array:
        deciding = standing_command(contract, inputs.command)
        value = wave(xp, gait_phase(clock, inputs.elapsed, deciding, xp))
        if clock.stand == "zero":
            standing = is_standing(clock, deciding)
            value = xp.where(standing[..., None], xp.zeros_like(value), value)
        return xp.astype(value, like.dtype)

    return value


def _joint_picker(contract: PolicyContract, term: ObservationTerm) -> Callable[[Array], Array]:
    count = len(contract.joints)
    return _picker(contract.joint_indices(term.joints or contract.joint_names), count)


def _picker(index: NDArray[np.int64], count: int) -> Callable[[Array], Array]:
    if np.array_equal(index, np.arange(count)):
        return lambda values: values
    known: dict[object, Array] = {}

    def pick(values: Array) -> Array:
        xp, device = array_namespace(values), _device(values)
        if device not in known:
            known[device] = xp.asarray(index, device=device)
        return xp.take(values, known[device], axis=-1)

    return pick


def _device(values: Array) -> object:
    device: object = values.device
    return device


_SOURCES: dict[str, Callable[[PolicyContract, ObservationTerm, AsArray], TermFunction]] = {
    "base_ang_vel": _base_ang_vel,
    "projected_gravity": _projected_gravity,
    "base_lin_vel": _base_lin_vel,
    "base_quat": _base_quat,
    "euler_xyz": _euler_xyz,
    "command": _command,
    "command_active": _command_active,
    "joint_pos": _joint_pos,
    "joint_pos_rel": _joint_pos_rel,
    "joint_vel": _joint_vel,
    "last_action": _last_action,
    "phase": _phase_cycles,
    "phase_sin": _phase_sin,
    "phase_cos": _phase_cos,
    "phase_sin_cos": _phase_sin_cos,
    "constant": _constant,
}
