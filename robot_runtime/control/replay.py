"""A flight log back through the policy: the same code must give the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robot_runtime.control.flightlog import FlightLog
from robot_runtime.control.loop import Policy
from robot_runtime.errors import Refused
from robot_runtime.policy.contract import PolicyContract
from robot_runtime.policy.labels import observation_labels
from robot_runtime.policy.pipeline import PolicyPipeline, PolicyStep
from robot_runtime.policy.state import RobotState


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first number that is not the same.

    Attributes:
        tick: Tick of the record.
        field: Field of the record, such as ``observation``.
        label: Term and feature, or joint.
        recorded: What the log has.
        replayed: What the replay gave.
    """

    tick: int
    field: str
    label: str
    recorded: float
    replayed: float

    def __str__(self) -> str:
        return (
            f"tick {self.tick}: {self.field} {self.label}: recorded {self.recorded!r}, "
            f"replayed {self.replayed!r}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReplay:
    """What a replay found.

    Attributes:
        steps: Policy steps in the log.
        compared: Policy steps that were replayed and compared.
        difference: The first difference, or None.
        gap: Tick after which records are missing, so that the steps behind it cannot be replayed;
            None where the log is whole.
    """

    steps: int
    compared: int
    difference: Difference | None
    gap: int | None

    @property
    def good(self) -> bool:
        """Whether every step was replayed and equal."""
        return self.difference is None and self.compared == self.steps


def replay_log(log: FlightLog, policy: Policy) -> LogReplay:
    """Replay a log.

    Args:
        log: The log.
        policy: The policy that was recorded; see `check_policy`.

    Returns:
        How far it went and the first difference, bit for bit.

    Raises:
        Refused: The log has no policy step, or the policy has another contract.
    """
    contract = policy.contract
    if contract.to_json() != log.header.contract:
        raise Refused(f"'{log.path}' was recorded with another contract than the policy's")
    rows = log.rows
    steps = int(np.count_nonzero(rows["step"]))
    if steps == 0:
        raise Refused(f"'{log.path}' has {len(rows)} records and no policy step to replay")
    network = policy.network()
    pipeline = PolicyPipeline(contract, network)
    labels = _labels(contract)
    compared, known, gap = 0, False, None
    for i, row in enumerate(rows):
        missing = i > 0 and int(row["tick"]) != int(rows[i - 1]["tick"]) + 1
        if missing and gap is None:
            gap = int(rows[i - 1]["tick"])
        if row["step"] == 2:
            pipeline.reset()
            network.reset()
            known = True
        elif missing:
            # What the policy remembers depends on the records that are not there.
            known = False
        if row["step"] == 0 or not known:
            continue
        step = pipeline.step(_state(row), row["asked"], float(row["elapsed"]))
        difference = _first_difference(row, step, labels)
        compared += 1
        if difference is not None:
            return LogReplay(steps=steps, compared=compared, difference=difference, gap=gap)
    return LogReplay(steps=steps, compared=compared, difference=None, gap=gap)


def check_policy(log: FlightLog, sha256: str, name: str) -> None:
    """Refuse a policy file that is not the one that was recorded.

    Args:
        log: The log.
        sha256: Hash of the policy file, hexadecimal.
        name: Its name, for the message.

    Raises:
        Refused: The hashes differ.
    """
    recorded = log.header.policy_sha256
    if sha256 != recorded:
        raise Refused(
            f"'{log.path}' was recorded with policy {recorded[:12] or '(unknown)'}... "
            f"('{log.header.policy}'), and '{name}' is {sha256[:12]}..."
        )


def _state(row: Any) -> RobotState:
    lin_vel: NDArray[np.float64] = row["base_lin_vel_b"]
    return RobotState(
        time=float(row["state_time"]),
        base_quat=row["base_quat"],
        base_ang_vel_b=row["base_ang_vel_b"],
        base_lin_vel_b=None if np.isnan(lin_vel).any() else lin_vel,
        joint_pos=row["joint_pos"],
        joint_vel=row["joint_vel"],
    )


def _labels(contract: PolicyContract) -> dict[str, list[str]]:
    joints = list(contract.joint_names)
    return {
        "command": list(contract.command_names),
        "observation": observation_labels(contract),
        "raw_action": list(contract.action_joints),
        "applied_action": list(contract.action_joints),
        "target_position": joints,
        "target_velocity": joints,
        "target_effort": joints,
    }


def _first_difference(
    row: Any, step: PolicyStep, labels: dict[str, list[str]]
) -> Difference | None:
    replayed = {
        "command": step.command,
        "observation": step.observation,
        "raw_action": step.raw_action,
        "applied_action": step.applied_action,
        "target_position": step.targets.position,
        "target_velocity": step.targets.velocity,
        "target_effort": step.targets.effort,
    }
    for field, names in labels.items():
        old: NDArray[np.float32] = row[field]
        new = np.asarray(replayed[field], dtype=np.float32)
        differs = np.flatnonzero(_bits(old) != _bits(new))
        if differs.size:
            i = int(differs[0])
            return Difference(
                tick=int(row["tick"]),
                field=field,
                label=names[i],
                recorded=float(old[i]),
                replayed=float(new[i]),
            )
    return None


def _bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The numbers as their bits, so that equal NaNs are equal and -0.0 is not 0.0."""
    return np.frombuffer(values.tobytes(), dtype=np.uint32)
