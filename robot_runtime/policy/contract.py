"""The one value that training, sim2sim and the robot must agree on."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from robot_runtime.policy.codec import ContractError, canonical, decode, encode, parse_json
from robot_runtime.policy.spec import (
    MAX_STATE,
    ActionSpec,
    ActuatorSpec,
    CommandChannel,
    ImuSpec,
    Joint,
    NetworkSpec,
    ObservationBlock,
    ObservationTerm,
    PhaseClock,
    RobotRef,
    Timing,
    require_unique,
)

SCHEMA = 1
"""Version of the contract's fields. A file of a newer schema is refused."""

PHASE_SOURCES = ("phase", "phase_sin", "phase_cos", "phase_sin_cos")
"""The sources that need the gait clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyContract:
    """What a policy expects of the world and what the world may expect of the policy.

    Every field is required in a file: nothing has a silent default there.

    Attributes:
        schema: Version of these fields, see `SCHEMA`.
        name: Name of the task the policy was trained for.
        robot: The robot it was trained on.
        joints: The robot's joints, in the order of every joint vector of this policy.
        timing: Periods of policy, PD and training physics.
        actuator: How targets become efforts.
        observation: Blocks that are concatenated to the network's inputs, in order.
        action: How the network's output becomes joint targets.
        commands: What an operator may ask for, in order.
        phase: The gait clock, or None.
        imu: Where and how the base's attitude and rates are measured.
        network: The graph's inputs, outputs and state.
    """

    schema: int
    name: str
    robot: RobotRef
    joints: tuple[Joint, ...]
    timing: Timing
    actuator: ActuatorSpec
    observation: tuple[ObservationBlock, ...]
    action: ActionSpec
    commands: tuple[CommandChannel, ...]
    phase: PhaseClock | None
    imu: ImuSpec
    network: NetworkSpec

    def __post_init__(self) -> None:
        """Check what only the whole can show; parts have checked themselves."""
        _check_schema(self.schema)
        if not self.joints:
            raise ContractError("joints: a policy needs at least one joint")
        require_unique("joints", self.joint_names)
        require_unique("commands", self.command_names)
        steps = self.actuator.delay / self.timing.pd_dt
        if abs(steps - round(steps)) > 1e-6:
            raise ContractError(
                f"actuator.delay: {self.actuator.delay} s is not a multiple of timing.pd_dt "
                f"{self.timing.pd_dt} s"
            )
        _check_actions(self)
        _check_observation(self)
        if self.phase is not None:
            _check_phase(self.phase, self.command_names)

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names of the joints, in order."""
        return tuple(joint.name for joint in self.joints)

    @property
    def command_names(self) -> tuple[str, ...]:
        """Names of the command channels, in order."""
        return tuple(channel.name for channel in self.commands)

    @property
    def action_joints(self) -> tuple[str, ...]:
        """The joint behind each element of the network's output."""
        return tuple(name for term in self.action.terms for name in term.joints)

    @property
    def num_actions(self) -> int:
        """Length of the network's output."""
        return len(self.action_joints)

    @property
    def decimation(self) -> int:
        """PD steps per policy step."""
        return round(self.timing.control_dt / self.timing.pd_dt)

    @property
    def delay_steps(self) -> int:
        """PD steps from a target to its effect."""
        return round(self.actuator.delay / self.timing.pd_dt)

    @property
    def observation_dim(self) -> int:
        """Length of all inputs of the network together."""
        return sum(self.block_dim(block) for block in self.observation)

    def joint_array(
        self,
        field: Literal[
            "default_pos",
            "kp",
            "kd",
            "effort_limit",
            "velocity_limit",
            "lower",
            "upper",
            "stall_effort",
            "no_load_speed",
        ],
    ) -> NDArray[np.float64]:
        """One number of every joint.

        Args:
            field: Name of a field of `Joint`.

        Returns:
            float64, shape ``(num_joints,)``; an absent limit is +inf, or -inf for ``lower``.
        """
        absent = -math.inf if field == "lower" else math.inf
        values = (getattr(joint, field) for joint in self.joints)
        return np.array([absent if v is None else v for v in values], dtype=np.float64)

    def joint_indices(self, names: tuple[str, ...]) -> NDArray[np.int64]:
        """Where the named joints stand among ``joints``; int64, shape ``(len(names),)``.

        Raises:
            ContractError: A name is not a joint of this policy; the message lists the joints.
        """
        return index_by_name("joint", names, self.joint_names)

    def term_dim(self, term: ObservationTerm) -> int:
        """Length of one frame of a term."""
        if term.source in ("joint_pos", "joint_pos_rel", "joint_vel"):
            return len(self.joints if term.joints is None else term.joints)
        if term.source == "command":
            return len(self.commands if term.channels is None else term.channels)
        if term.source == "last_action":
            return self.num_actions
        if term.source in PHASE_SOURCES:
            count = 0 if self.phase is None else len(self.phase.offsets)
            return 2 * count if term.source == "phase_sin_cos" else count
        if term.source == "constant":
            return len(term.value or ())
        return {"base_quat": 4, "command_active": 1}.get(term.source, 3)

    def frame_dim(self, block: ObservationBlock) -> int:
        """Length of one frame of a block."""
        return sum(self.term_dim(term) for term in block.terms)

    def block_dim(self, block: ObservationBlock) -> int:
        """Length of a block with its history."""
        lengths = (block.length_of(term) for term in block.terms)
        return sum(n * self.term_dim(t) for n, t in zip(lengths, block.terms, strict=True))

    def inputs(self) -> dict[str, int]:
        """Lengths of the network's observation inputs by tensor name, in order."""
        dims: dict[str, int] = {}
        for block in self.observation:
            dims[block.input] = dims.get(block.input, 0) + self.block_dim(block)
        return dims

    def to_json(self) -> str:
        """The canonical text: sorted keys, full precision."""
        return canonical(self)

    def to_dict(self) -> dict[str, object]:
        """The contract as plain JSON values."""
        plain: dict[str, object] = encode(self)
        return plain

    def sha256(self) -> str:
        """Hash over every field, hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> PolicyContract:
        """Read a contract.

        Raises:
            ContractError: Not JSON, a newer schema, or a field is missing, unknown or wrong; the
                message names the first such field.
        """
        plain = parse_json(text, "contract")
        if isinstance(plain, dict) and "schema" in plain:
            _check_schema(cast("dict[str, object]", plain)["schema"])
        return decode(cls, plain, "contract")


def index_by_name(what: str, names: tuple[str, ...], known: tuple[str, ...]) -> NDArray[np.int64]:
    """Positions of ``names`` in ``known``.

    Raises:
        ContractError: A name is not known; the message lists what exists.
    """
    missing = [name for name in names if name not in known]
    if missing:
        raise ContractError(f"{what} {missing[0]!r} does not exist; known: {', '.join(known)}")
    return np.array([known.index(name) for name in names], dtype=np.int64)


def _check_schema(schema: object) -> None:
    if type(schema) is not int or schema < 1:
        raise ContractError(f"contract.schema: {schema!r} is not a schema version")
    if schema > SCHEMA:
        raise ContractError(
            f"contract.schema is {schema}, newer than {SCHEMA}, the newest this version reads: "
            "upgrade surefoot"
        )


def _check_actions(contract: PolicyContract) -> None:
    require_unique("action.terms: joint", contract.action_joints)
    contract.joint_indices(contract.action_joints)
    held = tuple(target.joint for target in contract.action.hold)
    require_unique("action.hold", held)
    contract.joint_indices(held)
    positioned = {n for t in contract.action.terms if t.kind == "position" for n in t.joints}
    for name in contract.joint_names:
        if name not in contract.action_joints and name not in held:
            raise ContractError(f"action: joint {name!r} has no action term and no hold target")
        if name in positioned and name in held:
            raise ContractError(f"action.hold: joint {name!r} already has a position target")


def _check_phase(clock: PhaseClock, commands: tuple[str, ...]) -> None:
    deciding = clock.stand_channels or commands
    index_by_name("command", deciding, commands)
    if clock.stand != "run" and clock.stand_norm == "separate" and len(deciding) != 3:
        raise ContractError(
            "phase.stand_norm: 'separate' needs three channels to decide, there are "
            f"{len(deciding)}: {', '.join(deciding)}"
        )


def _check_observation(contract: PolicyContract) -> None:
    if not contract.observation:
        raise ContractError("observation: a policy needs at least one block")
    order = [block.input for block in contract.observation]
    if any(order.index(name) + order.count(name) <= i for i, name in enumerate(order)):
        raise ContractError("observation: blocks of one input must stand together")
    if contract.observation_dim > MAX_STATE:
        raise ContractError(f"observation: {contract.observation_dim} numbers are no policy's")
    for i, block in enumerate(contract.observation):
        frames = max(block.length_of(term) for term in block.terms) * block.history.stride
        if frames * contract.frame_dim(block) > MAX_STATE:
            raise ContractError(
                f"observation[{i}].history: keeps {frames} frames of {contract.frame_dim(block)} "
                f"numbers, more than {MAX_STATE}"
            )
        require_unique(f"observation[{i}].terms", tuple(term.name for term in block.terms))
        for term in block.terms:
            _check_term(contract, term, f"observation[{i}].{term.name}")


def _check_term(contract: PolicyContract, term: ObservationTerm, path: str) -> None:
    if term.source in PHASE_SOURCES and contract.phase is None:
        raise ContractError(f"{path}: needs the gait clock, but phase is null")
    if term.joints is not None:
        contract.joint_indices(term.joints)
    if term.channels is not None:
        index_by_name("command", term.channels, contract.command_names)
    dim = contract.term_dim(term)
    sized = (("scale", term.scale), ("noise", term.noise))
    for field, values in sized:
        if len(values) not in (1, dim):
            raise ContractError(f"{path}.{field}: has {len(values)} numbers for {dim} features")
