"""Observations: the terms of a contract, their clips and scales, and their history.

Everything here runs on NumPy arrays and on torch tensors, with any leading batch shape: the robot
builds one observation, the trainer thousands, with the same lines.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from robot_runtime.policy.codec import ContractError
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.gait import RestartingClock, standing_command
from robot_runtime.policy.spec import ObservationBlock
from robot_runtime.policy.state import Array, AsArray, PolicyInputs, as_float32
from robot_runtime.policy.terms import bind_term


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
        self._contract = contract
        clock = contract.phase
        restarts = clock is not None and clock.restart is not None
        self._clock = RestartingClock(clock, asarray, batch_shape) if clock and restarts else None
        self.dim = contract.observation_dim
        self.frame_dim = sum(contract.frame_dim(block) for block in contract.observation)

    def reset(self, rows: Array | None = None) -> None:
        """Forget the history.

        Args:
            rows: bool, the batch shape: where to forget; None for everywhere.
        """
        if self._clock is not None:
            self._clock.reset(rows)
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
        return self.arrange(self.frames(inputs, noise))

    def frames(self, inputs: PolicyInputs, noise: Array | None = None) -> list[Array]:
        """The first half of `compute`: what is measured now, without the history.

        Unless the gait clock restarts, nothing remembered enters: the rows may be any.

        Returns:
            The frame of every block, finished, float32, each ``(..., block's frame_dim)``.
        """
        if self._clock is not None:
            deciding = standing_command(self._contract, inputs.command)
            elapsed = self._clock.since_origin(inputs.elapsed, deciding)
            inputs = dataclasses.replace(inputs, elapsed=elapsed)
        frames: list[Array] = []
        start = 0
        for block in self._blocks:
            stop = start + block.frame_dim
            frames.append(block.measure(inputs, None if noise is None else noise[..., start:stop]))
            start = stop
        return frames

    def arrange(self, frames: list[Array]) -> Array:
        """The second half of `compute`: the frames among those of the history.

        Args:
            frames: What `frames` gave, of the batch shape.

        Returns:
            The observation; see `compute`. These are now the frames that `commit` files.
        """
        parts = [block.arrange(f) for block, f in zip(self._blocks, frames, strict=True)]
        return parts[0] if len(parts) == 1 else array_namespace(parts[0]).concat(parts, axis=-1)

    def commit(self) -> None:
        """File the frame computed last in the history."""
        if self._clock is not None:
            self._clock.commit()
        for block in self._blocks:
            block.commit()

    def state_dict(self) -> dict[str, Array]:
        """The history, by block: what `load_state_dict` needs to continue exactly."""
        state: dict[str, Array] = {}
        for i, block in enumerate(self._blocks):
            state[f"{i}.past"], state[f"{i}.fresh"] = block.past, block.fresh
        if self._clock is not None:
            state["clock.origin"], state["clock.stood"] = self._clock.origin, self._clock.stood
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
        if self._clock is not None:
            self._clock.origin, self._clock.stood = state["clock.origin"], state["clock.stood"]


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

    def measure(self, inputs: PolicyInputs, noise: Array | None) -> Array:
        values = [term(inputs) for term in self._terms]
        xp = array_namespace(values[0])
        raw = values[0] if len(values) == 1 else xp.concat(values, axis=-1)
        return self._finish(raw, noise)

    def arrange(self, frame: Array) -> Array:
        self._frame = frame
        if self._gather is None:
            return frame
        xp = array_namespace(frame)
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
            table[4:6] = np.minimum(np.maximum(table[4:6], -block.clip), block.clip)
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
