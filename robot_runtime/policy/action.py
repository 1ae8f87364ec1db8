"""From the network's output to joint targets: once, for NumPy and torch, any batch shape."""

from __future__ import annotations

import math

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.spec import ActionTerm
from robot_runtime.policy.state import Array, AsArray, JointTargets, as_float32


class ActionMapper:
    """Applies a contract's action terms: clip, filter, scale, offset, clip, hold."""

    def __init__(self, contract: PolicyContract, asarray: AsArray = as_float32) -> None:
        """Prepare the columns of a contract.

        Args:
            contract: The contract.
            asarray: Makes constants of the array library, dtype and device to compute with.
        """
        terms = contract.action.terms
        self._raw = _columns(terms, "raw_lower", "raw_upper", asarray)
        self._target = _columns(terms, "target_lower", "target_upper", asarray)
        self._scale = asarray(np.array([s for t in terms for s in t.scale]))
        self._offset = asarray(np.array([o for t in terms for o in t.offset]))
        self._filter = contract.action.filter
        self._num_actions = contract.num_actions
        self._default = asarray(contract.joint_array("default_pos"))
        self._measured = _measured(contract, asarray)
        self._position = _Scatter(contract, "position", asarray)
        self._velocity = _Scatter(contract, "velocity", asarray)
        self._effort = _Scatter(contract, "effort", asarray)

    def zero(self, batch_shape: tuple[int, ...] = ()) -> Array:
        """The action before the first one, zeros of shape ``(*batch_shape, num_actions)``."""
        xp = array_namespace(self._scale)
        shape = (*batch_shape, self._num_actions)
        return xp.zeros(shape, dtype=self._scale.dtype, device=self._scale.device)

    def apply(self, raw: Array, previous: Array) -> Array:
        """The action that takes effect.

        Args:
            raw: The network's output, shape ``(..., num_actions)``.
            previous: What `apply` gave at the policy step before, zeros at the start.

        Returns:
            The clipped and filtered action, shape ``(..., num_actions)``.
        """
        xp = array_namespace(raw)
        applied = xp.minimum(xp.maximum(raw, self._raw[0]), self._raw[1]) if self._raw else raw
        if self._filter == 1.0:
            return applied
        return self._filter * applied + (1.0 - self._filter) * previous

    def targets(self, applied: Array, joint_pos: Array) -> JointTargets:
        """The joint targets of an applied action.

        Args:
            applied: What `apply` gave, shape ``(..., num_actions)``.
            joint_pos: Measured positions, [rad], shape ``(..., num_joints)``; used by terms that
                are relative to them.

        Returns:
            The targets, each of shape ``(..., num_joints)``.
        """
        xp = array_namespace(applied)
        values = self._offset + self._scale * applied
        if self._measured is not None:
            index, mask = self._measured
            values = values + mask * xp.take(joint_pos, index, axis=-1)
        if self._target is not None:
            values = xp.minimum(xp.maximum(values, self._target[0]), self._target[1])
        return JointTargets(
            position=self._position(values),
            velocity=self._velocity(values),
            effort=self._effort(values),
        )


class _Scatter:
    """Places the values of one kind of target at their joints, as a gather.

    The values get one more column per joint with what a joint has that nothing drives: its hold
    or default position, zero velocity, zero effort.
    """

    def __init__(self, contract: PolicyContract, kind: str, asarray: AsArray) -> None:
        names = contract.joint_names
        rest = np.zeros(len(names))
        if kind == "position":
            rest = contract.joint_array("default_pos")
            for target in contract.action.hold:
                rest[names.index(target.joint)] = target.position
        index = np.arange(len(names), dtype=np.int64) + contract.num_actions
        column = 0
        for term in contract.action.terms:
            for name in term.joints:
                if term.kind == kind:
                    index[names.index(name)] = column
                column += 1
        self._rest = asarray(rest)
        xp = array_namespace(self._rest)
        self._index = xp.asarray(index, device=self._rest.device)
        self._all = bool(np.array_equal(index, np.arange(len(names))))
        self._none = bool(np.all(index >= contract.num_actions))

    def __call__(self, values: Array) -> Array:
        if self._all:
            return values
        xp = array_namespace(values)
        rest = xp.broadcast_to(self._rest, (*values.shape[:-1], self._rest.shape[0]))
        if self._none:
            return rest
        return xp.take(xp.concat([values, rest], axis=-1), self._index, axis=-1)


def _columns(
    terms: tuple[ActionTerm, ...], lower: str, upper: str, asarray: AsArray
) -> tuple[Array, Array] | None:
    if all(getattr(term, lower) is None for term in terms):
        return None
    return (
        asarray(_column(terms, lower, -math.inf)),
        asarray(_column(terms, upper, math.inf)),
    )


def _column(terms: tuple[ActionTerm, ...], field: str, absent: float) -> NDArray[np.float64]:
    parts = [getattr(term, field) or (absent,) * len(term.joints) for term in terms]
    return np.array([value for part in parts for value in part], dtype=np.float64)


def _measured(contract: PolicyContract, asarray: AsArray) -> tuple[Array, Array] | None:
    """Joint index of every action, and 1 where its target is relative to the measured position."""
    terms = contract.action.terms
    mask = np.array([float(t.relative_to == "measured") for t in terms for _ in t.joints])
    if not np.any(mask):
        return None
    column = asarray(mask)
    xp = array_namespace(column)
    index = contract.joint_indices(contract.action_joints)
    return xp.asarray(index, device=column.device), column
