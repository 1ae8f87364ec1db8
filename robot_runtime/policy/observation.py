"""The observation terms, each once, and the history around them.

Everything here runs on NumPy arrays and on torch tensors, with any leading batch shape: the robot
builds one observation, the trainer thousands, with the same lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from robot_runtime.policy.codec import ContractError
from robot_runtime.policy.contract import PolicyContract, index_by_name
from robot_runtime.policy.rotation import cross, multiply, projected_gravity, rotate, rotate_inverse
from robot_runtime.policy.spec import ObservationBlock, ObservationTerm, PhaseClock
from robot_runtime.policy.state import Array, AsArray, PolicyInputs, as_float32

TermFunction = Callable[[PolicyInputs], Array]
"""Computes one frame of one term, unscaled, shape ``(..., term_dim)``."""


class ObservationBuilder:
    """Builds the network's input from states, commands and past actions.

    `compute` does not advance anything: it may be called twice. `commit` files the frame that was
    computed last in the history. Noise is the trainer's; nothing is noisy by itself.
    """

    def __init__(
        self,
        contract: PolicyContract,
        asarray: AsArray = as_float32,
        batch_shape: tuple[int, ...] = (),
    ) -> None:
        """Prepare the terms of a contract.

        Args:
            contract: The contract.
            asarray: Makes constants of the array library, dtype and device to compute with.
            batch_shape: Leading shape of every array in and out.
        """
        self._blocks = [
            _Block(contract, block, asarray, batch_shape) for block in contract.observation
        ]
        self.dim = contract.observation_dim
        self.frame_dim = sum(contract.frame_dim(block) for block in contract.observation)

    def reset(self, rows: Array | None = None) -> None:
        """Forget the history.

        Args:
            rows: bool, the batch shape: where to forget; None for everywhere.
        """
        for block in self._blocks:
            block.reset(rows)

    def compute(self, inputs: PolicyInputs, noise: Array | None = None) -> Array:
        """The observation that these inputs give.

        Args:
            inputs: State, command, past actions and elapsed time.
            noise: Draws in [-1, 1] for every feature of every block's frame, shape
                ``(..., frame_dim)``, scaled by the contract's noise; None for none.

        Returns:
            The observation, float32, shape ``(..., dim)``: the network's inputs, concatenated.
        """
        parts: list[Array] = []
        start = 0
        for block in self._blocks:
            stop = start + block.frame_dim
            parts.append(block.compute(inputs, None if noise is None else noise[..., start:stop]))
            start = stop
        return parts[0] if len(parts) == 1 else array_namespace(parts[0]).concat(parts, axis=-1)

    def commit(self) -> None:
        """File the frame computed last in the history."""
        for block in self._blocks:
            block.commit()

    def state_dict(self) -> dict[str, Array]:
        """The history, by block: what `load_state_dict` needs to continue exactly."""
        state: dict[str, Array] = {}
        for i, block in enumerate(self._blocks):
            state[f"{i}.past"], state[f"{i}.fresh"] = block.past, block.fresh
        return state

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Continue from a history that `state_dict` gave.

        Raises:
            ContractError: The history belongs to another contract or batch.
        """
        for i, block in enumerate(self._blocks):
            past, fresh = state[f"{i}.past"], state[f"{i}.fresh"]
            if tuple(past.shape) != tuple(block.past.shape):
                raise ContractError(
                    f"observation history {i}: shape {tuple(past.shape)} is not "
                    f"{tuple(block.past.shape)}"
                )
            block.past, block.fresh = past, fresh


class _Block:
    """One block of terms with its history.

    ``past`` holds the committed frames, newest first, shape ``(..., depth, frame_dim)``; every
    layout is a gather from the current frame followed by these.
    """

    def __init__(
        self,
        contract: PolicyContract,
        block: ObservationBlock,
        asarray: AsArray,
        batch_shape: tuple[int, ...],
    ) -> None:
        self._terms = [bind_term(contract, term, asarray) for term in block.terms]
        self._finish = _Finish(contract, block, asarray)
        self._first = block.history.fill == "first"
        self.frame_dim = contract.frame_dim(block)
        gather = history_gather(contract, block)
        self._depth = int(gather.max()) // self.frame_dim
        plain = np.array_equal(gather, np.arange(self.frame_dim))
        self._gather = None if plain else gather
        self._device_gather: Array = None
        self.past: Array = asarray(np.zeros((*batch_shape, self._depth, self.frame_dim)))
        self._bool: Array = asarray(np.zeros(batch_shape)) == 0
        self.fresh: Array = self._bool
        self._frame: Array = None

    def reset(self, rows: Array | None) -> None:
        self.fresh = self._bool if rows is None else self.fresh | rows

    def compute(self, inputs: PolicyInputs, noise: Array | None) -> Array:
        values = [term(inputs) for term in self._terms]
        xp = array_namespace(values[0])
        raw = values[0] if len(values) == 1 else xp.concat(values, axis=-1)
        self._frame = self._finish(raw, noise)
        if self._gather is None:
            return self._frame
        whole = xp.concat([self._frame[..., None, :], self._filled()], axis=-2)
        flat = xp.reshape(whole, (*whole.shape[:-2], (self._depth + 1) * self.frame_dim))
        if self._device_gather is None:
            self._device_gather = xp.asarray(self._gather, device=_device(flat))
        return xp.take(flat, self._device_gather, axis=-1)

    def commit(self) -> None:
        if self._depth and self._frame is not None:
            xp = array_namespace(self._frame)
            parts = [self._frame[..., None, :], self._filled()[..., :-1, :]]
            self.past = xp.concat(parts, axis=-2)
            self.fresh = xp.zeros_like(self._bool)

    def _filled(self) -> Array:
        """The past, with what the contract declares where there is none yet."""
        xp = array_namespace(self._frame)
        start = self._frame[..., None, :] if self._first else xp.zeros_like(self.past)
        return xp.where(self.fresh[..., None, None], start, self.past)


class _Finish:
    """Noise, clip and scale of one block's frame, feature by feature."""

    def __init__(self, contract: PolicyContract, block: ObservationBlock, asarray: AsArray) -> None:
        columns: list[NDArray[np.float64]] = []
        for term in block.terms:
            dim = contract.term_dim(term)
            low, high = term.clip if term.clip is not None else (-math.inf, math.inf)
            before = (low, high) if term.clip_first else (-math.inf, math.inf)
            after = (-math.inf, math.inf) if term.clip_first else (low, high)
            column = np.empty((6, dim))
            column[0], column[1] = term.scale, term.noise
            column[2], column[3] = before
            column[4], column[5] = after
            columns.append(column)
        table = np.concatenate(columns, axis=1)
        if block.clip is not None:
            table[4] = np.clip(table[4], -block.clip, block.clip)
            table[5] = np.clip(table[5], -block.clip, block.clip)
        self._scale, self._noise = asarray(table[0]), asarray(table[1])
        self._before = _bounds(table[2], table[3], asarray)
        self._after = _bounds(table[4], table[5], asarray)
        self._scaled = bool(np.any(table[0] != 1.0))

    def __call__(self, frame: Array, noise: Array | None) -> Array:
        if noise is not None:
            frame = frame + self._noise * noise
        frame = _clip(frame, self._before)
        if self._scaled:
            frame = frame * self._scale
        return _clip(frame, self._after)


def history_gather(contract: PolicyContract, block: ObservationBlock) -> NDArray[np.int64]:
    """Where every feature of a block's observation comes from.

    Args:
        contract: The contract the block belongs to.
        block: The block.

    Returns:
        int64, shape ``(block_dim,)``: ``age * frame_dim + feature``, where age counts policy
        steps back from the current frame (age 0).
    """
    width = contract.frame_dim(block)
    features: list[NDArray[np.int64]] = []
    start = 0
    for term in block.terms:
        dim = contract.term_dim(term)
        features.append(np.arange(start, start + dim, dtype=np.int64))
        start += dim
    if block.history.layout == "frame_major":
        ages = _ages(block, block.history.length)
        return np.concatenate([age * width + np.arange(width) for age in ages])
    return np.concatenate(
        [
            age * width + columns
            for term, columns in zip(block.terms, features, strict=True)
            for age in _ages(block, block.length_of(term))
        ]
    )


def _ages(block: ObservationBlock, length: int) -> list[int]:
    history = block.history
    newest = 0 if history.includes_current else 1
    ages = [newest + history.stride * i for i in range(length)]
    return ages if history.order == "newest_first" else ages[::-1]


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
    return {
        "base_lin_vel_b": f"{term.name}"
        for block in contract.observation
        for term in block.terms
        if term.source == "base_lin_vel"
    }


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


def _phase_sin(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    return _phase(contract, asarray, 0.0)


def _phase_cos(contract: PolicyContract, term: ObservationTerm, asarray: AsArray) -> TermFunction:
    return _phase(contract, asarray, 0.25)


def _phase(contract: PolicyContract, asarray: AsArray, quarter: float) -> TermFunction:
    clock = contract.phase
    if clock is None:
        raise ContractError("phase: a gait clock term needs one, but phase is null")
    like = asarray(np.zeros(1))
    xp = array_namespace(like)

    def value(inputs: PolicyInputs) -> Array:
        cycles = gait_phase(clock, inputs.elapsed, inputs.command, xp)
        wave = xp.sin(2.0 * math.pi * (cycles + quarter))
        if clock.stand == "zero":
            standing = is_standing(clock, inputs.command)
            wave = xp.where(standing[..., None], xp.zeros_like(wave), wave)
        return xp.astype(wave, like.dtype)

    return value


def gait_phase(clock: PhaseClock, elapsed: Array, command: Array, xp: object) -> Array:
    """Phase of every output of the gait clock.

    Args:
        clock: The clock.
        elapsed: Time since the policy began, [s], float64, shape ``(...)``.
        command: The command, shape ``(..., num_commands)``; a small one may stop the clock.
        xp: Array namespace to compute in.

    Returns:
        Phase, [cycles] in [0, 1), float64 so that a day of walking stays exact, shape
        ``(..., len(offsets))``.
    """
    ns: Array = xp
    time = ns.asarray(elapsed)
    offsets = ns.asarray(
        np.array(clock.offsets) + clock.start, dtype=ns.float64, device=_device(time)
    )
    cycles = ns.astype(time, ns.float64)[..., None] / clock.period + offsets
    cycles = cycles - ns.floor(cycles)
    if clock.stand == "fixed":
        standing = is_standing(clock, command)[..., None]
        cycles = ns.where(standing, ns.full_like(cycles, clock.stand_phase), cycles)
    return cycles


def is_standing(clock: PhaseClock, command: Array) -> Array:
    """Whether the command's norm is at most the clock's threshold; bool, shape ``(...)``."""
    xp = array_namespace(command)
    return xp.sum(command * command, axis=-1) <= clock.stand_threshold * clock.stand_threshold


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


def _bounds(
    lower: NDArray[np.float64], upper: NDArray[np.float64], asarray: AsArray
) -> tuple[Array, Array] | None:
    unbounded = np.all(np.isinf(lower)) and np.all(np.isinf(upper))
    return None if unbounded else (asarray(lower), asarray(upper))


def _clip(values: Array, bounds: tuple[Array, Array] | None) -> Array:
    if bounds is None:
        return values
    xp = array_namespace(values)
    return xp.minimum(xp.maximum(values, bounds[0]), bounds[1])


def _device(values: Array) -> object:
    device: object = values.device
    return device


_SOURCES: dict[str, Callable[[PolicyContract, ObservationTerm, AsArray], TermFunction]] = {
    "base_ang_vel": _base_ang_vel,
    "projected_gravity": _projected_gravity,
    "base_lin_vel": _base_lin_vel,
    "base_quat": _base_quat,
    "command": _command,
    "joint_pos": _joint_pos,
    "joint_pos_rel": _joint_pos_rel,
    "joint_vel": _joint_vel,
    "last_action": _last_action,
    "phase_sin": _phase_sin,
    "phase_cos": _phase_cos,
}
