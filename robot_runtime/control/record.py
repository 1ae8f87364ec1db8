"""One record of a flight log: everything a tick read, computed and sent, of fixed size."""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.pipeline import PolicyStep
from robot_runtime.policy.state import JointCommand, RobotState


def record_dtype(contract: PolicyContract) -> np.dtype[np.void]:
    """The fields of a record, little-endian, without gaps.

    ``step`` is 1 where the policy ran and 2 where it began anew; in all other records observation,
    actions and targets are NaN. ``base_lin_vel_b`` is NaN where nothing measures it.
    """
    joints, actions = len(contract.joints), contract.num_actions
    commands = len(contract.commands)
    fields: list[tuple[str, str, tuple[int, ...]]] = [
        ("tick", "<i8", ()),
        ("time", "<f8", ()),
        ("elapsed", "<f8", ()),
        ("mode", "<u1", ()),
        ("step", "<u1", ()),
        ("faults", "<u4", ()),
        ("compute", "<f8", ()),
        ("lateness", "<f8", ()),
        ("skipped", "<u4", ()),
        ("state_time", "<f8", ()),
        ("base_quat", "<f8", (4,)),
        ("base_ang_vel_b", "<f8", (3,)),
        ("base_lin_vel_b", "<f8", (3,)),
        ("joint_pos", "<f8", (joints,)),
        ("joint_vel", "<f8", (joints,)),
        ("asked", "<f8", (commands,)),
        ("command", "<f4", (commands,)),
        ("observation", "<f4", (contract.observation_dim,)),
        ("raw_action", "<f4", (actions,)),
        ("applied_action", "<f4", (actions,)),
        ("target_position", "<f4", (joints,)),
        ("target_velocity", "<f4", (joints,)),
        ("target_effort", "<f4", (joints,)),
        ("sent_position", "<f8", (joints,)),
        ("sent_velocity", "<f8", (joints,)),
        ("sent_effort", "<f8", (joints,)),
        ("sent_kp", "<f8", (joints,)),
        ("sent_kd", "<f8", (joints,)),
    ]
    return np.dtype(cast("Any", fields))


POLICY_FIELDS = (
    "command",
    "observation",
    "raw_action",
    "applied_action",
    "target_position",
    "target_velocity",
    "target_effort",
)
"""What a policy step fills."""


class Recorder(Protocol):
    """Takes the records of a loop. Must neither block nor keep the array it is given."""

    def write(self, record: NDArray[np.void]) -> None:
        """Take one record, shape ``(1,)``, of the loop's `record_dtype`; raise if it is lost."""
        ...


class MemoryRecorder:
    """Keeps all records in memory: for simulations, which are short and lose nothing."""

    def __init__(self, contract: PolicyContract) -> None:
        """Prepare for a contract's records."""
        self._rows = np.empty(1024, dtype=record_dtype(contract))
        self._count = 0

    @property
    def rows(self) -> NDArray[np.void]:
        """The records so far, shape ``(ticks,)``."""
        return self._rows[: self._count]

    def write(self, record: NDArray[np.void]) -> None:
        """Copy one record."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._count] = record[0]
        self._count += 1


class Row:
    """The record that the loop fills anew every tick, in memory that stays."""

    def __init__(self, contract: PolicyContract) -> None:
        """Make the record and a view of each of its fields."""
        self.array = np.zeros(1, dtype=record_dtype(contract))
        names = self.array.dtype.names or ()
        self._field: dict[str, NDArray[Any]] = {name: self.array[name][0:1] for name in names}
        self._vector = {name: view[0] for name, view in self._field.items() if view.ndim > 1}
        self._stepped = True
        self.clear()

    def clear(self) -> None:
        """Forget the last tick."""
        for view in self._field.values():
            view.fill(np.nan if view.dtype.kind == "f" else 0)
        self._stepped = False

    def put(self, name: str, value: float) -> None:
        """Set a field that is one number."""
        self._field[name][0] = value

    def state(self, state: RobotState | None) -> None:
        """Set what was measured; None where nothing was."""
        if state is None:
            for name in ("base_quat", "base_ang_vel_b", "base_lin_vel_b", "joint_pos", "joint_vel"):
                self._vector[name].fill(np.nan)
            self.put("state_time", np.nan)
            return
        self.put("state_time", state.time)
        vector = self._vector
        vector["base_quat"][:] = state.base_quat
        vector["base_ang_vel_b"][:] = state.base_ang_vel_b
        lin_vel = state.base_lin_vel_b
        vector["base_lin_vel_b"][:] = np.nan if lin_vel is None else lin_vel
        vector["joint_pos"][:] = state.joint_pos
        vector["joint_vel"][:] = state.joint_vel

    def asked(self, asked: NDArray[np.float64]) -> None:
        """Set what the operator asked for, as the policy was given it."""
        self._vector["asked"][:] = asked

    def policy(self, step: PolicyStep | None) -> None:
        """Set what the policy computed; None where it did not run."""
        vector = self._vector
        if step is None:
            if self._stepped:
                for name in POLICY_FIELDS:
                    vector[name].fill(np.nan)
                self._stepped = False
            return
        vector["command"][:] = step.command
        vector["observation"][:] = step.observation
        vector["raw_action"][:] = step.raw_action
        vector["applied_action"][:] = step.applied_action
        vector["target_position"][:] = step.targets.position
        vector["target_velocity"][:] = step.targets.velocity
        vector["target_effort"][:] = step.targets.effort
        self._stepped = True

    def sent(self, sent: JointCommand | None) -> None:
        """Set what was sent; None where that failed."""
        vector = self._vector
        if sent is None:
            for name in ("position", "velocity", "effort", "kp", "kd"):
                vector[f"sent_{name}"].fill(np.nan)
            return
        vector["sent_position"][:] = sent.position
        vector["sent_velocity"][:] = sent.velocity
        vector["sent_effort"][:] = sent.effort
        vector["sent_kp"][:] = sent.kp
        vector["sent_kd"][:] = sent.kd
